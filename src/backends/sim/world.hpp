// The simulated world: devices that are peers, their streams and events, the host, and the checker
// that watches all of them.
//
// Nothing here runs by itself. A call is judged by the checker, then queued; whenever a call comes
// in, the scheduler lets the host or a stream go on until it is the host's turn. A host wait runs
// streams until what it waits for has happened; if nothing can run any more, that is a deadlock and
// is said so. One lock guards everything, which is also what makes a run repeatable.

#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backends/kernel_launch.hpp"
#include "backends/sim/alias_memory.hpp"
#include "backends/sim/fault_plan.hpp"
#include "backends/sim/host_space.hpp"
#include "backends/sim/profile.hpp"
#include "backends/sim/range_allocator.hpp"
#include "backends/sim/scheduler.hpp"
#include "tern/backends/sim.hpp"
#include "tern/device/backend.hpp"
#include "tern/trace/order_checker.hpp"
#include "tern/trace/trace_writer.hpp"

namespace tern::sim {

/// Where an event was recorded; waits keep the record they saw.
struct RecordPoint {
  std::size_t stream = 0;
  std::uint64_t position = 0;
  std::uint64_t time_ns = 0;  // virtual, when the stream passed it
};

struct SimEvent {
  std::uint64_t number = 0;  // in the trace; never used again
  std::shared_ptr<RecordPoint> record;
};

/// One queued operation. Addresses are those users hold.
struct Operation {
  enum class Kind : std::uint8_t {
    copy,
    copy_2d,
    fill,
    call,
    launch,
    birth,
    death,
    record,
    wait,
    prefetch,
    fault,
    hold,
  };
  Kind kind = Kind::call;
  void* destination = nullptr;
  const void* source = nullptr;
  std::size_t bytes = 0;
  Copy2D copy_2d = {};
  Pattern pattern = {};
  HostFunction function = nullptr;
  void* context = nullptr;
  std::uint64_t generation = 0;
  std::uint64_t earliest_ns = 0;
  std::unique_ptr<KernelLaunch> launch = {};
  std::shared_ptr<RecordPoint> point = {};
};

struct SimStream {
  ActorId actor = 0;
  std::uint32_t device = 0;
  ActorKind kind = ActorKind::stream;
  bool is_open = true;
  std::deque<Operation> queue;
  std::uint64_t submitted = 0;
  std::uint64_t passed = 0;
  std::uint64_t time_ns = 0;
  unsigned unready_answers = 0;
};

/// An allocation that users hold.
struct SimBlock {
  std::uint64_t offset = 0;
  std::size_t bytes = 0;
  MemoryKind kind = MemoryKind::device;
  std::uint64_t generation = 0;
};

struct SimPages {
  std::uint64_t offset = 0;  // in device memory
  std::size_t bytes = 0;
  std::size_t mappings = 0;
  bool is_released = false;
  bool was_mapped = false;
};

/// A range released in stream order whose stream has not got there yet.
struct PendingRelease {
  std::size_t stream = 0;
  std::uint64_t offset = 0;
  std::size_t bytes = 0;
};

/// What belongs to one device of the world.
struct SimDevice {
  std::uint32_t space = 1;
  std::unique_ptr<AliasMemory> memory;
  std::optional<RangeAllocator> allocator;
  std::optional<RangeAllocator> window;
  std::map<std::uint64_t, SimBlock> blocks;                                 // by offset
  std::vector<PendingRelease> pending;                                      // oldest first
  std::map<std::uint64_t, std::size_t> reservations;                        // window offsets
  std::map<std::uint64_t, std::pair<std::size_t, std::uint64_t>> mappings;  // bytes, pages
  std::map<std::uint64_t, SimPages> pages;
  std::size_t default_stream = 0;
  std::optional<Failure> loss;  // why the device is lost
};

class World {
 public:
  World(const Options& options, const Profile& profile);
  ~World();

  /// Opens the trace the options ask for; before the first device. Refused: a file that cannot be
  /// written, and a trace without the checker, which counts what marks in it refer to.
  [[nodiscard]] Result<void> open_trace();
  [[nodiscard]] Result<std::uint32_t> add_device() noexcept;
  [[nodiscard]] const Options& options() const noexcept { return options_; }
  [[nodiscard]] const Profile& profile() const noexcept { return profile_; }
  [[nodiscard]] SimDevice& device(std::uint32_t index) { return *devices_[index]; }
  /// Locks the world for one call.
  [[nodiscard]] std::unique_lock<std::mutex> enter() { return std::unique_lock(mutex_); }

  // All of what follows with the world locked.

  /// Every primitive begins here: counts the call, lets a fault happen, refuses on a lost device,
  /// and reports what a call that could not fail has found.
  [[nodiscard]] Result<void> begin(std::uint32_t device, FaultClass fault_class, const char* call,
                                   std::size_t bytes = 0);

