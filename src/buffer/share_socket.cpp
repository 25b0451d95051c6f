#include "buffer/share_socket.hpp"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

#include "core/fork_count.hpp"
#include "core/no_host_memory.hpp"
#include "core/process.hpp"

namespace tern::share {
namespace {

/// The sockets of this process, which a forked child closes. Never destroyed, because sockets may
/// end later than static objects.
struct OpenSockets {
  std::mutex mutex;
  std::vector<int> numbers;
};

OpenSockets& open_sockets() noexcept {
  alignas(OpenSockets) static std::byte memory[sizeof(OpenSockets)];
  static OpenSockets& sockets = *new (memory) OpenSockets;
  static const int registered =
      pthread_atfork([] { sockets.mutex.lock(); }, [] { sockets.mutex.unlock(); },
                     [] {
                       for (const int number : sockets.numbers) close(number);
                       sockets.numbers.clear();
                       sockets.mutex.unlock();
                     });
  static_cast<void>(registered);
  return sockets;
}

Failure refuse(const char* call, CallSite site = {}) noexcept {
  const int error = errno;
  return Failure(ErrorCode::driver,
                 "{call} failed with error {code} on a socket for shared memory. Close files, or "
                 "raise the limit of open files (ulimit -n).",
                 site)
      .with("call", call)
      .with("name", "system error")
      .with("code", static_cast<std::uint64_t>(error));
}

/// Returns the length of the name.
socklen_t name_socket(sockaddr_un& address, std::uint32_t pid, std::uint64_t number) noexcept {
  address.sun_family = AF_UNIX;
  // A name that begins with zero is abstract: no file, and gone with the last descriptor.
  const int length =
      std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "tern-share-%u-%016llx", pid,
                    static_cast<unsigned long long>(number));
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                static_cast<std::size_t>(length));
}

Result<Socket> try_make() noexcept {
  const int number = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (number < 0) return refuse("socket");
  return Socket::try_own(number);
}

[[nodiscard]] bool find_peer(int number, ucred& peer) noexcept {
  socklen_t bytes = sizeof peer;
  return getsockopt(number, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0;
}

Failure no_listener(const Address& to, CallSite site) noexcept {
  const bool is_running = kill(static_cast<pid_t>(to.pid), 0) == 0 || errno == EPERM;
  if (is_running) {
    return Failure(ErrorCode::not_found,
                   "shared array {id} cannot be opened: process {pid} has closed all its shared "
                   "arrays. Open an array before its exporter closes it.",
                   site)
        .with("id", to.id)
        .with("pid", to.pid);
  }
  return Failure(ErrorCode::peer_lost,
                 "shared array {id} cannot be opened: process {pid}, which exported it, has ended. "
                 "Open a handle of a process that is still running.",
                 site)
      .with("pid", to.pid)
      .with("id", to.id);
}

constexpr int connect_seconds = 10;

/// Descriptors that a sender may attach before the system drops the rest.
constexpr std::size_t max_descriptors = 4;

/// Closes all descriptors of a received message but the first, which is returned if it is alone.
Descriptor take_descriptor(msghdr& header, bool& has_more) noexcept {
  Descriptor first;
  for (cmsghdr* part = CMSG_FIRSTHDR(&header); part != nullptr; part = CMSG_NXTHDR(&header, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(part) + i * sizeof(int), sizeof number);
      Descriptor owned(number);
      if (first) {
        has_more = true;
      } else {
        first = std::move(owned);
      }
    }
  }
  return first;
}

}  // namespace

void install_socket_fork_handler() noexcept { static_cast<void>(open_sockets()); }

Descriptor::~Descriptor() {
  if (number_ >= 0) close(number_);
}

Result<Socket> Socket::try_own(int number) noexcept {
  Descriptor owned(number);
  OpenSockets& sockets = open_sockets();
  const std::lock_guard lock(sockets.mutex);
  try {
    sockets.numbers.push_back(number);
  } catch (const std::bad_alloc&) {
    return no_host_memory("a socket");
  }
  Socket socket;
  socket.number_ = number;
  socket.generation_ = process_generation();
  owned.release();
  return socket;
}

Socket::~Socket() {
  if (get() < 0) return;
  OpenSockets& sockets = open_sockets();
  const std::lock_guard lock(sockets.mutex);
  std::erase(sockets.numbers, number_);
  close(number_);
}

int Socket::get() const noexcept { return is_same_process(generation_) ? number_ : -1; }

void Socket::shut_down() const noexcept {
  if (get() >= 0) shutdown(number_, SHUT_RDWR);
}

