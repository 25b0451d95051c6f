// The simulated world: devices that are peers, their streams and events, the host, and the checker
// that watches all of them.
//
// Nothing here runs by itself. A call is judged by the checker, then queued; whenever a call comes
// in, the scheduler lets the host or a stream go on until it is the host's turn. A host wait runs
// streams until what it waits for has happened; if nothing can run any more, that is a deadlock and
// is said so. One lock guards everything, which is also what makes a run repeatable.

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
#include <thread>
#include <utility>
#include <vector>

#include "backends/sim/executor.hpp"
#include "backends/sim/fault_plan.hpp"
#include "backends/sim/host_space.hpp"
#include "backends/sim/host_watch.hpp"
#include "backends/sim/managed_pages.hpp"
#include "backends/sim/memories.hpp"
#include "backends/sim/operation.hpp"
#include "backends/sim/profile.hpp"
#include "backends/sim/report_printer.hpp"
#include "backends/sim/scheduler.hpp"
#include "backends/sim/sim_device.hpp"
#include "tern/backends/sim.hpp"
#include "trace/order_checker.hpp"
#include "trace/trace_writer.hpp"

namespace tern::sim {

class World;

struct SimEvent {
  const World* world = nullptr;
  std::uint64_t number = 0;  // in the trace; never used again
  std::shared_ptr<RecordPoint> record;
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
  std::uint64_t lost_at = not_lost;  // what a loss has left undone begins behind this
  std::uint64_t last_step = 0;       // of the world, when it ran last
  std::uint64_t time_ns = 0;
  unsigned unready_answers = 0;
  // Rounds of unready answers in which nothing could run, and when the first of them was.
  unsigned idle_rounds = 0;
  std::chrono::steady_clock::time_point idle_since = {};
};

/// Which memory of other devices an operation may name.
enum class Crossing : std::uint8_t {
  none,
  copies,   // a peer copy: any
  granted,  // a kernel: that of peers it was given access to
};

/// Held for the duration of one call.
using Entry = std::unique_lock<std::mutex>;

class World {
 public:
  /// With a decision log the schedule is what the log says, and not the options' policy.
  /// `name` is what reports call it.
  World(const Options& options, const Profile& profile, std::string name = "sim:0",
        DecisionLog* decisions = nullptr);
  ~World();

  /// Opens the trace the options ask for; before the first device. Refused: a file that cannot be
  /// written, and a trace without the checker, which counts what marks in it refer to.
  [[nodiscard]] Result<void> open_trace();
  [[nodiscard]] Result<std::uint32_t> add_device(std::string name) noexcept;
  [[nodiscard]] const Options& options() const noexcept { return options_; }
  [[nodiscard]] const Profile& profile() const noexcept { return profile_; }
  /// May the host use managed memory while a device works?
  [[nodiscard]] bool shares_managed() const noexcept {
    return options_.concurrent_managed.value_or(profile_.concurrent_managed);
  }
  [[nodiscard]] SimDevice& device(std::uint32_t index) { return *devices_[index]; }
  /// Locks the world for one call. Refused with violation inside a host function or a kernel: the
  /// world is busy running it, and no device may be called from there.
  [[nodiscard]] Result<Entry> enter(const char* call, CallSite site = {});
  /// Is this call made by a host function or a kernel that the world runs?
  [[nodiscard]] bool runs_in_this_thread() const noexcept {
    return runner_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }

  // All of what follows with the world locked.

  /// Every primitive that can fail begins here: counts the call, lets a fault happen, refuses on a
  /// lost device, and reports what a call that could not fail has found. A fault that is queued
  /// goes to `stream`. The kind is left for the caller to see to if it is not_ready.
  [[nodiscard]] Result<std::optional<FaultKind>> begin(std::uint32_t device, FaultClass fault_class,
                                                       const char* call, std::size_t bytes = 0,
                                                       std::optional<std::size_t> stream = {});

  /// The checker's word on a record: a failure means that it must not happen.
  [[nodiscard]] Result<void> judge(const TraceRecord& record, Crossing crossing = Crossing::none);
  /// The same for calls that cannot fail: the finding waits for the next one that can.
  void judge_later(const TraceRecord& record);
  /// Keeps a finding made here; a failure if it must stop the call.
  /// The trace has the record a finding of the checker is about; others are written to it.
  enum class InTrace : std::uint8_t { no, yes };
  Result<void> keep(Finding finding, InTrace in_trace = InTrace::no);
  void keep_later(Finding finding);
  /// The host touches managed memory of a device that must be idle for that; unset: nobody said
  /// which, and all must be.
  [[nodiscard]] Result<void> judge_managed(const void* address, std::size_t bytes, TouchKind kind,
                                           CallSite site, std::optional<std::size_t> device);
  /// The host touches memory that it shares with devices.
  [[nodiscard]] Result<void> judge_host_access(const void* address, std::size_t bytes,
                                               TouchKind kind, CallSite site,
                                               std::optional<std::size_t> device = {});
  /// Somebody freed what is no live block: a finding beside the error that the call returns.
  void note_bad_free(const TraceRecord& record, const void* address);
  /// Somebody used a handle that is gone: a finding beside the error that the call returns.
  void note_dead_handle(const TraceRecord& record, std::string what, std::string fix,
                        std::string action);
  /// Which host thread this is to the checker.
  [[nodiscard]] ActorId host_actor();
  /// Ranges as the checker knows them; may be several for host memory.
  void add_touch(std::vector<Touch>& touches, TouchKind kind, const void* address,
                 std::size_t bytes, bool is_assumed = false, std::uint64_t generation = 0);
  [[nodiscard]] std::vector<Touch>& scratch() {
    scratch_.clear();
    return scratch_;
  }

