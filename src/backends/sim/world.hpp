// The simulation: devices that are peers, their streams and events, the host, and the checker that
// observes all of them.
//
// Nothing runs by itself. A call is checked and then queued. In every call, the scheduler runs
// streams until it is the host's turn. A host wait runs streams until the awaited work is done; if
// nothing can run, that is a deadlock and is reported. One lock guards everything, which also makes
// runs repeatable.
//
// TERN_EXPORT marks what the fake CUDA driver calls: it is a library of its own (tern::fake_cuda),
// and this one may be shared.

#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "backends/sim/executor.hpp"
#include "backends/sim/fault_plan.hpp"
#include "backends/sim/finding_printer.hpp"
#include "backends/sim/host_space.hpp"
#include "backends/sim/host_watch.hpp"
#include "backends/sim/managed_pages.hpp"
#include "backends/sim/memories.hpp"
#include "backends/sim/operation.hpp"
#include "backends/sim/profile.hpp"
#include "backends/sim/scheduler.hpp"
#include "backends/sim/sim_device.hpp"
#include "tern/backends/sim.hpp"
#include "tern/detail/core/visibility.hpp"
#include "trace/order_checker.hpp"
#include "trace/trace_writer.hpp"

namespace tern::sim {

class Capture;
class World;

struct SimEvent {
  const World* world = nullptr;
  std::uint64_t number = 0;  // number in the trace; never reused
  std::shared_ptr<RecordPoint> record;
  // If the last record was in a capture: the capture, and the number of the record in it.
  std::shared_ptr<Capture> capture = {};
  std::size_t captured_record = 0;
};

struct SimStream {
  ActorId actor = 0;
  std::uint32_t device = 0;
  ActorKind kind = ActorKind::stream;
  bool is_open = true;
  std::deque<Operation> queue;
  std::uint64_t submitted = 0;
  std::uint64_t passed = 0;
  static constexpr std::uint64_t not_lost = ~std::uint64_t{0};
  std::uint64_t lost_at = not_lost;  // work after this was left undone by a loss
  std::uint64_t last_step = 0;       // step of the simulation at which it last ran
  std::uint64_t time_ns = 0;
  unsigned unready_answers = 0;
  // Rounds of unready answers in which nothing could run, and the time of the first one.
  unsigned idle_rounds = 0;
  std::chrono::steady_clock::time_point idle_since = {};
};

/// Which memory of other devices an operation may use.
enum class Crossing : std::uint8_t {
  none,
  copies,   // any memory, for a peer copy
  granted,  // memory of peers with access, for a kernel
};

/// Held for the duration of one call.
using Entry = std::unique_lock<std::mutex>;

class World {
 public:
  /// With a decision log, the log replaces the policy of the options. `name` is the name in
  /// reports.
  TERN_EXPORT World(const Options& options, const Profile& profile, std::string name = "sim:0",
                    DecisionLog* decisions = nullptr);
  TERN_EXPORT ~World();

  /// Opens the trace of the options. Call it before the first device is added. Fails if the file
  /// cannot be written, and without the checker, which numbers the marks in a trace.
  [[nodiscard]] TERN_EXPORT Result<void> open_trace();
  [[nodiscard]] Result<std::uint32_t> add_device(std::string name) noexcept;
  [[nodiscard]] const Options& options() const noexcept { return options_; }
  [[nodiscard]] const Profile& profile() const noexcept { return profile_; }
  /// Returns whether the host may use managed memory while a device works.
  [[nodiscard]] bool shares_managed() const noexcept {
    return options_.concurrent_managed.value_or(profile_.concurrent_managed);
  }
  [[nodiscard]] SimDevice& device(std::uint32_t index) { return *devices_[index]; }
  /// Locks the simulation for one call. Fails with violation inside a host function or a kernel,
  /// which must not call a device.
  [[nodiscard]] TERN_EXPORT Result<Entry> enter(const char* call, CallSite site = {});
  /// Records an edge of this thread without the lock, so that it never waits for a host function.
  /// The next call applies it.
  void note_edge(RecordKind kind, std::uint64_t event) noexcept;
  /// Returns whether the call is made by a host function or a kernel that the simulation runs.
  [[nodiscard]] bool runs_in_this_thread() const noexcept {
    return runner_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }

  // Call everything below with the simulation locked.

