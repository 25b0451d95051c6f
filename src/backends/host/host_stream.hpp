// A host stream: a queue of operations and a thread that runs them in order.
//
// The thread starts with the first operation and ends when the stream is closed and its queue is
// empty. A submission takes one short lock and allocates nothing once the queue has reached its
// working size. A position counts operations from 1; the stream has passed a position when its
// Progress has reached it. So an event is a pair (stream, position), and recording an event queues
// nothing.

#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <variant>
#include <vector>

#include "backends/host/progress.hpp"
#include "backends/kernel_launch.hpp"
#include "core/worker_team.hpp"
#include "tern/core/result.hpp"
#include "tern/device/operations.hpp"

namespace tern::host {

class HostStream;
class HostMemory;
struct TimeStamp;

/// A point in a stream. A null stream means that there is nothing to wait for.
struct Position {
  std::shared_ptr<HostStream> stream;
  std::uint64_t number = 0;

  [[nodiscard]] bool is_passed() const noexcept;
  void wait() const noexcept;
};

struct CopyOperation {
  void* destination;
  const void* source;
  std::size_t bytes;
};
struct FillOperation {
  void* destination;
  std::size_t bytes;
  Pattern pattern;
};
struct CallOperation {
  HostFunction function;
  void* context;
};
struct ReleaseOperation {
  HostMemory* memory;
  void* address;
};
struct TouchOperation {
  void* address;
  std::size_t bytes;
  std::size_t page_bytes;
};
struct StampOperation {
  std::shared_ptr<TimeStamp> stamp;
  std::uint64_t record;
};
using LaunchOperation = std::unique_ptr<KernelLaunch>;

using Operation =
    std::variant<CopyOperation, Copy2D, FillOperation, CallOperation, ReleaseOperation,
                 TouchOperation, StampOperation, LaunchOperation, Position>;

/// The time at which the latest record of a timed event was passed.
struct TimeStamp {
  std::mutex mutex;
  std::uint64_t record = 0;   // guarded by mutex; the record that time_ns belongs to
  std::uint64_t time_ns = 0;  // guarded by mutex
};

class HostStream : public std::enable_shared_from_this<HostStream> {
 public:
  HostStream(std::shared_ptr<WorkerTeam> team, bool is_blocking) noexcept
      : team_(std::move(team)), is_blocking_(is_blocking) {}

  [[nodiscard]] bool is_blocking() const noexcept { return is_blocking_; }

  /// Fails with driver if the thread cannot be started, and with out_of_memory if the queue cannot
  /// grow. Nothing is queued then.
  [[nodiscard]] Result<void> submit(Operation&& operation) noexcept;
  /// Returns the position after everything submitted so far.
  [[nodiscard]] Position position() noexcept;
  [[nodiscard]] std::uint64_t passed() const noexcept { return progress_.value(); }
  void wait_for(std::uint64_t number) noexcept { progress_.wait_for(number); }
  /// No further operation will be submitted. Queued operations still run.
  void close() noexcept;
  /// Returns whether the stream is closed and all its work is done.
  [[nodiscard]] bool is_finished() noexcept;

 private:
  [[nodiscard]] Result<void> start() noexcept;
  void work() noexcept;
  void run(Operation& operation) noexcept;

  const std::shared_ptr<WorkerTeam> team_;
  const bool is_blocking_;
  Progress progress_;

  std::mutex mutex_;
  std::condition_variable has_work_;
  std::vector<Operation> queue_;  // guarded by mutex_
  std::uint64_t submitted_ = 0;   // guarded by mutex_
  bool is_started_ = false;       // guarded by mutex_
  bool is_sleeping_ = false;      // guarded by mutex_
  bool is_closed_ = false;        // guarded by mutex_
};

}  // namespace tern::host