Result<Socket> try_listen(std::uint32_t pid, std::uint64_t number) noexcept {
  Result<Socket> socket = try_make();
  if (!socket) return socket;
  sockaddr_un address = {};
  const socklen_t bytes = name_socket(address, pid, number);
  if (bind(socket->get(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0) {
    return refuse("bind");
  }
  if (listen(socket->get(), 64) != 0) return refuse("listen");
  return socket;
}

Result<Socket> try_accept(const Socket& listener, std::uint32_t& pid) noexcept {
  const int number = accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC);
  if (number < 0) {
    const bool is_gone = errno == ECONNABORTED || errno == EINTR || errno == EAGAIN;
    return is_gone ? Result<Socket>(Socket()) : Result<Socket>(refuse("accept4"));
  }
  Result<Socket> socket = Socket::try_own(number);
  if (!socket) return socket;
  ucred peer = {};
  // The peer finds out by itself that it has another user, and says so.
  if (!find_peer(number, peer) || peer.uid != geteuid()) return Socket();
  pid = static_cast<std::uint32_t>(peer.pid);
  return socket;
}

Result<Socket> try_connect(const Address& to, CallSite site) noexcept {
  Result<Socket> socket = try_make();
  if (!socket) return socket;
  sockaddr_un address = {};
  const socklen_t bytes = name_socket(address, to.pid, to.socket);
  // A process that is stopped accepts nothing, and its queue of connections may be full.
  const timeval limit = {connect_seconds, 0};
  static_cast<void>(setsockopt(socket->get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit));
  int result = -1;
  do {
    result = connect(socket->get(), reinterpret_cast<const sockaddr*>(&address), bytes);
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno == ECONNREFUSED) return no_listener(to, site);
  if (result != 0 && errno == EAGAIN) {
    return Failure(
               ErrorCode::timeout,
               "process {pid} accepted no connection for shared array {target} within {waited}. "
               "Check whether the process is stopped.",
               site)
        .with("pid", to.pid)
        .with("target", to.id)
        .with("current", std::uint64_t{0})
        .with("waited", std::uint64_t{connect_seconds} * 1'000'000'000, Unit::nanoseconds);
  }
  if (result != 0) return refuse("connect", site);
  ucred peer = {};
  if (!find_peer(socket->get(), peer)) return refuse("getsockopt", site);
  if (peer.uid != geteuid()) {
    return Failure(ErrorCode::unsupported,
                   "{what} {id} of process {pid} belongs to user {owner}, and this process runs as "
                   "user {user}. Run both processes as one user to share memory.",
                   site)
        .with("what", "shared array")
        .with("id", to.id)
        .with("pid", to.pid)
        .with("owner", peer.uid)
        .with("user", geteuid());
  }
  return socket;
}

bool send(const Socket& socket, const Message& message, int descriptor) noexcept {
  iovec part = {const_cast<Message*>(&message), sizeof message};
  alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (descriptor >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    cmsghdr* const attached = CMSG_FIRSTHDR(&header);
    attached->cmsg_level = SOL_SOCKET;
    attached->cmsg_type = SCM_RIGHTS;
    attached->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(attached), &descriptor, sizeof descriptor);
  }
  ssize_t sent = -1;
  do {
    sent = sendmsg(socket.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(sizeof message);
}

Received receive(const Socket& socket, int timeout_ms) noexcept {
  Received received;
  if (!socket) {
    received.state = Received::State::end;
    return received;
  }
  pollfd waiting = {socket.get(), POLLIN, 0};
  const int ready = poll(&waiting, 1, timeout_ms);
  // A signal ends the wait, so that the caller can look for what the signal asks.
  if (ready <= 0) return received;

  iovec part = {&received.message, sizeof received.message};
  alignas(cmsghdr) std::byte control[CMSG_SPACE(max_descriptors * sizeof(int))] = {};
  msghdr header = {};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  ssize_t bytes = recvmsg(socket.get(), &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (bytes < 0 && errno == ECONNRESET) {
    // The other side ended without reading everything. What it sent before is still to be read.
    bytes = recvmsg(socket.get(), &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  }
  if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return received;
  if (bytes <= 0) {
    received.state = Received::State::end;
    return received;
  }
  bool has_more = (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
  received.descriptor = take_descriptor(header, has_more);
  const bool is_whole = bytes == static_cast<ssize_t>(sizeof received.message) && !has_more &&
                        received.message.magic == Message::correct_magic;
  received.state = is_whole ? Received::State::message : Received::State::malformed;
  if (!is_whole) received.descriptor = Descriptor();
  return received;
}

}  // namespace tern::share