  [[nodiscard]] Result<std::size_t> add_stream(std::uint32_t device, ActorKind kind,
                                               std::string_view name);
  void end_stream(std::size_t stream);
  /// Numbers of ended streams are used again from so many on, where that changes no verdict.
  void reuse_numbers_from(ActorId count) noexcept { plenty_of_numbers_ = count; }
  [[nodiscard]] SimStream& stream(std::size_t index) { return *streams_[index]; }
  /// What was found while work ran, if nobody was told: for the end of a wait.
  [[nodiscard]] Result<void> take_failure_of_work();
  /// The operation that was judged last uses such ranges of host memory. Those that are pageable
  /// are watched until the host knows that it is over. Returns what Operation::watch is to be.
  [[nodiscard]] std::uint64_t watch(std::size_t stream, CallSite site,
                                    std::span<const HostWatch::Range> ranges, HostWatch::Kind kind);
  [[nodiscard]] bool is_pageable(const void* address) const noexcept {
    return !locate(address) && host_.is_pageable(address);
  }
  void submit(std::size_t stream, Operation&& operation);
  /// Lets others go on until it is the host's turn.
  void run_until_host();
  [[nodiscard]] Result<void> wait_for(std::size_t stream, std::uint64_t position, const char* call);
  [[nodiscard]] Result<bool> answer_query(std::size_t stream, std::uint64_t position);
  /// May a query say that this step of the stream is not done? Not if the host knows of anything
  /// later that is, and not for ever.
  [[nodiscard]] bool may_deny(std::size_t stream, std::uint64_t step) noexcept;
  void host_knows(std::uint64_t step) noexcept { known_steps_ = std::max(known_steps_, step); }
  [[nodiscard]] Result<void> wait_for_all(std::uint32_t device);
  [[nodiscard]] std::uint64_t hold(std::size_t stream);
  void let_go(std::uint64_t hold);
  void run_to_hold(std::uint64_t hold);
  /// Runs what can run until the stream has passed the position. The executor may add this wherever
  /// a driver may; the checker never counts it.
  void run_towards(std::size_t stream, std::uint64_t position);
  void run_all(std::uint32_t device);
  /// The same for all that the next operation of the stream would come after.
  void drain(std::size_t stream);
  /// One of `sides` with equal chances, from the seed.
  [[nodiscard]] std::uint64_t flip(std::uint64_t sides);

  [[nodiscard]] std::uint64_t next_event_number() noexcept { return ++last_event_; }
  [[nodiscard]] std::uint64_t next_generation() noexcept { return ++last_generation_; }
  [[nodiscard]] HostSpace& host() noexcept { return host_; }
  [[nodiscard]] ManagedPages& managed() noexcept { return managed_; }
  [[nodiscard]] std::uint64_t migrated_bytes() const noexcept { return migrated_bytes_; }
  void grant_peer_access(std::uint32_t device, std::uint32_t peer);
  void take_peer_access(std::uint32_t device, std::uint32_t peer) noexcept;
  [[nodiscard]] bool has_peer_access(std::uint32_t device, std::uint32_t peer) const noexcept;
  /// The device with that number in the process, if it is in this world.
  [[nodiscard]] bool has_device(DeviceId id) const noexcept;
  /// How long a wait or poll stays quiet for other threads to let a held stream go.
  void set_patience(std::chrono::milliseconds patience) noexcept { patience_ = patience; }
  [[nodiscard]] FaultPlan& faults() noexcept { return faults_; }
  [[nodiscard]] OrderChecker& checker() noexcept { return checker_; }
  [[nodiscard]] std::vector<Finding>& findings() noexcept { return findings_; }
  /// Blocks that are live, oldest first, then pages whose handle was not given up.
  [[nodiscard]] std::vector<Finding> leaks() const;
  [[nodiscard]] std::uint64_t trace_hash() const noexcept { return trace_hash_; }
  [[nodiscard]] std::optional<TraceWriter>& trace() noexcept { return trace_; }
  /// The process ends and the world does not.
  void close_trace_at_exit() noexcept;
  [[nodiscard]] std::uint64_t time_ns() const noexcept;
  /// Which device and offset a user's address belongs to.
  [[nodiscard]] std::optional<std::pair<std::uint32_t, std::uint64_t>> locate(
      const void* address) const noexcept {
    return memories_.locate(address);
  }
  void lose(std::uint32_t device, const Failure& cause) noexcept;
  /// The calling thread knows that the work of a lost device is over: its releases need no wait,
  /// and are no findings.
  void learn_of_loss(std::uint32_t device) noexcept;

