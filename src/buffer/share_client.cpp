#include "buffer/share_client.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <string_view>

#include "tern/core/bytes.hpp"

namespace tern::share {
namespace {

using Clock = std::chrono::steady_clock;

/// The end of a wait, and what is left of it for one system call.
class Deadline {
 public:
  explicit Deadline(Timeout timeout) noexcept : timeout_(timeout) {}
  /// Returns -1 without a limit.
  [[nodiscard]] int left_ms() const noexcept {
    if (!timeout_) return -1;
    const auto passed =
        std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - began_);
    const auto left = std::max<std::int64_t>(0, (*timeout_ - passed).count());
    return static_cast<int>(std::min<std::int64_t>(left, std::numeric_limits<int>::max()));
  }
  [[nodiscard]] Failure failure(const char* sentence, const Address& address,
                                CallSite site) const noexcept {
    return Failure(ErrorCode::timeout, sentence, site)
        .with("pid", address.pid)
        .with("target", address.id)
        .with("current", std::uint64_t{0})
        .with("waited", static_cast<std::uint64_t>(timeout_->count()) * 1'000'000,
              Unit::nanoseconds);
  }

 private:
  const Timeout timeout_;
  const Clock::time_point began_ = Clock::now();
};

/// How long an exporter may take to answer, if the caller has not set a limit.
constexpr std::chrono::milliseconds answer_time(10'000);

constexpr const char* not_answered =
    "process {pid} did not answer the request to open shared array {target} within {waited}. Wait "
    "longer, or check whether the process is stopped.";
constexpr const char* not_published =
    "process {pid} did not publish shared array {target} within {waited}. Wait longer, or check "
    "whether the process is stopped or does not call publish().";

Failure wrong_answer(const Address& address, const char* why, CallSite site) noexcept {
  return Failure(
             ErrorCode::bad_format,
             "process {pid} sent a wrong answer for shared array {value}: {why}. Open only handles "
             "of processes that use the same version of Tern.",
             site)
      .with("what", "the answer of an exporter")
      .with("field", "message")
      .with("value", address.id)
      .with("pid", address.pid)
      .with("why", why);
}

Failure refused(const Address& address, Refusal refusal, CallSite site) noexcept {
  switch (refusal) {
    case Refusal::unknown:
      return Failure(
                 ErrorCode::not_found,
                 "process {pid} has no shared array {id} with this handle: the array was closed, "
                 "or the handle is wrong. Open an array before its exporter closes it.",
                 site)
          .with("id", address.id)
          .with("pid", address.pid);
    case Refusal::full:
      return Failure(ErrorCode::capacity,
                     "shared array {id} of process {pid} already has {max} importers. Close one of "
                     "them.",
                     site)
          .with("max", Server::max_importers)
          .with("id", address.id)
          .with("pid", address.pid);
    case Refusal::none:
    case Refusal::malformed:
      break;
  }
  return wrong_answer(address, "the process did not understand the request", site);
}

/// Returns why the exporter's answer cannot be right, or null.
const char* find_mistake(const Message& answer, const Address& address, bool has_memory) noexcept {
  if (answer.kind != MessageKind::accepted || answer.id != address.id) {
    return "the message is of another kind";
  }
  if (!has_memory) return "the descriptor of the memory is missing";
  if (answer.backend.back() != '\0') return "the name of the backend has no end";
  if (answer.dtype > static_cast<std::uint32_t>(DType::index)) return "the element type is unknown";
  const std::size_t width = size_bytes(static_cast<DType>(answer.dtype));
  if (width == 0) return "the elements have no size";
  if (answer.bytes == 0 || answer.bytes > max_request_bytes) return "the memory has no valid size";
  if (answer.elements > answer.bytes / width) return "the array is larger than its memory";
  return nullptr;
}

}  // namespace

Result<Client> Client::try_open(const Address& address, Timeout timeout, CallSite site) noexcept {
  Result<Socket> socket = try_connect(address, site);
  if (!socket) return socket.failure();
  Client client;
  client.address_ = address;
  client.socket_ = *std::move(socket);
  const Deadline deadline(timeout ? timeout : Timeout(answer_time));
  if (!send(client.socket_,
            {.kind = MessageKind::open, .id = address.id, .secret = address.secret})) {
    return client.lost(site);
  }
  Received received;
  do {
    received = receive(client.socket_, deadline.left_ms());
    if (received.state == Received::State::nothing && deadline.left_ms() == 0) {
      return deadline.failure(not_answered, address, site);
    }
  } while (received.state == Received::State::nothing);
  if (received.state == Received::State::end) return client.lost(site);
  if (received.state == Received::State::malformed) {
    return wrong_answer(address, "the message is damaged", site);
  }
  if (received.message.kind == MessageKind::refused) {
    return refused(address, received.message.refusal, site);
  }
  if (const char* why = find_mistake(received.message, address, bool(received.descriptor))) {
    return wrong_answer(address, why, site);
  }
  client.answer_ = received.message;
  client.memory_ = std::move(received.descriptor);
  return client;
}

Failure Client::lost(CallSite site) const noexcept {
  const char* const sentence =
      is_closed_
          ? "process {pid} has closed shared array {id}. The elements can still be read, but "
            "the process no longer changes them. Close the array in this process too."
          : "process {pid}, which exported shared array {id}, has ended. The elements can "
            "still be read, but may be incomplete. Close the array in this process too.";
  return Failure(ErrorCode::peer_lost, sentence, site)
      .with("pid", address_.pid)
      .with("id", address_.id);
}

Result<void> Client::try_acquire(Timeout timeout, CallSite site) noexcept {
  if (is_closed_) return lost(site);
  const Deadline deadline(timeout);
  // A failed send is not the end: the exporter may have said before why it is gone.
  if (!has_asked_) has_asked_ = send(socket_, {.kind = MessageKind::acquire, .id = address_.id});
  for (;;) {
    const Received received = receive(socket_, deadline.left_ms());
    if (received.state == Received::State::nothing) {
      if (deadline.left_ms() == 0) return deadline.failure(not_published, address_, site);
      continue;
    }
    if (received.state == Received::State::end) return lost(site);
    const bool is_message = received.state == Received::State::message;
    if (is_message && received.message.kind == MessageKind::granted) {
      has_asked_ = false;
      return {};
    }
    if (is_message && received.message.kind == MessageKind::closed) {
      is_closed_ = true;
      return lost(site);
    }
    return wrong_answer(address_, "the message is of another kind", site);
  }
}

void Client::give_back() noexcept {
  static_cast<void>(send(socket_, {.kind = MessageKind::give_back, .id = address_.id}));
}

void Client::leave() noexcept {
  static_cast<void>(send(socket_, {.kind = MessageKind::leave, .id = address_.id}));
}

}  // namespace tern::share
