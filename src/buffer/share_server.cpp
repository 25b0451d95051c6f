#include "buffer/share_server.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "core/fork_count.hpp"
#include "core/no_host_memory.hpp"
#include "core/process.hpp"

namespace tern::share {
namespace {

/// The server of the process. Locked across a fork, so that a child finds it unlocked.
struct Current {
  std::mutex mutex;
  std::weak_ptr<Server> server;
};

Current& current() noexcept {
  alignas(Current) static std::byte memory[sizeof(Current)];
  static Current& one = *new (memory) Current;
  static const int registered = [] {
    // Sockets are made under the lock of `one`.
    install_socket_fork_handler();
    return pthread_atfork([] { one.mutex.lock(); }, [] { one.mutex.unlock(); },
                          // The child's next export starts a server of its own.
                          [] {
                            ::new (&one.server) std::weak_ptr<Server>;
                            one.mutex.unlock();
                          });
  }();
  static_cast<void>(registered);
  return one;
}

/// Connections of a process that are open at one time, including those that have opened nothing.
constexpr std::size_t max_connections = 1024;
/// How long the server does not accept connections after it had no descriptor for one.
constexpr int pause_ms = 50;

/// Compares without a hint, by the time it takes, of how many bytes are right.
[[nodiscard]] bool is_equal(const Secret& a, const Secret& b) noexcept {
  int difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == 0;
}

Failure not_started(const char* call, int code) noexcept {
  return Failure(ErrorCode::driver,
                 "{call} failed with error {code}, so this process cannot share memory. Close "
                 "files, or raise the limits of the process (ulimit -n, ulimit -u).")
      .with("call", call)
      .with("name", "system error")
      .with("code", static_cast<std::uint64_t>(code));
}

}  // namespace

Result<std::shared_ptr<Server>> Server::try_get() noexcept {
  Current& now = current();
  const std::lock_guard lock(now.mutex);
  if (std::shared_ptr<Server> server = now.server.lock()) return server;
  try {
    const auto is_ours = [](Server* server) {
      // The threads and locks of a parent mean nothing in its child, which forgets the server.
      if (is_same_process(server->generation_)) delete server;
    };
    std::shared_ptr<Server> server(new Server, is_ours);
    if (Result<void> started = server->try_start(); !started) return started.failure();
    now.server = server;
    return server;
  } catch (const std::bad_alloc&) {
    return no_host_memory("a server of shared memory");
  }
}

Result<void> Server::try_start() noexcept {
  generation_ = process_generation();
  pid_ = static_cast<std::uint32_t>(getpid());
  if (Result<void> made = try_fill_random(&number_, sizeof number_); !made) return made;
  Result<Socket> listener = try_listen(pid_, number_);
  if (!listener) return listener.failure();
  listener_ = *std::move(listener);
  wakeup_ = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wakeup_) return not_started("eventfd", errno);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    return not_started("pthread_create", error.code().value());
  }
  return {};
}

Server::~Server() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    must_end_ = true;
  }
  wake();
  thread_.join();
}

void Server::wake() noexcept {
  const std::uint64_t one = 1;
  static_cast<void>(!write(wakeup_.get(), &one, sizeof one));
}

Server::Export* Server::find(std::uint64_t id) noexcept {
  const auto found = exports_.find(id);
  return found == exports_.end() ? nullptr : &found->second;
}

Result<Address> Server::try_add(Descriptor memory, const ExportTerms& terms) noexcept {
  Address address = {.pid = pid_, .socket = number_};
  if (Result<void> made = try_fill_random(address.secret.data(), address.secret.size()); !made) {
    return made.failure();
  }
  const std::lock_guard lock(mutex_);
  address.id = next_id_;
  try {
    exports_.emplace(next_id_, Export{address, std::move(memory), terms});
  } catch (const std::bad_alloc&) {
    return no_host_memory("an export of shared memory");
  }
  ++next_id_;
  return address;
}

void Server::remove(std::uint64_t id) noexcept {
  {
    const std::lock_guard lock(mutex_);
    Export* const share = find(id);
    if (share == nullptr) return;
    for (Connection& connection : connections_) {
      if (connection.share != share) continue;
      static_cast<void>(send(connection.socket, {.kind = MessageKind::closed, .id = id}));
      end(connection, true);
    }
    exports_.erase(id);
  }
  wake();
}