  /// Call it first in every primitive that can fail: counts the call, injects faults, fails on a
  /// lost device, and returns findings of earlier calls that could not fail. An asynchronous fault
  /// is queued on `stream`. The caller handles the kind not_ready.
  [[nodiscard]] Result<std::optional<FaultKind>> begin(std::uint32_t device, FaultClass fault_class,
                                                       const char* call, std::size_t bytes = 0,
                                                       std::optional<std::size_t> stream = {});

  /// Checks a record. A failure means that the operation must not be queued.
  [[nodiscard]] TERN_EXPORT Result<void> judge(const TraceRecord& record,
                                               Crossing crossing = Crossing::none);
  /// The same for calls that cannot fail: the next call that can fail returns the finding.
  void judge_later(const TraceRecord& record);
  /// Records a finding. Fails if the finding must stop the call. The trace already has the record
  /// of a checker finding; other findings are written to it.
  enum class InTrace : std::uint8_t { no, yes };
  Result<void> keep(Finding finding, InTrace in_trace = InTrace::no);
  void keep_later(Finding finding);
  /// Checks a host access to managed memory of a device that must be idle for it. Without a device,
  /// all devices must be idle.
  [[nodiscard]] Result<void> judge_managed(const void* address, std::size_t bytes, TouchKind kind,
                                           CallSite site, std::optional<std::size_t> device);
  /// Checks a host access to memory that the host shares with devices.
  [[nodiscard]] Result<void> judge_host_access(const void* address, std::size_t bytes,
                                               TouchKind kind, CallSite site,
                                               std::optional<std::size_t> device = {});
  /// Reports a free of an invalid block, in addition to the error of the call.
  void note_bad_free(const TraceRecord& record, const void* address);
  /// Reports the use of an invalid handle, in addition to the error of the call.
  void note_dead_handle(const TraceRecord& record, std::string what, std::string fix,
                        std::string action);
  /// Returns the actor of the calling host thread.
  [[nodiscard]] ActorId host_actor();
  /// Applies the edges that threads have noted.
  void apply_edges();
  /// Returns the ranges for the checker; host memory may give several.
  TERN_EXPORT void add_touch(std::vector<Touch>& touches, TouchKind kind, const void* address,
                             std::size_t bytes, bool is_assumed = false,
                             std::uint64_t generation = 0);
  [[nodiscard]] std::vector<Touch>& scratch() {
    scratch_.clear();
    return scratch_;
  }

  [[nodiscard]] Result<std::size_t> add_stream(std::uint32_t device, ActorKind kind,
                                               std::string_view name);
  void end_stream(std::size_t stream);
  /// Sets the number of actors from which on numbers of ended streams are reused, if no verdict
  /// changes.
  void reuse_numbers_from(ActorId count) noexcept { plenty_of_numbers_ = count; }
  [[nodiscard]] SimStream& stream(std::size_t index) { return *streams_[index]; }
  /// Returns unreported findings of work that ran, at the end of a wait.
  [[nodiscard]] Result<void> take_failure_of_work();
  /// Watches the host ranges of the last checked operation if they are pageable, until the host
  /// knows that the operation is complete. Returns the value for Operation::watch.
  [[nodiscard]] std::uint64_t watch(std::size_t stream, CallSite site,
                                    std::span<const HostWatch::Range> ranges, HostWatch::Kind kind);
  [[nodiscard]] bool is_pageable(const void* address) const noexcept {
    return !locate(address) && host_.is_pageable(address);
  }
  void submit(std::size_t stream, Operation&& operation);
  /// Runs streams until it is the host's turn.
  void run_until_host();
  [[nodiscard]] Result<void> wait_for(std::size_t stream, std::uint64_t position, const char* call);
  [[nodiscard]] Result<bool> answer_query(std::size_t stream, std::uint64_t position);
  /// Returns whether a query may answer that this step is not done. It may not if the host knows
  /// that later work is done, and not for ever.
  [[nodiscard]] bool may_deny(std::size_t stream, std::uint64_t step) noexcept;
  void host_knows(std::uint64_t step) noexcept { known_steps_ = std::max(known_steps_, step); }
  [[nodiscard]] TERN_EXPORT Result<void> wait_for_all(std::uint32_t device);
  [[nodiscard]] TERN_EXPORT std::uint64_t hold(std::size_t stream);
  TERN_EXPORT void resume(std::uint64_t hold);
  void run_to_hold(std::uint64_t hold);
  /// Runs streams until the stream has passed the position. The executor may do this wherever a
  /// driver may wait; the checker never counts it.
  void run_towards(std::size_t stream, std::uint64_t position);
  void run_all(std::uint32_t device);
  /// The same for all work that precedes the next operation of the stream.
  void drain(std::size_t stream);
  /// Returns one of `sides` alternatives with equal probability, from the seed.
  [[nodiscard]] std::uint64_t flip(std::uint64_t sides);