  /// The checker's word on a record: a failure means that it must not happen.
  [[nodiscard]] Result<void> judge(const TraceRecord& record);
  /// The same for calls that cannot fail: the finding waits for the next one that can.
  void judge_later(const TraceRecord& record);
  /// Ranges as the checker knows them; may be several for host memory.
  void add_touch(std::vector<Touch>& touches, TouchKind kind, const void* address,
                 std::size_t bytes, bool is_assumed = false, std::uint64_t generation = 0);
  [[nodiscard]] std::vector<Touch>& scratch() {
    scratch_.clear();
    return scratch_;
  }

  [[nodiscard]] std::size_t add_stream(std::uint32_t device, ActorKind kind, std::string_view name);
  [[nodiscard]] SimStream& stream(std::size_t index) { return *streams_[index]; }
  void submit(std::size_t stream, Operation&& operation);
  /// Lets others go on until it is the host's turn.
  void run_until_host();
  [[nodiscard]] Result<void> wait_for(std::size_t stream, std::uint64_t position, const char* call);
  [[nodiscard]] bool answer_query(std::size_t stream, std::uint64_t position);
  [[nodiscard]] Result<void> wait_for_all(std::uint32_t device);
  [[nodiscard]] std::uint64_t hold(std::size_t stream);
  void let_go(std::uint64_t hold);
  void run_to_hold(std::uint64_t hold);

  [[nodiscard]] std::uint64_t next_event_number() noexcept { return ++last_event_; }
  [[nodiscard]] std::uint64_t next_generation() noexcept { return ++last_generation_; }
  [[nodiscard]] HostSpace& host() noexcept { return host_; }
  [[nodiscard]] FaultPlan& faults() noexcept { return faults_; }
  [[nodiscard]] OrderChecker& checker() noexcept { return checker_; }
  [[nodiscard]] std::vector<Finding>& findings() noexcept { return findings_; }
  [[nodiscard]] std::uint64_t trace_hash() const noexcept { return trace_hash_; }
  [[nodiscard]] std::optional<TraceWriter>& trace() noexcept { return trace_; }
  /// The process ends and the world does not.
  void close_trace_at_exit() noexcept;
  [[nodiscard]] std::uint64_t time_ns() const noexcept;
  /// Which device and offset a user's address belongs to.
  [[nodiscard]] std::optional<std::pair<std::uint32_t, std::uint64_t>> locate(
      const void* address) const noexcept;
  void lose(std::uint32_t device, const Failure& cause) noexcept;

 private:
  [[nodiscard]] std::string context() const;
  [[nodiscard]] std::string replay() const;
  void enqueue(SimStream& stream, Operation&& operation);
  /// The default stream of a device and its blocking streams take turns.
  void wait_for_partners(SimStream& stream);
  void hash_record(const TraceRecord& record) noexcept;
  [[nodiscard]] bool can_run(const SimStream& stream) const noexcept;
  void collect_ready();
  void run_one(std::size_t stream);
  void execute(SimStream& stream, Operation& operation);
  void execute_launch(KernelLaunch& launch);
  void finish_release(SimDevice& device, std::uint64_t offset);
  void charge(SimStream& stream, const Operation& operation);
  /// The byte as the device reaches it: through the alias, or directly for host memory.
  [[nodiscard]] std::byte* reach(const void* address) const noexcept;
  void prepare(const void* address, std::size_t bytes);
  void forget(const void* address, std::size_t bytes);
  [[nodiscard]] Failure deadlock(std::size_t stream, const char* call) const;
  [[nodiscard]] Failure violation(const Finding& finding) const noexcept;

  const Options options_;
  const Profile profile_;
  std::mutex mutex_;
  Scheduler scheduler_;
  FaultPlan faults_;
  OrderChecker checker_;
  std::optional<TraceWriter> trace_;
  HostSpace host_;
  std::vector<std::unique_ptr<SimDevice>> devices_;
  std::vector<std::unique_ptr<SimStream>> streams_;
  std::vector<std::size_t> ready_;
  std::map<std::uint64_t, RecordPoint> holds_;  // closed ones, and where they stand
  std::uint64_t last_hold_ = 0;
  std::condition_variable_any let_go_;
  std::vector<Touch> scratch_;
  std::vector<Finding> findings_;
  std::optional<Failure> parked_;
  std::uint64_t trace_hash_ = 0;
  std::uint64_t last_event_ = 0;
  std::uint64_t last_generation_ = 0;
  std::uint64_t host_time_ns_ = 0;
  std::array<std::uint64_t, 3> engine_time_ns_ = {};
  bool is_running_ = false;  // a host function or kernel is on the stack
};

}  // namespace tern::sim