 private:
  struct Running {
    const SimStream* stream = nullptr;
    const Operation* operation = nullptr;
  };

  /// Memory that queued work uses was changed or freed: whoever waits for the work hears of it.
  void tell(const std::vector<HostWatch::Finding>& found);
  /// Runs queued copies of pageable memory, as far as they can run.
  void finish_copies();
  [[nodiscard]] Failure refuse_inside(const char* call, CallSite site);
  void note_thread(std::thread::id self);
  /// A touch of memory the operation may not name.
  [[nodiscard]] std::optional<Finding> judge_places(const TraceRecord& record, Crossing crossing);
  /// A touch of mapped pages that nobody, or no writer, was given access to.
  [[nodiscard]] std::optional<Finding> judge_access(const TraceRecord& record);
  [[nodiscard]] bool is_settled(ActorId actor) const noexcept;
  void run_users_code(const SimStream& stream, const Operation& operation);
  void execute_strictly(const SimStream& stream, const Operation& operation);
  [[nodiscard]] std::string context() const;
  [[nodiscard]] std::string replay() const;
  /// Finds the ended streams whose numbers may be used again: all they were given is done, and no
  /// later operation can collide with it.
  void retire_ended();
  /// Keeps what the stream waited for, for those who come after it whoever has its number then.
  void hand_over(const SimStream& stream);
  void let_default_learn(ActorId actor);
  void host_learns_of_retired(std::uint32_t device);
  void enqueue(std::size_t stream, Operation&& operation);
  /// The default stream of a device and its blocking streams take turns.
  void wait_for_partners(std::size_t stream);
  void note_idle(std::size_t stream);
  void hash_record(const TraceRecord& record) noexcept;
  [[nodiscard]] bool can_run(const SimStream& stream) const noexcept;
  /// Slow streams only if there are no others and the host waits.
  void collect_ready(bool host_waits);
  void run_one(std::size_t stream);
  void execute(SimStream& stream, Operation& operation);
  /// Why the operation cannot be done: a peer that it needs is lost.
  [[nodiscard]] const std::optional<Failure>* peer_loss(const SimStream& stream,
                                                        const Operation& operation) const noexcept;
  void run_launch(const SimStream& stream, const Operation& operation);
  void finish_release(SimDevice& device, std::uint64_t generation);
  void charge(SimStream& stream, const Operation& operation);
  /// Why the stream cannot go on, one line per wait.
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
  std::vector<std::size_t> busy_;    // streams with something queued, ascending
  std::vector<std::size_t> ended_;   // streams whose numbers are not free yet
  std::deque<std::size_t> retired_;  // and those whose numbers are, oldest first
  std::vector<std::size_t> ready_;
  std::map<std::uint64_t, RecordPoint> holds_;  // closed ones, and where they stand
  std::uint64_t last_hold_ = 0;
  std::condition_variable_any let_go_;
  std::vector<Touch> scratch_;
  HostWatch watch_;
  std::size_t queued_functions_ = 0;  // of the host
  const char* call_ = "";             // the one that is under way, and where it was made
  CallSite call_site_ = {};
  std::vector<Finding> findings_;
  ReportPrinter printer_;
  std::optional<Failure> parked_;          // of calls that could not fail
  std::optional<Failure> parked_by_work_;  // of work that ran
  bool is_running_ = false;                // an operation, just now
  std::uint64_t trace_hash_ = 0;
  std::uint64_t last_event_ = 0;
  std::uint64_t last_generation_ = 0;
  std::uint64_t host_time_ns_ = 0;
  std::uint64_t steps_ = 0;        // operations that have run
  std::uint64_t known_steps_ = 0;  // the last of these that the host knows to be done
  bool is_next_slow_ = false;      // the fault plan's word on what is submitted next
  ManagedPages managed_;
  const Memories memories_{devices_, host_, managed_};
  const Executor executor_{memories_};
  std::uint64_t migrated_bytes_ = 0;
  std::set<std::pair<std::uint32_t, std::uint32_t>> peer_access_;  // who may use whose memory
  Random coins_;
  DecisionLog* const decisions_;
  std::map<std::thread::id, ActorId> threads_;  // with per_thread_host
  ActorId next_actor_ = 1;                      // 0 is the host
  ActorId plenty_of_numbers_ = 256;             // ended ones are used again from here on
  std::uint64_t retired_time_ns_ = 0;           // of streams whose place another has
  std::thread::id first_thread_;
  bool is_shared_ = false;                    // several threads have called
  std::atomic<std::thread::id> runner_ = {};  // the thread that is inside users' code
  Running running_;                           // what it runs
  std::chrono::milliseconds patience_{10'000};
};

}  // namespace tern::sim
