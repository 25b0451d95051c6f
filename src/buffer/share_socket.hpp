// The sockets of shared memory: messages of fixed size, and descriptors, between two processes of
// one user.
//
// A Socket keeps the borders of messages, so a message is received whole or refused. Its name is in
// the abstract namespace and vanishes with its process. A forked child gets no socket of its
// parent: they are closed in the child, so that the other side learns of the end of the parent.
// Every function may be called from any thread; one thread at a time receives from a socket.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "buffer/share_address.hpp"
#include "tern/core/result.hpp"

namespace tern::share {

/// A file descriptor, closed by the destructor.
class Descriptor {
 public:
  Descriptor() noexcept = default;
  explicit Descriptor(int number) noexcept : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor();

  [[nodiscard]] int get() const noexcept { return number_; }
  [[nodiscard]] explicit operator bool() const noexcept { return number_ >= 0; }
  /// Returns the descriptor, which the caller now owns.
  int release() noexcept { return std::exchange(number_, -1); }

 private:
  int number_ = -1;
};

/// A socket. See the top of this file.
class Socket {
 public:
  Socket() noexcept = default;
  /// Takes ownership of the descriptor, even on failure. Fails with out_of_memory.
  [[nodiscard]] static Result<Socket> try_own(int number) noexcept;
  Socket(Socket&& other) noexcept
      : number_(std::exchange(other.number_, -1)), generation_(other.generation_) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(number_, other.number_);
    std::swap(generation_, other.generation_);
    return *this;
  }
  ~Socket();

  /// Returns -1 in a forked child.
  [[nodiscard]] int get() const noexcept;
  [[nodiscard]] explicit operator bool() const noexcept { return get() >= 0; }
  /// Ends the connection for both sides; the descriptor stays open.
  void shut_down() const noexcept;

 private:
  int number_ = -1;
  std::uint64_t generation_ = 0;
};

/// Installs the handler that closes sockets in a forked child, and that holds their lock during a
/// fork. Call it before installing a handler for a lock under which sockets are made, because the
/// handlers of newer locks run first.
void install_socket_fork_handler() noexcept;

enum class MessageKind : std::uint32_t {
  open = 1,   // importer: I want to open export `id`, whose secret I know
  accepted,   // exporter: here it is, with the descriptor of its memory
  refused,    // exporter: no, because of `refusal`
  acquire,    // importer: I wait for my turn
  granted,    // exporter: it is your turn
  give_back,  // importer: my turn is over
  leave,      // importer: I close the array
  closed,     // exporter: I close the array
};

enum class Refusal : std::uint32_t { none = 0, unknown, full, malformed };

/// One message; which fields matter depends on the kind.
struct Message {
  static constexpr std::uint64_t correct_magic = 0x3145'5241'4853'4e54;  // "TNSHARE1"

  std::uint64_t magic = correct_magic;
  MessageKind kind = {};
  Refusal refusal = Refusal::none;
  std::uint64_t id = 0;
  Secret secret = {};
  std::uint64_t bytes = 0;     // of the memory, whole pages
  std::uint64_t elements = 0;  // of the array
  std::uint32_t dtype = 0;
  std::uint32_t reserved = 0;
  std::array<char, 16> backend = {};  // name of the exporter's backend, padded with zeros
};
static_assert(sizeof(Message) == 80);

/// Makes a socket that listens; `number` is the random part of its name. Fails with driver.
[[nodiscard]] Result<Socket> try_listen(std::uint32_t pid, std::uint64_t number) noexcept;
/// Returns the next connection, or an empty socket if the connection is gone, or is one of another
/// user, who is told so. Fails if there is no free descriptor. `pid` is the process of the peer.
[[nodiscard]] Result<Socket> try_accept(const Socket& listener, std::uint32_t& pid) noexcept;
/// Connects to an exporter. If nobody listens, fails with peer_lost if the process has ended, else
/// with not_found. Fails with unsupported if the listener is a process of another user, and with
/// timeout if it accepts no connection for ten seconds.
[[nodiscard]] Result<Socket> try_connect(const Address& address, CallSite site) noexcept;

/// Sends a message, and a descriptor unless it is -1. Never blocks. Returns false if the other side
/// is gone or does not read.
[[nodiscard]] bool send(const Socket& socket, const Message& message, int descriptor = -1) noexcept;

/// What was received.
struct Received {
  enum class State : std::uint8_t {
    message,
    nothing,    // the time is over
    end,        // the other side closed the connection, or has ended
    malformed,  // no message of ours; descriptors that came with it are closed
  };
  State state = State::nothing;
  Message message = {};
  Descriptor descriptor = {};
};

/// Waits up to `timeout_ms` for a message, or without a limit if it is negative.
[[nodiscard]] Received receive(const Socket& socket, int timeout_ms) noexcept;

}  // namespace tern::share