std::size_t Server::count_importers(const Export& share) const noexcept {
  return static_cast<std::size_t>(std::ranges::count_if(
      connections_, [&](const Connection& one) { return one.share == &share && !one.is_over; }));
}

std::size_t Server::importers(std::uint64_t id) noexcept {
  const std::lock_guard lock(mutex_);
  const Export* const share = find(id);
  return share == nullptr ? 0 : count_importers(*share);
}

// --- Turns

void Server::publish(std::uint64_t id) noexcept {
  const std::lock_guard lock(mutex_);
  Export* const share = find(id);
  if (share == nullptr) return;
  share->is_exporters_turn = false;
  ++share->round;
  share->returns = 0;
  for (Connection& connection : connections_) {
    if (connection.share == share) grant_if_possible(connection);
  }
}

void Server::grant_if_possible(Connection& connection) noexcept {
  const Export& share = *connection.share;
  if (!connection.wants_turn || share.is_exporters_turn || connection.round == share.round) return;
  connection.wants_turn = false;
  connection.has_turn = true;
  connection.round = share.round;
  if (send(connection.socket, {.kind = MessageKind::granted, .id = share.address.id})) return;
  // The importer is gone, or does not read: its socket says so to the thread of the server.
  connection.socket.shut_down();
}

bool Server::is_round_over(const Export& share) const noexcept {
  if (share.is_exporters_turn) return false;
  // If the last importer has ended between its turns, nobody is left to return the array.
  if (share.returns == 0) return share.gone_pid != 0 && count_importers(share) == 0;
  return std::ranges::none_of(connections_, [&](const Connection& one) {
    return one.share == &share && !one.is_over && (one.has_turn || one.round != share.round);
  });
}

Result<void> Server::try_acquire(std::uint64_t id, Timeout timeout, CallSite site) noexcept {
  std::unique_lock lock(mutex_);
  Export* const share = find(id);
  if (share == nullptr) return Failure(ErrorCode::not_found, nullptr, site).with("id", id);
  const auto is_over = [&] { return is_round_over(*share); };
  if (!timeout) {
    changed_.wait(lock, is_over);
  } else if (!changed_.wait_for(lock, *timeout, is_over)) {
    return Failure(ErrorCode::timeout,
                   "shared array {id} was not returned within {waited}: {returns} of {importers} "
                   "importers have published round {target}. Wait longer, or close the importers "
                   "that no longer use the array.",
                   site)
        .with("id", id)
        .with("waited", static_cast<std::uint64_t>(timeout->count()) * 1'000'000, Unit::nanoseconds)
        .with("returns", share->returns)
        .with("importers", count_importers(*share))
        .with("target", share->round)
        .with("current", share->returns);
  }
  share->is_exporters_turn = true;
  const std::uint32_t lost = std::exchange(share->lost_pid, 0);
  if (share->returns == 0) {
    return Failure(ErrorCode::peer_lost,
                   "process {pid} ended before its turn on shared array {id}, and no importer is "
                   "left. Open the array in another process, and publish it again.",
                   site)
        .with("pid", std::exchange(share->gone_pid, 0))
        .with("id", id);
  }
  if (lost == 0) return {};
  return Failure(ErrorCode::peer_lost,
                 "process {pid} ended during its turn on shared array {id}, so the elements may be "
                 "incomplete. Write the elements again, and publish the array.",
                 site)
      .with("pid", lost)
      .with("id", id);
}

// --- The thread

