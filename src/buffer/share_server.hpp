// The exporter's side of shared memory: one thread that answers the processes that open exports.
//
// The server passes the descriptor of an export to every process of the same user that knows the
// handle, and it decides whose turn it is. A turn goes around in rounds:
//
// 1. The exporter has the turn. publish() ends it.
// 2. Each importer gets a turn once per round, at the same time as other importers.
// 3. When every importer that is connected has returned the round, and at least one has, the
//    exporter may take the turn again with try_acquire().
//
// An importer that ends is no longer waited for. The process has one server, which exists while
// somebody holds it. Its thread never calls a device, so publish() may run in a host function of a
// stream. A forked child has no server of its parent. Thread-safe.

#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>

#include "buffer/share_address.hpp"
#include "buffer/share_socket.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/result.hpp"

namespace tern::share {

/// How long a call waits. Nothing: without a limit.
using Timeout = std::optional<std::chrono::milliseconds>;

/// What the importers of an export are told.
struct ExportTerms {
  std::size_t bytes = 0;  // of the memory, whole pages
  std::size_t elements = 0;
  DType dtype = DType::byte;
  std::string_view backend;
};

class Server {
 public:
  /// Most importers that an export has at one time.
  static constexpr std::size_t max_importers = 64;

  /// Returns the server of this process; starts it if there is none. Fails with driver and
  /// out_of_memory.
  [[nodiscard]] static Result<std::shared_ptr<Server>> try_get() noexcept;
  /// Ends the thread and closes all sockets. Does nothing in a forked child.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  /// Begins an export of the memory behind a descriptor. The exporter has the turn. Fails with
  /// driver and out_of_memory.
  [[nodiscard]] Result<Address> try_add(Descriptor memory, const ExportTerms& terms) noexcept;
  /// Ends an export: its handle is stale, and its importers are told.
  void remove(std::uint64_t id) noexcept;

  /// Ends the exporter's turn and begins a round.
  void publish(std::uint64_t id) noexcept;
  /// Waits for the end of the round and takes the turn. Fails with timeout, and then changes
  /// nothing. Fails with peer_lost, once, if an importer ended during its turn: its bytes may be
  /// incomplete. The exporter has the turn then.
  [[nodiscard]] Result<void> try_acquire(std::uint64_t id, Timeout timeout, CallSite site) noexcept;
  /// Returns the number of importers that are connected to an export.
  [[nodiscard]] std::size_t importers(std::uint64_t id) noexcept;

 private:
  struct Export {
    Address address;
    Descriptor memory;
    ExportTerms terms;
    std::uint64_t round = 0;
    std::uint64_t returns = 0;   // of this round
    std::uint32_t lost_pid = 0;  // of an importer that ended during its turn
    std::uint32_t gone_pid = 0;  // of an importer that ended between its turns; 0 after an open()
    bool is_exporters_turn = true;
  };
  struct Connection {
    Socket socket;
    std::uint32_t pid = 0;
    Export* share = nullptr;  // what the importer has opened
    std::uint64_t round = 0;  // the last round of which it had its turn
    bool has_turn = false;
    bool wants_turn = false;
    bool is_over = false;
  };
  using Connections = std::list<Connection>;

  Server() noexcept = default;
  [[nodiscard]] Result<void> try_start() noexcept;
  void run() noexcept;
  void wake() noexcept;

  // Call with mutex_ held.
  void accept() noexcept;
  void answer(Connection& connection, const Received& received) noexcept;
  void answer_open(Connection& connection, const Message& message) noexcept;
  void grant_if_possible(Connection& connection) noexcept;
  void end(Connection& connection, bool left) noexcept;
  [[nodiscard]] bool is_round_over(const Export& share) const noexcept;
  [[nodiscard]] std::size_t count_importers(const Export& share) const noexcept;
  [[nodiscard]] Export* find(std::uint64_t id) noexcept;

  std::uint64_t generation_ = 0;
  std::uint32_t pid_ = 0;
  std::uint64_t number_ = 0;
  Socket listener_;
  Descriptor wakeup_;
  std::thread thread_;

  std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  std::map<std::uint64_t, Export> exports_;
  Connections connections_;
  std::uint64_t next_id_ = 1;
  bool must_end_ = false;
  bool must_pause_ = false;  // no descriptor for another connection
};

}  // namespace tern::share