  [[nodiscard]] std::uint64_t next_event_number() noexcept { return ++last_event_; }
  [[nodiscard]] std::uint64_t next_generation() noexcept { return ++last_generation_; }
  [[nodiscard]] HostSpace& host() noexcept { return host_; }
  [[nodiscard]] ManagedPages& managed() noexcept { return managed_; }
  [[nodiscard]] std::uint64_t migrated_bytes() const noexcept { return migrated_bytes_; }
  void grant_peer_access(std::uint32_t device, std::uint32_t peer);
  void take_peer_access(std::uint32_t device, std::uint32_t peer) noexcept;
  [[nodiscard]] bool has_peer_access(std::uint32_t device, std::uint32_t peer) const noexcept;
  /// Returns the device with this id, if it belongs to this simulation.
  [[nodiscard]] bool has_device(DeviceId id) const noexcept;
  /// Sets how long a wait or poll stays silent so that another thread can resume a held stream.
  void set_patience(std::chrono::milliseconds patience) noexcept { patience_ = patience; }
  [[nodiscard]] FaultPlan& faults() noexcept { return faults_; }
  [[nodiscard]] OrderChecker& checker() noexcept { return checker_; }
  [[nodiscard]] std::vector<Finding>& findings() noexcept { return findings_; }
  /// Returns live blocks, oldest first, and then pages whose handle was not released.
  [[nodiscard]] std::vector<Finding> leaks() const;
  [[nodiscard]] std::uint64_t trace_hash() const noexcept { return trace_hash_; }
  [[nodiscard]] std::optional<TraceWriter>& trace() noexcept { return trace_; }
  /// Called when the process ends before the simulation does: reports host memory that the program
  /// has changed or freed while a copy could still use it, and closes the trace. In a forked child
  /// the memory is a copy, which the child may change.
  enum class HostMemory : std::uint8_t { compare, ignore };
  TERN_EXPORT void end_at_exit(HostMemory memory) noexcept;
  [[nodiscard]] std::uint64_t time_ns() const noexcept;
  /// Returns the device and offset of a user's address.
  [[nodiscard]] std::optional<std::pair<std::uint32_t, std::uint64_t>> locate(
      const void* address) const noexcept {
    return memories_.locate(address);
  }
  TERN_EXPORT void lose(std::uint32_t device, const Failure& cause) noexcept;
  /// Tells the checker that the calling thread knows that the work of a lost device is over, so its
  /// frees need no wait.
  void learn_of_loss(std::uint32_t device) noexcept;

 private:
  struct Running {
    const SimStream* stream = nullptr;
    const Operation* operation = nullptr;
  };

  /// Reports host memory that was changed or freed while queued work used it. The next wait for the
  /// work returns the finding.
  void tell(const std::vector<HostWatch::Finding>& found);
  /// Runs queued copies of pageable memory as far as they can run.
  void finish_copies();
  [[nodiscard]] Failure refuse_inside(const char* call, CallSite site);
  void note_thread(std::thread::id self);
  /// Reports an access to memory that the operation may not use.
  [[nodiscard]] std::optional<Finding> judge_places(const TraceRecord& record, Crossing crossing);
  /// Reports an access to mapped pages without the access right.
  [[nodiscard]] std::optional<Finding> judge_access(const TraceRecord& record);
  [[nodiscard]] bool is_settled(ActorId actor) const noexcept;
  /// Says once that a copy to the host reads memory without contents.
  void note_zeros(const void* destination, const void* source) noexcept;
  void run_users_code(const SimStream& stream, const Operation& operation);
  void execute_strictly(const SimStream& stream, const Operation& operation);
  void interpret(const SimStream& stream, const Operation& operation);
  [[nodiscard]] std::string context() const;
  [[nodiscard]] std::string replay() const;
  /// Finds ended streams whose numbers may be reused: all their work is done, and no later
  /// operation can conflict with it.
  void retire_ended();
  /// Keeps what the stream has waited for, for later users of its number.
  void hand_over(const SimStream& stream);
  void let_default_learn(ActorId actor);
  void host_learns_of_retired(std::uint32_t device);
  void enqueue(std::size_t stream, Operation&& operation);
  /// Orders the default stream of a device and its blocking streams.
  void wait_for_partners(std::size_t stream);
  void note_idle(std::size_t stream);
  void hash_record(const TraceRecord& record) noexcept;
  [[nodiscard]] bool can_run(const SimStream& stream) const noexcept;
  /// Includes slow streams only if there are no others and the host waits.
  void collect_ready(bool host_waits);
  void run_one(std::size_t stream);
  void execute(SimStream& stream, Operation& operation);
  /// Returns why the operation cannot run: a peer that it needs is lost.
  [[nodiscard]] const std::optional<Failure>* peer_loss(const SimStream& stream,
                                                        const Operation& operation) const noexcept;
  void run_launch(const SimStream& stream, const Operation& operation);
  void finish_release(SimDevice& device, std::uint64_t generation);
  void charge(SimStream& stream, const Operation& operation);
  /// Returns why the stream cannot continue, one line per wait.
  [[nodiscard]] std::vector<std::string> chain_from(std::size_t stream) const;
  [[nodiscard]] Failure deadlock(std::size_t stream, const char* call);
  [[nodiscard]] Failure violation(const Finding& finding) const noexcept;