void Server::run() noexcept {
  std::vector<pollfd> waiting;
  std::vector<Connection*> waiting_connections;
  for (;;) {
    bool is_paused = false;
    {
      const std::lock_guard lock(mutex_);
      std::erase_if(connections_, [](const Connection& one) { return one.is_over; });
      if (must_end_) return;
      is_paused = std::exchange(must_pause_, false);
      waiting.clear();
      waiting_connections.clear();
      try {
        waiting.reserve(connections_.size() + 2);
        waiting_connections.reserve(connections_.size());
      } catch (const std::bad_alloc&) {
        // Without memory for the list, the newest connection has to go.
        if (!connections_.empty()) end(connections_.back(), false);
        continue;
      }
      waiting.push_back({wakeup_.get(), POLLIN, 0});
      waiting.push_back({is_paused ? -1 : listener_.get(), POLLIN, 0});
      for (Connection& connection : connections_) {
        waiting.push_back({connection.socket.get(), POLLIN, 0});
        waiting_connections.push_back(&connection);
      }
    }
    if (poll(waiting.data(), waiting.size(), is_paused ? pause_ms : -1) < 0) continue;

    const std::lock_guard lock(mutex_);
    std::uint64_t count = 0;
    if (waiting[0].revents != 0) {
      static_cast<void>(!read(wakeup_.get(), &count, sizeof count));
    }
    for (std::size_t i = 0; i < waiting_connections.size(); ++i) {
      if (waiting[i + 2].revents == 0 || waiting_connections[i]->is_over) continue;
      answer(*waiting_connections[i], receive(waiting_connections[i]->socket, 0));
    }
    if (waiting[1].revents != 0) accept();
  }
}

void Server::accept() noexcept {
  std::uint32_t pid = 0;
  Result<Socket> socket = try_accept(listener_, pid);
  if (!socket) {
    must_pause_ = true;
    return;
  }
  // A connection too many is closed, which the importer reports.
  if (!*socket || connections_.size() >= max_connections) return;
  try {
    connections_.emplace_back();
  } catch (const std::bad_alloc&) {
    return;
  }
  connections_.back().socket = *std::move(socket);
  connections_.back().pid = pid;
}

void Server::answer(Connection& connection, const Received& received) noexcept {
  if (received.state == Received::State::nothing) return;
  if (received.state == Received::State::end) return end(connection, false);
  const MessageKind kind =
      received.state == Received::State::message ? received.message.kind : MessageKind();
  // Importers never send descriptors; receive() has closed what came along.
  const bool is_open = connection.share != nullptr;
  if (kind == MessageKind::open && !is_open) return answer_open(connection, received.message);
  if (kind == MessageKind::acquire && is_open && !connection.has_turn && !connection.wants_turn) {
    connection.wants_turn = true;
    return grant_if_possible(connection);
  }
  if (kind == MessageKind::give_back && is_open && connection.has_turn) {
    connection.has_turn = false;
    ++connection.share->returns;
    changed_.notify_all();
    return;
  }
  if (kind == MessageKind::leave && is_open) return end(connection, true);
  static_cast<void>(
      send(connection.socket, {.kind = MessageKind::refused, .refusal = Refusal::malformed}));
  end(connection, false);
}

void Server::answer_open(Connection& connection, const Message& message) noexcept {
  Export* const share = find(message.id);
  Refusal refusal = Refusal::none;
  if (share == nullptr || !is_equal(share->address.secret, message.secret)) {
    refusal = Refusal::unknown;
  } else if (count_importers(*share) >= max_importers) {
    refusal = Refusal::full;
  }
  if (refusal != Refusal::none) {
    static_cast<void>(send(connection.socket, {.kind = MessageKind::refused, .refusal = refusal}));
    return end(connection, false);
  }
  Message reply = {.kind = MessageKind::accepted,
                   .id = message.id,
                   .bytes = share->terms.bytes,
                   .elements = share->terms.elements,
                   .dtype = static_cast<std::uint32_t>(share->terms.dtype)};
  const std::string_view backend = share->terms.backend.substr(0, reply.backend.size() - 1);
  std::ranges::copy(backend, reply.backend.begin());
  connection.share = share;
  share->gone_pid = 0;
  if (!send(connection.socket, reply, share->memory.get())) end(connection, false);
}

void Server::end(Connection& connection, bool left) noexcept {
  connection.is_over = true;
  // At once, because the thread may take its time to remove the connection.
  connection.socket = Socket();
  Export* const share = std::exchange(connection.share, nullptr);
  if (share != nullptr && connection.has_turn) {
    ++share->returns;
    if (!left) share->lost_pid = connection.pid;
  } else if (share != nullptr && !left) {
    share->gone_pid = connection.pid;
  }
  connection.has_turn = false;
  changed_.notify_all();
}

}  // namespace tern::share