  const Options options_;
  const Profile profile_;
  const std::string name_;
  std::string trace_path_;
  std::mutex mutex_;
  Scheduler scheduler_;
  FaultPlan faults_;
  OrderChecker checker_;
  std::optional<TraceWriter> trace_;
  HostSpace host_;
  std::vector<std::unique_ptr<SimDevice>> devices_;
  std::vector<std::unique_ptr<SimStream>> streams_;
  std::vector<std::size_t> busy_;    // streams with queued work, ascending
  std::vector<std::size_t> ended_;   // ended streams whose numbers are not reusable yet
  std::deque<std::size_t> retired_;  // ended streams with reusable numbers, oldest first
  std::vector<std::size_t> ready_;
  std::map<std::uint64_t, RecordPoint> holds_;  // open holds, and their positions
  std::uint64_t last_hold_ = 0;
  std::condition_variable_any resumed_;
  std::vector<Touch> scratch_;
  HostWatch watch_;
  std::size_t queued_functions_ = 0;  // queued host functions
  const char* call_ = "";             // the current call, and its call site
  CallSite call_site_ = {};
  std::vector<Finding> findings_;
  FindingPrinter printer_;
  bool is_zeros_noted_ = false;
  std::optional<Failure> parked_;          // of calls that could not fail
  std::optional<Failure> parked_by_work_;  // of work that ran
  bool is_running_ = false;                // an operation is running
  std::uint64_t trace_hash_ = 0;
  std::uint64_t last_event_ = 0;
  std::uint64_t last_generation_ = 0;
  std::uint64_t host_time_ns_ = 0;
  std::uint64_t steps_ = 0;        // operations that have run
  std::uint64_t known_steps_ = 0;  // the last of these that the host knows to be done
  bool is_next_slow_ = false;      // the fault plan delays the next submission
  ManagedPages managed_;
  const Memories memories_{devices_, host_, managed_};
  const Executor executor_{memories_, options_.keeps_contents};
  std::uint64_t migrated_bytes_ = 0;
  std::set<std::pair<std::uint32_t, std::uint32_t>> peer_access_;  // (user, owner) pairs of devices
  Random coins_;
  DecisionLog* const decisions_;
  std::map<std::thread::id, ActorId> threads_;  // with per_thread_host
  struct Edge {
    RecordKind kind;
    std::uint64_t event;
    std::thread::id thread;
  };
  std::mutex edges_mutex_;
  std::vector<Edge> edges_;                     // guarded by edges_mutex_; oldest first
  std::optional<std::thread::id> edge_thread_;  // the thread of the edge that is applied now
  ActorId next_actor_ = 1;                      // 0 is the host
  ActorId plenty_of_numbers_ = 256;             // numbers of ended streams are reused from here on
  std::uint64_t retired_time_ns_ = 0;           // of streams whose numbers were reused
  std::thread::id first_thread_;
  bool is_shared_ = false;                    // several threads have made calls
  std::atomic<std::thread::id> runner_ = {};  // the thread that runs users' code
  Running running_;                           // the operation that it runs
  std::chrono::milliseconds patience_{10'000};
};

}  // namespace tern::sim
