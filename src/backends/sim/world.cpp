// The simulated devices of a process as one world. begin() applies the fault plan to a call,
// judge() passes each record to the checker, and keep() decides what happens to a finding: it is
// written to the trace, printed, and collected, returned as a violation, or the process aborts.

#include "backends/sim/world.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>
#include <span>
#include <string_view>
#include <utility>

#include "backends/sim/interpreted_launch.hpp"
#include "backends/sim/stray_access.hpp"
#include "backends/sim/strict_window.hpp"
#include "core/no_host_memory.hpp"
#include "tern/core/bytes.hpp"
#include "trace/recording.hpp"

namespace tern::sim {
namespace {

/// After this many consecutive "not ready" answers a stream continues, so that polling loops end.
constexpr unsigned max_unready_answers = 64;
/// After this many such rounds in which nothing could run, the polling loop is reported as endless.
constexpr unsigned max_idle_rounds = 1024;
/// With more actors than this, the numbers of ended streams are reused, although a report could
/// have named them.
constexpr ActorId max_named_actors = 512;
/// Maximum number of simulations that trace to files of one name.
constexpr unsigned max_traces = 100;
/// The fill byte of discarded managed memory.
constexpr int discarded_byte = 0xDD;

std::string_view name_of(Policy policy) noexcept {
  switch (policy) {
    case Policy::mix:
      return "mix";
    case Policy::lazy:
      return "lazy";
    case Policy::eager:
      return "eager";
    case Policy::random:
      return "random";
    case Policy::skewed:
      return "skewed";
    case Policy::stall_one:
      return "stall-one";
    case Policy::pct:
      return "pct";
  }
  return "unknown";
}

/// Virtual time saturates at its maximum.
std::uint64_t later(std::uint64_t time_ns, std::uint64_t duration_ns) noexcept {
  return time_ns + std::min(duration_ns, ~std::uint64_t{0} - time_ns);
}

/// Sentences begin with a capital letter, labels do not.
std::string capitalised(std::string text) {
  if (!text.empty() && text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 32);
  return text;
}

}  // namespace

World::World(const Options& options, const Profile& profile, std::string name,
             DecisionLog* decisions)
    : options_(options),
      profile_(profile),
      name_(std::move(name)),
      scheduler_(options.policy, options.pct_depth, options.seed, decisions),
      faults_(FaultPlan::try_parse(options.faults, options.seed).value()),
      host_(options.reuse),
      coins_(options.seed, Purpose::coins),
      decisions_(decisions) {
  checker_.set_context(context(), replay());
}

World::~World() {
  // Blocks that are still live at this point have leaked.
  if (trace_) trace_->write({.kind = RecordKind::shutdown});
  for (const std::unique_ptr<SimDevice>& device : devices_) forget_reservation(*device->memory);
}

std::string World::context() const {
  return fmt::format("{}  seed {:#x}  schedule {}", name_, options_.seed,
                     decisions_ != nullptr ? "all" : name_of(scheduler_.policy()));
}

std::string World::replay() const {
  const std::string file = trace_path_.empty() ? "" : fmt::format("  ({})", trace_path_);
  const char* doubt = is_shared_ ? "  (several threads made calls: the schedule may differ)" : "";
  std::string settings = fmt::format("TERN_SIM_SEED={:#x}", options_.seed);
  if (options_.policy != Policy::mix && decisions_ == nullptr) {
    settings += fmt::format(" TERN_SIM_SCHEDULE={}", name_of(options_.policy));
    if (options_.policy == Policy::pct) settings += fmt::format(":{}", options_.pct_depth);
  }
  if (options_.reuse == Reuse::friendly) settings += " TERN_SIM_REUSE=friendly";
  if (!options_.profile.empty() && options_.profile != "h200") {
    settings += fmt::format(" TERN_SIM_PROFILE='{}'", options_.profile);
  }
  if (!options_.faults.empty()) settings += fmt::format(" TERN_SIM_FAULTS='{}'", options_.faults);
  return settings + file + doubt;
}

Result<void> World::open_trace() {
  TraceWriter::Options trace{context(), replay(), options_.trace_memory_bytes};
  if (options_.trace.empty() && options_.trace_memory_bytes == 0) return {};
  if (!options_.check) {
    return Failure(ErrorCode::invalid_argument,
                   "the simulated device does not accept {name}='{value}' with check=off: {why}.")
        .with("name", "trace")
        .with("why", "the checker counts the marks of a trace")
        .with("value", options_.trace);
  }
  if (options_.trace.empty()) {
    trace_ = TraceWriter::to_memory(trace);
    return {};
  }
  trace.limit_bytes = TraceWriter::Options().limit_bytes;
  for (unsigned number = 1;; ++number) {
    trace_path_ = number == 1 ? options_.trace : fmt::format("{}.{}", options_.trace, number);
    trace.replay = replay();
    Result<TraceWriter> writer = TraceWriter::try_open(trace_path_, trace);
    if (writer) {
      trace_ = *std::move(writer);
      checker_.set_context(trace.context, trace.replay);
      return {};
    }
    // The file is in use by another simulation. If all names are in use, report it.
    if (writer.failure().code() != ErrorCode::capacity || number == max_traces) {
      return writer.failure();
    }
  }
}

void World::end_at_exit(HostMemory memory) noexcept try {
  // The thread that holds the lock may hold it for ever. The trace then ends at its last chunk.
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  if (memory == HostMemory::compare && !watch_.is_empty()) {
    // Nothing runs any more: kernels and host functions may use objects that are destroyed by now.
    is_running_ = true;
    call_ = "exit";
    std::vector<HostWatch::Finding> found;
    watch_.inspect(found);
    tell(found);
  }
  if (!trace_) return;
  trace_->write({.kind = RecordKind::shutdown});
  static_cast<void>(trace_->close());
} catch (const std::bad_alloc&) {
  // Without host memory the report cannot be written.
}

Result<std::uint32_t> World::add_device(std::string name) noexcept {
  try {
    const std::size_t page = 2 * mib;
    const std::size_t bytes =
        std::max(page, options_.memory_bytes.value_or(profile_.memory_bytes) / page * page);
    // Addresses are plentiful on a real device. A large device has enough without extra ones.
    const std::size_t window = std::max(bytes, std::min(4 * bytes, 16 * gib));
    Result<std::unique_ptr<AliasMemory>> memory =
        AliasMemory::try_make(bytes, window, options_.seed);
    if (!memory) return memory.failure();
    auto device = std::make_unique<SimDevice>();
    const auto index = static_cast<std::uint32_t>(devices_.size());
    device->name = std::move(name);
    device->space = index + 1;
    device->memory = *std::move(memory);
    device->allocator.emplace(bytes, options_.reuse);
    device->pages.emplace(*device->memory, *device->allocator, options_.reuse);
    // The memory is watched last, because watched memory must not be freed if a later step fails;
    // and no stream may remain without its device.
    devices_.push_back(std::move(device));
    const std::size_t streams = streams_.size();
    try {
      const Result<std::size_t> stream = add_stream(index, ActorKind::default_stream, "default");
      if (!stream) {
        devices_.pop_back();
        return stream.failure();
      }
      devices_.back()->default_stream = *stream;
    } catch (const std::bad_alloc&) {
      streams_.resize(streams);
      devices_.pop_back();
      throw;
    }
    watch_reservation(*devices_.back()->memory, devices_.back()->name);
    return index;
  } catch (const std::bad_alloc&) {
    return no_host_memory("a simulated device");
  }
}

bool World::has_device(DeviceId id) const noexcept {
  return std::ranges::any_of(devices_, [&](const auto& device) { return device->id == id; });
}

// --- Threads

Result<Entry> World::enter(const char* call, CallSite site) {
  const std::thread::id self = std::this_thread::get_id();
  if (runs_in_this_thread()) return refuse_inside(call, site);
  Entry entry(mutex_);
  if (self != first_thread_) note_thread(self);
  call_ = call;
  call_site_ = site;
  if (options_.per_thread_host) apply_edges();
  return entry;
}

void World::note_edge(RecordKind kind, std::uint64_t event) noexcept try {
  const std::lock_guard lock(edges_mutex_);
  edges_.push_back({kind, event, std::this_thread::get_id()});
} catch (const std::bad_alloc&) {
  // The checker misses the order.
}

void World::apply_edges() {
  std::vector<Edge> edges;
  {
    const std::lock_guard lock(edges_mutex_);
    edges.swap(edges_);
  }
  for (const Edge& edge : edges) {
    edge_thread_ = edge.thread;
    judge_later({.kind = edge.kind, .event = edge.event});
  }
  edge_thread_.reset();
}

Failure World::refuse_inside(const char* call, CallSite site) {
  const Operation& inside = *running_.operation;
  const bool is_kernel = inside.kind == Operation::Kind::launch;
  Finding finding = checker_.report(
      FindingCode::call_in_host_function,
      {.operation = is_kernel ? OperationKind::kernel : OperationKind::call,
       .actor = running_.stream->actor,
       .name = is_kernel ? std::string_view(inside.launch->name) : std::string_view(),
       .site = inside.site},
      {.what = fmt::format("a {} calls {}() on the device that runs it",
                           is_kernel ? "kernel" : "host function", call),
       .fix = "make the call on the host, after waiting for the stream"},
      inside.sequence);
  if (site.is_known()) finding.site = site;
  const Failure failure = violation(finding);
  // The call fails in every mode, because it cannot continue.
  static_cast<void>(keep(std::move(finding)));
  return failure;
}

void World::note_thread(std::thread::id self) {
  if (first_thread_ == std::thread::id()) {
    first_thread_ = self;
  } else if (!is_shared_) {
    is_shared_ = true;
    checker_.set_context(context(), replay());
  }
}

ActorId World::host_actor() {
  if (!options_.per_thread_host) return 0;
  const std::thread::id self = edge_thread_.value_or(std::this_thread::get_id());
  if (threads_.empty()) return threads_.emplace(self, 0).first->second;
  const auto [thread, is_new] = threads_.emplace(self, next_actor_);
  if (is_new) {
    // The thread that started this one did not announce it, so this one knows of no earlier work.
    const ActorId actor = next_actor_++;
    const TraceRecord record{.kind = RecordKind::actor_begins,
                             .actor_kind = ActorKind::host,
                             .actor = actor,
                             .host = actor};
    hash_record(record);
    if (options_.check) static_cast<void>(checker_.check(record));
    if (trace_) trace_->write(record);
  }
  return thread->second;
}

void World::grant_peer_access(std::uint32_t device, std::uint32_t peer) {
  peer_access_.emplace(device, peer);
}

void World::take_peer_access(std::uint32_t device, std::uint32_t peer) noexcept {
  peer_access_.erase({device, peer});
}

bool World::has_peer_access(std::uint32_t device, std::uint32_t peer) const noexcept {
  return peer_access_.contains({device, peer});
}

void World::lose(std::uint32_t index, const Failure& cause) noexcept {
  SimDevice& lost = *devices_[index];
  if (lost.loss) return;
  lost.loss = cause;
  // Queued work will never run. It counts as complete, so that no thread waits for ever.
  watch_.lost(index);
  for (const std::unique_ptr<SimStream>& stream : streams_) {
    if (stream->device != index) continue;
    queued_functions_ -= static_cast<std::size_t>(
        std::ranges::count(stream->queue, Operation::Kind::call, &Operation::kind));
    stream->queue.clear();
    if (stream->passed != stream->submitted) stream->lost_at = stream->passed;
    stream->passed = stream->submitted;
  }
  learn_of_loss(index);
  std::erase_if(busy_, [&](std::size_t i) { return streams_[i]->queue.empty(); });
  while (!lost.pending.empty()) finish_release(lost, lost.pending.front().generation);
}

void World::learn_of_loss(std::uint32_t index) noexcept {
  for (const std::unique_ptr<SimStream>& stream : streams_) {
    if (stream->device != index) continue;
    judge_later({.kind = RecordKind::host_wait_mark,
                 .actor = stream->actor,
                 .sequence = checker_.sequence(stream->actor)});
  }
  host_learns_of_retired(index);
}

Result<std::optional<FaultKind>> World::begin(std::uint32_t index, FaultClass fault_class,
                                              const char* call, std::size_t bytes,
                                              std::optional<std::size_t> stream) {
  SimDevice& device = *devices_[index];
  is_next_slow_ = false;
  if (device.loss) return *device.loss;
  // Queries and waits must not report findings of earlier calls.
  const bool is_question = fault_class == FaultClass::query || fault_class == FaultClass::sync ||
                           fault_class == FaultClass::info;
  if ((parked_ || parked_by_work_) && !is_question) {
    const Failure parked = parked_ ? *parked_ : *parked_by_work_;
    (parked_ ? parked_ : parked_by_work_).reset();
    finish_copies();
    return parked;
  }
  // Queries take no host time, and neither do calls that a program makes once.
  const bool is_made = fault_class == FaultClass::stream || fault_class == FaultClass::load;
  if (!is_question && !is_made) host_time_ns_ = later(host_time_ns_, profile_.submit_ns);
  const std::optional<FaultKind> fault = faults_.next(fault_class);
  if (!fault) return fault;
  switch (*fault) {
    case FaultKind::oom:
    case FaultKind::fragmented:
      return Failure(
                 ErrorCode::out_of_memory,
                 "{device} could not allocate {requested}: {call} failed by the fault plan with "
                 "{free} of {total} free. {why}.")
          .with("device", devices_[index]->name)
          .with_bytes("requested", bytes)
          .with("call", call)
          .with_bytes("free", *fault == FaultKind::oom ? 0 : device.allocator->free_bytes())
          .with_bytes("total", device.allocator->total_bytes())
          .with("code", std::uint64_t{2})
          .with("why",
                *fault == FaultKind::oom ? "Free something" : "No free range is long enough");
    case FaultKind::refuse:
    case FaultKind::fail:
      return Failure(ErrorCode::driver,
                     "{call} on {device} returned {name} ({code}): the fault plan injected the "
                     "failure.")
          .with("device", devices_[index]->name)
          .with("call", call)
          .with("name", *fault == FaultKind::fail ? "injected failure" : "operation not permitted")
          .with("code", std::uint64_t{1});
    case FaultKind::lost:
      lose(index, Failure(ErrorCode::device_lost)
                      .with("device", devices_[index]->name)
                      .with("call", call)
                      .with("name", "injected loss")
                      .with("code", std::uint64_t{700}));
      return *device.loss;
    case FaultKind::fault: {
      // Queued in the place of the work: the device is lost when the stream reaches it.
      Operation operation;
      operation.kind = Operation::Kind::fault;
      operation.generation = index;
      submit(stream.value_or(device.default_stream), std::move(operation));
      if (device.loss) return *device.loss;
      return fault;
    }
    case FaultKind::slow:
      is_next_slow_ = true;
      return fault;
    case FaultKind::not_ready:
      return fault;
  }
  return fault;
}

// --- The checker

void World::hash_record(const TraceRecord& record) noexcept {
  std::uint64_t state = trace_hash_;
  state = mix_in(state, static_cast<std::uint64_t>(record.kind) << 8 |
                            static_cast<std::uint64_t>(record.operation));
  state = mix_in(state, static_cast<std::uint64_t>(record.actor) << 32 | record.host);
  state = mix_in(state, record.event);
  state = mix_in(state, record.sequence);
  state = mix_in(state, record.name);
  for (const Touch& touch : record.touches) {
    state = mix_in(state, static_cast<std::uint64_t>(touch.kind) << 32 | touch.range.space);
    state = mix_in(state, touch.range.offset);
    state = mix_in(state, touch.range.bytes);
  }
  trace_hash_ = state;
}

Failure World::violation(const Finding& finding) const noexcept {
  return Failure(ErrorCode::violation, "{finding}: {what}. {fix}.")
      .with("finding", fmt::format("{} {}", code_text(finding.code), title(finding.code)))
      .with("what", finding.what)
      .with("fix", capitalised(finding.fix));
}

Result<void> World::judge(const TraceRecord& given, Crossing crossing) {
  TraceRecord record = given;
  record.host = host_actor();
  const bool acts = record.kind == RecordKind::operation ||
                    record.kind == RecordKind::record_event ||
                    record.kind == RecordKind::wait_event;
  if (acts) let_default_learn(record.actor);
  hash_record(record);
  if (!options_.check) return {};
  if (std::optional<Finding> abroad = judge_places(record, crossing)) {
    if (Result<void> kept = keep(*std::move(abroad)); !kept) return kept;
  }
  if (std::optional<Finding> closed = judge_access(record)) {
    if (Result<void> kept = keep(*std::move(closed)); !kept) return kept;
  }
  const bool must_apply = options_.mode != Mode::raise;
  std::optional<Finding> finding = checker_.check(
      record, must_apply ? OrderChecker::OnFinding::apply : OrderChecker::OnFinding::leave_out);
  if (trace_) {
    record.was_refused = finding && !must_apply;
    trace_->write(record);
  }
  if (finding) return keep(*std::move(finding), InTrace::yes);
  const bool learns =
      record.kind == RecordKind::host_wait_mark || record.kind == RecordKind::host_wait_event;
  if (learns && !watch_.is_empty()) {
    std::vector<HostWatch::Finding> found;
    watch_.host_learned(
        [&](ActorId actor, std::uint64_t last) { return checker_.knows(record.host, actor, last); },
        found);
    tell(found);
  }
  return {};
}

std::optional<Finding> World::judge_places(const TraceRecord& record, Crossing crossing) {
  if (record.kind != RecordKind::operation || devices_.size() < 2) return std::nullopt;
  if (crossing == Crossing::copies) return std::nullopt;
  for (const Touch& touch : record.touches) {
    if (touch.range.space == 0 || touch.range.space == record.device + 1) continue;
    const std::uint32_t owner = touch.range.space - 1;
    if (crossing == Crossing::granted && has_peer_access(record.device, owner)) continue;
    TraceRecord about = record;
    about.touches = {&touch, 1};
    const std::string& here = devices_[record.device]->name;
    const std::string& there = devices_[owner]->name;
    if (crossing == Crossing::granted) {
      return checker_.report(
          FindingCode::no_peer_access, about,
          {.what = fmt::format("kernel \"{}\" on {} uses memory of {} without peer access",
                               record.name, here, there),
           .fix = fmt::format("call enable_peer_access on {} with {} first, or copy the bytes",
                              here, there)});
    }
    return checker_.report(
        FindingCode::wrong_device, about,
        {.what = fmt::format("a stream of {} uses memory of {}", here, there),
         .fix = fmt::format("use a stream of {}, or copy_from_peer between the two", there)});
  }
  return std::nullopt;
}

std::optional<Finding> World::judge_access(const TraceRecord& record) {
  if (record.kind != RecordKind::operation) return std::nullopt;
  for (const Touch& touch : record.touches) {
    const bool writes = touch.kind == TouchKind::write || touch.kind == TouchKind::read_write;
    if (touch.range.space == 0 || (!writes && touch.kind != TouchKind::read)) continue;
    const SimDevice& owner = *devices_[touch.range.space - 1];
    // Only offsets in the window are mapped.
    if (touch.range.offset < owner.memory->bytes()) continue;
    const PageAccess access = owner.pages->access_to(touch.range.offset, touch.range.bytes);
    if (access == PageAccess::read_write || (access == PageAccess::read && !writes)) continue;
    TraceRecord about = record;
    about.touches = {&touch, 1};
    return checker_.report(FindingCode::out_of_bounds, about,
                           {.what = fmt::format("pages are {}, but {}", writes ? "written" : "read",
                                                access == PageAccess::none
                                                    ? "no access to them was granted after mapping"
                                                    : "only read access was granted"),
                            .fix = "call set_access for the range after mapping it"});
  }
  return std::nullopt;
}

Result<void> World::keep(Finding finding, InTrace in_trace) {
  if (trace_ && in_trace == InTrace::no) trace_->write_finding(finding);
  if (trace::is_recording()) {
    trace::record(trace::EventKind::finding, {.site = finding.site, .text = finding.what});
    trace::dump_after_failure();
  }
  if (options_.mode == Mode::abort) {
    if (trace_) static_cast<void>(trace_->close());
    // The only place in the library that prints and aborts; Mode::abort asked for it.
    std::fputs(finding.text().c_str(), stderr);
    std::abort();
  }
  if (options_.print_findings) printer_.print(finding);
  findings_.push_back(std::move(finding));
  if (options_.mode == Mode::collect) return {};
  const Failure failure = violation(findings_.back());
  finish_copies();
  return failure;
}

void World::finish_copies() {
  // The exception will unwind past vectors that queued copies write to, and a crash there would
  // hide it. A device may run at any time, so run the copies now.
  if (is_running_) return;
  const auto is_foreign = [&](const void* address) {
    return address != nullptr && is_pageable(address);
  };
  const auto uses_pageable = [&](const Operation& operation) {
    return is_foreign(operation.destination) || is_foreign(operation.source) ||
           is_foreign(operation.copy_2d.destination) || is_foreign(operation.copy_2d.source);
  };
  for (const std::size_t index : std::vector(busy_)) {
    const SimStream& stream = *streams_[index];
    const auto last = std::find_if(stream.queue.rbegin(), stream.queue.rend(), uses_pageable);
    if (last == stream.queue.rend()) continue;
    run_towards(index, stream.submitted - static_cast<std::uint64_t>(last - stream.queue.rbegin()));
  }
  // Unwinding destroys these vectors before the host has waited. This is not a second error.
  watch_.forget_contents();
}

std::uint64_t World::watch(std::size_t index, CallSite site,
                           std::span<const HostWatch::Range> ranges, HostWatch::Kind kind) {
  if (!options_.check) return 0;
  std::vector<HostWatch::Range> pageable;
  std::ranges::copy_if(ranges, std::back_inserter(pageable), [&](const HostWatch::Range& range) {
    return range.bytes > 0 && is_pageable(range.address) && !host_.is_registered(range.address);
  });
  if (pageable.empty()) return 0;
  const SimStream& stream = *streams_[index];
  std::vector<HostWatch::Finding> found;
  const std::uint64_t number = watch_.submitted(
      {stream.device, stream.actor, checker_.sequence(stream.actor), site, scratch_}, pageable,
      kind, queued_functions_ > 0 ? HostWatch::Queued::anything : HostWatch::Queued::known_ranges,
      found);
  tell(found);
  return number;
}

void World::tell(const std::vector<HostWatch::Finding>& found) {
  for (const HostWatch::Finding& one : found) {
    const HostWatch::Operation& user = one.operation;
    const bool is_freed = one.change == HostWatch::Change::freed;
    const FindingCode code =
        is_freed ? FindingCode::freed_in_flight : FindingCode::changed_in_flight;
    const std::string mark = checker_.mark_text(user.actor, user.sequence);
    std::vector<Touch> memory;
    for (const Touch& touch : user.touches) {
      const bool is_written = touch.kind == TouchKind::write;
      if (touch.range.space == 0 && is_written == one.is_written) memory.push_back(touch);
    }
    const std::string verb = one.is_written ? "write" : "read";
    // The name that a finding about the operation would use.
    const std::string before = checker_
                                   .report(code,
                                           {.operation = OperationKind::copy,
                                            .actor = user.actor,
                                            .device = user.device,
                                            .touches = user.touches,
                                            .site = user.site},
                                           {}, user.sequence)
                                   .now;
    Finding finding = checker_.report(
        code,
        {.kind = RecordKind::host_access,
         .host = host_actor(),
         .touches = memory,
         .site = call_site_},
        {.what = fmt::format("host memory was {} while {} could still {} it",
                             is_freed ? "freed" : "changed or freed", mark, verb),
         .fix = fmt::format("keep the memory unchanged until the host has waited for {}", mark),
         .action = fmt::format("{}() detects the change {} {} ran", call_,
                               one.has_run ? "after" : "before", mark)});
    finding.before = {before};
    // The error is between the two lines; the first line identifies the memory.
    finding.site = user.site;
    if (Result<void> kept = keep(std::move(finding)); !kept && !parked_by_work_) {
      parked_by_work_ = kept.failure();
    }
  }
}

void World::keep_later(Finding finding) {
  if (Result<void> kept = keep(std::move(finding)); !kept && !parked_) parked_ = kept.failure();
}

Result<void> World::judge_managed(const void* address, std::size_t bytes, TouchKind kind,
                                  CallSite site, std::optional<std::size_t> device) {
  if (!options_.check) return {};
  const ActorId host = host_actor();
  for (const std::unique_ptr<SimStream>& stream : streams_) {
    if (device && stream->device != *device) continue;
    const std::uint64_t last = checker_.sequence(stream->actor);
    if (checker_.knows(host, stream->actor, last)) continue;
    std::vector<Touch>& touches = scratch();
    add_touch(touches, kind, address, bytes);
    const std::string goal = checker_.mark_text(stream->actor, last);
    return keep(checker_.report(
        FindingCode::managed_while_busy,
        {.kind = RecordKind::host_access, .host = host, .touches = touches, .site = site},
        {.what = fmt::format("the host accesses managed memory while {} may still run, and {} "
                             "cannot share managed memory with the host while it works",
                             goal, devices_[stream->device]->name),
         .fix = fmt::format("wait for {}, or for the whole device, before the access", goal)}));
  }
  return {};
}

Result<void> World::judge_host_access(const void* address, std::size_t bytes, TouchKind kind,
                                      CallSite site, std::optional<std::size_t> device) {
  const auto managed = host().managed_offset(address);
  if (managed && !shares_managed()) {
    if (Result<void> idle = judge_managed(address, bytes, kind, site, device); !idle) return idle;
  }
  std::vector<Touch>& touches = scratch();
  add_touch(touches, kind, address, bytes);
  if (Result<void> judged =
          judge({.kind = RecordKind::host_access, .touches = touches, .site = site});
      !judged) {
    return judged;
  }
  if (managed) this->managed().touch(*managed, bytes, Place::host(), kind != TouchKind::read);
  return {};
}

void World::note_bad_free(const TraceRecord& record, const void* address) {
  if (!options_.check) return;
  std::vector<Touch>& touches = scratch();
  add_touch(touches, TouchKind::release, address, 1);
  TraceRecord about = record;
  about.host = host_actor();
  about.operation = OperationKind::release;
  about.touches = touches;
  // The checker only tests the access; nothing is recorded.
  if (std::optional<Finding> finding = checker_.check(about, OrderChecker::OnFinding::leave_out)) {
    static_cast<void>(keep(*std::move(finding)));
  }
}

void World::note_dead_handle(const TraceRecord& record, std::string what, std::string fix,
                             std::string action) {
  TraceRecord about = record;
  about.host = host_actor();
  static_cast<void>(keep(checker_.report(FindingCode::dead_handle, about,
                                         {std::move(what), std::move(fix), std::move(action)})));
}

void World::judge_later(const TraceRecord& record) {
  if (Result<void> judged = judge(record); !judged && !parked_) parked_ = judged.failure();
}

void World::add_touch(std::vector<Touch>& touches, TouchKind kind, const void* address,
                      std::size_t bytes, bool is_assumed, std::uint64_t generation) {
  if (const auto place = locate(address)) {
    touches.push_back(
        {kind, {devices_[place->first]->space, place->second, bytes}, generation, is_assumed});
    return;
  }
  if (host_.is_pageable(address)) {
    host_.forget_settled(address, bytes,
                         [&](const SpaceRange& range) { return checker_.is_settled(range); });
  }
  std::vector<SpaceRange> ranges;
  host_.translate(address, bytes, ranges);
  for (const SpaceRange& range : ranges) touches.push_back({kind, range, generation, is_assumed});
}

// --- Streams

bool World::is_settled(ActorId actor) const noexcept {
  const std::uint64_t last = checker_.sequence(actor);
  if (threads_.empty()) return checker_.knows(0, actor, last);
  return std::ranges::all_of(
      threads_, [&](const auto& thread) { return checker_.knows(thread.second, actor, last); });
}

Result<std::size_t> World::add_stream(std::uint32_t device, ActorKind kind, std::string_view name) {
  // Numbers are reused only if there are many: reports are clearer if a number is one stream.
  if (retired_.empty() && next_actor_ >= std::min(plenty_of_numbers_, max_actors)) retire_ended();
  std::size_t index = streams_.size();
  if (!retired_.empty()) {
    index = retired_.front();
    retired_.pop_front();
    retired_time_ns_ = std::max(retired_time_ns_, streams_[index]->time_ns);
    streams_[index]->time_ns = 0;
    streams_[index]->unready_answers = streams_[index]->idle_rounds = 0;
  } else if (next_actor_ < max_actors) {
    streams_.push_back(std::make_unique<SimStream>());
    streams_.back()->actor = next_actor_++;
  } else {
    return Failure(ErrorCode::capacity,
                   "a simulated device can have {max} streams and host threads at a time. A "
                   "destroyed stream counts while memory refers to work of the stream that no host "
                   "thread has waited for. Destroy unused streams, or synchronise the device.")
        .with("max", max_actors);
  }
  SimStream& stream = *streams_[index];
  stream.device = device;
  stream.kind = kind;
  stream.is_open = true;
  judge_later({.kind = RecordKind::actor_begins,
               .actor_kind = kind,
               .actor = stream.actor,
               .device = device,
               .name = name});
  return index;
}

void World::retire_ended() {
  // A device runs by itself, so work queued on these streams need not wait for the host.
  for (const std::size_t i : ended_) run_towards(i, streams_[i]->submitted);
  // With this many actors, later reports may say less about who freed a block: a clock has one
  // component per number.
  const std::vector<bool> remembered = checker_.remembered_actors(next_actor_ < max_named_actors);
  const std::size_t candidates = ended_.size();
  std::erase_if(ended_, [&](std::size_t i) {
    const SimStream& stream = *streams_[i];
    // No thread may query later what a loss has left undone.
    if (!stream.queue.empty() || stream.lost_at != SimStream::not_lost) return false;
    if (!is_settled(stream.actor)) {
      if (stream.actor < remembered.size() && remembered[stream.actor]) return false;
      // The host must wait for all work before it accesses managed memory, stream by stream.
      if (!shares_managed()) return false;
      hand_over(stream);
    }
    retired_.push_back(i);
    return true;
  });
  // The search takes linear time, so it runs only if it can free many numbers.
  if (retired_.size() < candidates / 2 + 1) {
    plenty_of_numbers_ = std::min(2 * plenty_of_numbers_, max_actors);
  }
}

void World::hand_over(const SimStream& stream) {
  const auto pass_to = [&](std::uint64_t& event) {
    const bool is_first = event == 0;
    if (is_first) event = next_event_number();
    // The event covers everything that any of these streams has waited for.
    if (!is_first) {
      judge_later({.kind = RecordKind::wait_event, .actor = stream.actor, .event = event});
    }
    judge_later({.kind = RecordKind::record_event, .actor = stream.actor, .event = event});
  };
  SimDevice& device = *devices_[stream.device];
  pass_to(device.retired_event);
  if (stream.kind != ActorKind::blocking_stream) return;
  pass_to(device.retired_blocking_event);
  device.default_must_learn = true;
}

void World::let_default_learn(ActorId actor) {
  for (const std::unique_ptr<SimDevice>& device : devices_) {
    if (!device->default_must_learn) continue;
    if (streams_[device->default_stream]->actor != actor) continue;
    device->default_must_learn = false;
    judge_later(
        {.kind = RecordKind::wait_event, .actor = actor, .event = device->retired_blocking_event});
  }
}

void World::host_learns_of_retired(std::uint32_t device) {
  const std::uint64_t event = devices_[device]->retired_event;
  if (event != 0) judge_later({.kind = RecordKind::host_wait_event, .event = event});
}

void World::end_stream(std::size_t index) {
  streams_[index]->is_open = false;
  ended_.push_back(index);
  judge_later({.kind = RecordKind::actor_ends, .actor = streams_[index]->actor});
}

void World::enqueue(std::size_t index, Operation&& operation) {
  SimStream& stream = *streams_[index];
  operation.earliest_ns = host_time_ns_;
  operation.sequence = checker_.sequence(stream.actor);
  ++stream.submitted;
  if (operation.kind == Operation::Kind::record) {
    operation.point->position = stream.submitted;
    operation.point->sequence = operation.sequence;
  }
  if (devices_[stream.device]->loss) {
    // The device was lost by work that ran since the call began. This operation does not run
    // either.
    stream.lost_at = std::min(stream.lost_at, stream.passed);
    stream.passed = stream.submitted;
    watch_.lost(stream.device);
    return;
  }
  if (operation.kind == Operation::Kind::call) ++queued_functions_;
  if (stream.queue.empty()) busy_.insert(std::ranges::lower_bound(busy_, index), index);
  stream.queue.push_back(std::move(operation));
}

void World::note_idle(std::size_t index) {
  const auto found = std::ranges::lower_bound(busy_, index);
  if (found != busy_.end() && *found == index) busy_.erase(found);
}

void World::submit(std::size_t index, Operation&& operation) {
  wait_for_partners(index);
  operation.is_slow = std::exchange(is_next_slow_, false);
  enqueue(index, std::move(operation));
  run_until_host();
}

void World::wait_for_partners(std::size_t index) {
  const SimStream& stream = *streams_[index];
  if (stream.kind != ActorKind::default_stream && stream.kind != ActorKind::blocking_stream) return;
  const ActorKind partner = stream.kind == ActorKind::default_stream ? ActorKind::blocking_stream
                                                                     : ActorKind::default_stream;
  std::vector<std::shared_ptr<RecordPoint>> points;
  for (const std::size_t i : busy_) {
    const SimStream& other = *streams_[i];
    if (other.kind != partner || other.device != stream.device) continue;
    points.push_back(
        std::make_shared<RecordPoint>(RecordPoint{.stream = i,
                                                  .position = other.submitted,
                                                  .time_ns = other.time_ns,
                                                  .sequence = checker_.sequence(other.actor)}));
  }
  for (std::shared_ptr<RecordPoint>& point : points) {
    Operation wait;
    wait.kind = Operation::Kind::wait;
    wait.point = std::move(point);
    enqueue(index, std::move(wait));
  }
}

bool World::can_run(const SimStream& stream) const noexcept {
  if (stream.queue.empty()) return false;
  const Operation& head = stream.queue.front();
  if (head.kind == Operation::Kind::hold) return !holds_.contains(head.generation);
  if (head.kind != Operation::Kind::wait || !head.point) return true;
  return streams_[head.point->stream]->passed >= head.point->position;
}

void World::collect_ready(bool host_waits) {
  ready_.clear();
  for (const std::size_t index : busy_) {
    const SimStream& stream = *streams_[index];
    if (can_run(stream) && !stream.queue.front().is_slow) ready_.push_back(index);
  }
  if (!ready_.empty() || !host_waits) return;
  for (const std::size_t index : busy_) {
    if (can_run(*streams_[index])) ready_.push_back(index);
  }
}

void World::run_until_host() {
  for (;;) {
    if (scheduler_.prefers_host()) return;
    collect_ready(false);
    if (ready_.empty()) return;
    const std::size_t choice = scheduler_.pick(ready_, true);
    if (choice == Scheduler::host) return;
    run_one(choice);
  }
}

std::vector<std::string> World::chain_from(std::size_t index) const {
  std::vector<std::string> lines;
  std::set<std::size_t> seen;
  while (seen.insert(index).second) {
    const SimStream& stream = *streams_[index];
    if (stream.queue.empty()) break;
    const Operation& head = stream.queue.front();
    const std::string here = checker_.mark_text(stream.actor, head.sequence);
    if (head.kind == Operation::Kind::hold) {
      lines.push_back(fmt::format("{:<5} is held, and no thread resumes it", here));
    }
    if (head.kind != Operation::Kind::wait || !head.point) break;
    index = head.point->stream;
    lines.push_back(fmt::format("{:<5} waits for {}", here,
                                checker_.mark_text(streams_[index]->actor, head.point->sequence)));
  }
  return lines;
}

Failure World::deadlock(std::size_t index, const char* call) {
  const SimStream& stream = *streams_[index];
  const std::string goal = checker_.mark_text(stream.actor, checker_.sequence(stream.actor));
  Finding finding = checker_.report(
      FindingCode::deadlock, {.kind = RecordKind::host_access, .host = host_actor()},
      {.what = fmt::format("the host waits for {}, and no stream can make progress", goal),
       .fix = holds_.empty() ? "queue a record before the wait that needs it"
                             : "resume the held stream before the wait, or in another thread",
       .action = fmt::format("{} waits for {}", call, goal)});
  finding.before = chain_from(index);
  const Failure failure = violation(finding);
  // The wait cannot continue in any mode.
  static_cast<void>(keep(std::move(finding)));
  return failure;
}

Result<void> World::wait_for(std::size_t index, std::uint64_t position, const char* call) {
  while (streams_[index]->passed < position) {
    collect_ready(true);
    if (!ready_.empty()) {
      run_one(scheduler_.pick(ready_, false));
    } else if (holds_.empty() || resumed_.wait_for(mutex_, patience_) == std::cv_status::timeout) {
      return deadlock(index, call);
    }
  }
  if (const auto& loss = devices_[streams_[index]->device]->loss) return *loss;
  host_knows(steps_);
  host_time_ns_ = std::max(host_time_ns_, streams_[index]->time_ns);
  return {};
}

void World::run_towards(std::size_t index, std::uint64_t position) {
  while (streams_[index]->passed < position) {
    collect_ready(true);
    if (ready_.empty()) return;
    run_one(scheduler_.pick(ready_, false));
  }
}

void World::run_all(std::uint32_t device) {
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i]->device == device) run_towards(i, streams_[i]->submitted);
  }
}

void World::drain(std::size_t index) {
  wait_for_partners(index);
  run_towards(index, streams_[index]->submitted);
}

std::uint64_t World::flip(std::uint64_t sides) {
  return decisions_ != nullptr ? decisions_->choose(sides) : coins_.below(sides);
}

Result<bool> World::answer_query(std::size_t index, std::uint64_t position) {
  SimStream& stream = *streams_[index];
  run_until_host();
  if (stream.passed >= position) {
    stream.unready_answers = stream.idle_rounds = 0;
    return true;
  }
  if (++stream.unready_answers < max_unready_answers) return false;
  stream.unready_answers = 0;
  collect_ready(true);
  if (!ready_.empty()) {
    stream.idle_rounds = 0;
    run_one(scheduler_.pick(ready_, false));
    return stream.passed >= position;
  }
  // Nothing can run, unless another thread resumes a stream.
  const auto now = std::chrono::steady_clock::now();
  if (stream.idle_rounds++ == 0) stream.idle_since = now;
  const bool may_change = !holds_.empty() && now - stream.idle_since < patience_;
  if (stream.idle_rounds < max_idle_rounds || may_change) return false;
  stream.idle_rounds = 0;
  const std::string goal = checker_.mark_text(stream.actor, checker_.sequence(stream.actor));
  Finding finding = checker_.report(
      FindingCode::endless_poll, {.kind = RecordKind::host_access, .host = host_actor()},
      {.what = fmt::format(
           "the host has polled {} times whether {} is done, and no stream can make progress",
           max_unready_answers * max_idle_rounds, goal),
       .fix = "resume the held stream before polling, or in another thread",
       .action = fmt::format("polls {}", goal)});
  finding.before = chain_from(index);
  if (Result<void> kept = keep(std::move(finding)); !kept) return kept.failure();
  return false;
}

bool World::may_deny(std::size_t index, std::uint64_t step) noexcept {
  SimStream& stream = *streams_[index];
  if (step <= known_steps_) return false;
  if (stream.unready_answers + 1 >= max_unready_answers) return false;
  ++stream.unready_answers;
  return true;
}

Result<void> World::wait_for_all(std::uint32_t device) {
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i]->device != device) continue;
    const bool is_through = streams_[i]->passed == streams_[i]->submitted;
    if (!streams_[i]->is_open && is_through && is_settled(streams_[i]->actor)) continue;
    if (Result<void> waited = wait_for(i, streams_[i]->submitted, "synchronize"); !waited) {
      return waited;
    }
    judge_later({.kind = RecordKind::host_wait_mark,
                 .actor = streams_[i]->actor,
                 .sequence = checker_.sequence(streams_[i]->actor)});
  }
  host_learns_of_retired(device);
  return {};
}

std::uint64_t World::hold(std::size_t index) {
  Operation operation;
  operation.kind = Operation::Kind::hold;
  operation.generation = ++last_hold_;
  enqueue(index, std::move(operation));
  holds_.emplace(last_hold_, RecordPoint{index, streams_[index]->submitted});
  run_until_host();
  return last_hold_;
}

void World::resume(std::uint64_t hold) {
  holds_.erase(hold);
  resumed_.notify_all();
  run_until_host();
}

void World::run_to_hold(std::uint64_t hold) {
  const auto found = holds_.find(hold);
  if (found == holds_.end()) return;
  const RecordPoint point = found->second;
  while (streams_[point.stream]->passed + 1 < point.position) {
    collect_ready(true);
    if (ready_.empty()) return;
    run_one(scheduler_.pick(ready_, false));
  }
}

// --- Execution

void World::charge(SimStream& stream, const Operation& operation) {
  enum Engine : std::size_t { up, down, compute };
  std::uint64_t cost = 0;
  std::size_t engine = compute;
  const auto take = [&](std::uint64_t latency_ns, std::uint64_t bytes_per_us) {
    cost = latency_ns + operation.bytes * 1000 / bytes_per_us;
  };
  const auto cross = [&](const void* destination, const void* source) {
    const auto to = locate(destination), from = locate(source);
    const bool is_local = to && from && to->first == from->first;
    // A peer copy uses the engine of the receiver. A copy between host addresses uses any engine.
    engine = is_local ? compute : to ? up : down;
    take(profile_.copy_ns, is_local ? profile_.memory_bytes_per_us : profile_.link_bytes_per_us);
  };
  switch (operation.kind) {
    case Operation::Kind::copy:
      cross(operation.destination, operation.source);
      break;
    case Operation::Kind::copy_2d:
      cross(operation.copy_2d.destination, operation.copy_2d.source);
      break;
    case Operation::Kind::fill:
      take(profile_.copy_ns, profile_.memory_bytes_per_us);
      break;
    case Operation::Kind::launch:
      cost = profile_.launch_ns;
      break;
    case Operation::Kind::call:
      cost = profile_.call_ns;
      break;
    default:
      break;
  }
  std::uint64_t start = std::max(stream.time_ns, operation.earliest_ns);
  if (operation.kind == Operation::Kind::wait && operation.point) {
    // Waits among partners have no record that would have noted the time.
    const std::uint64_t noted = operation.point->time_ns;
    start = std::max(start, noted > 0 ? noted : streams_[operation.point->stream]->time_ns);
  }
  if (operation.is_slow) start = later(start, profile_.slow_ns);
  if (cost > 0) {
    std::uint64_t& engine_time_ns = devices_[stream.device]->engine_time_ns[engine];
    start = std::max(start, engine_time_ns);
    engine_time_ns = later(start, cost);
  }
  stream.time_ns = later(start, cost);
}

Result<void> World::take_failure_of_work() {
  if (!parked_by_work_) return {};
  const Failure failure = *parked_by_work_;
  parked_by_work_.reset();
  finish_copies();
  return failure;
}

void World::run_one(std::size_t index) {
  const bool is_outermost = !std::exchange(is_running_, true);
  SimStream& stream = *streams_[index];
  Operation operation = std::move(stream.queue.front());
  stream.queue.pop_front();
  if (operation.kind == Operation::Kind::call) --queued_functions_;
  if (stream.queue.empty()) note_idle(index);
  stream.last_step = ++steps_;
  charge(stream, operation);
  if (operation.watch == 0) {
    execute(stream, operation);
  } else {
    std::vector<HostWatch::Finding> found;
    if (watch_.runs(operation.watch, found)) execute(stream, operation);
    watch_.has_run(operation.watch);
    tell(found);
  }
  // A loss has already declared everything passed.
  if (stream.passed < stream.submitted) ++stream.passed;
  if (is_outermost) is_running_ = false;
}

const std::optional<Failure>* World::peer_loss(const SimStream& stream,
                                               const Operation& operation) const noexcept {
  if (operation.kind == Operation::Kind::wait && operation.point) {
    const SimStream& awaited = *streams_[operation.point->stream];
    if (operation.point->position > awaited.lost_at) return &devices_[awaited.device]->loss;
  }
  if (operation.kind == Operation::Kind::copy) {
    const auto place = locate(operation.source);
    if (place && place->first != stream.device && devices_[place->first]->loss) {
      return &devices_[place->first]->loss;
    }
  }
  return nullptr;
}

void World::execute(SimStream& stream, Operation& operation) {
  // Going on without what a peer never did would give wrong bytes and no error.
  if (const std::optional<Failure>* loss = peer_loss(stream, operation)) {
    lose(stream.device, **loss);
    return;
  }
  const Place here = Place::device(devices_[stream.device]->id);
  const auto note_moved = [&](std::uint64_t bytes) {
    migrated_bytes_ += bytes;
    stream.time_ns = later(stream.time_ns, bytes * 1000 / profile_.link_bytes_per_us);
  };
  switch (operation.kind) {
    case Operation::Kind::copy:
      note_zeros(operation.destination, operation.source);
      return note_moved(executor_.copy(operation, here));
    case Operation::Kind::copy_2d:
      note_zeros(operation.copy_2d.destination, operation.copy_2d.source);
      return note_moved(executor_.copy_2d(operation.copy_2d, here));
    case Operation::Kind::fill:
      return note_moved(executor_.fill(operation, here));
    case Operation::Kind::call:
      run_users_code(stream, operation);
      return watch_.forget_contents();
    case Operation::Kind::launch:
      note_moved(executor_.prepare(*operation.launch, here));
      return run_launch(stream, operation);
    case Operation::Kind::birth:
    case Operation::Kind::death: {
      const auto place = locate(operation.destination);
      if (!place) return;
      AliasMemory& memory = *devices_[place->first]->memory;
      if (operation.kind == Operation::Kind::birth) {
        memory.set_fresh(place->second, operation.bytes, operation.generation);
      } else {
        memory.set_freed(place->second, operation.bytes, operation.generation);
        finish_release(*devices_[place->first], operation.generation);
      }
      return;
    }
    case Operation::Kind::record:
      operation.point->time_ns = stream.time_ns;
      operation.point->step = steps_;
      return;
    case Operation::Kind::fault:
      lose(static_cast<std::uint32_t>(operation.generation),
           Failure(ErrorCode::device_lost)
               .with("device", devices_[operation.generation]->name)
               .with("call", "queued work")
               .with("name", "injected fault")
               .with("code", std::uint64_t{719}));
      return;
    case Operation::Kind::prefetch:
      if (const auto offset = host_.managed_offset(operation.destination)) {
        note_moved(managed_.prefetch(*offset, operation.bytes, operation.place));
      }
      return;
    case Operation::Kind::discard:
      if (const auto offset = host_.managed_offset(operation.destination)) {
        managed_.discard(*offset, operation.bytes);
        // Not what they were, so that whoever reads them notices.
        std::memset(operation.destination, discarded_byte, operation.bytes);
      }
      return;
    case Operation::Kind::wait:
    case Operation::Kind::hold:
      return;
  }
}

void World::note_zeros(const void* destination, const void* source) noexcept {
  if (options_.keeps_contents || is_zeros_noted_ || !options_.print_findings) return;
  if (!locate(source) || locate(destination)) return;
  is_zeros_noted_ = true;
  FindingPrinter::print_line(
      "tern: a simulated device with backing=none keeps no contents; what is read from it is "
      "zeros\n");
}

void World::run_users_code(const SimStream& stream, const Operation& operation) {
  running_ = {&stream, &operation};
  runner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  if (operation.kind == Operation::Kind::call) {
    operation.function(operation.context);
  } else {
    operation.launch->run();
  }
  runner_.store(std::thread::id(), std::memory_order_relaxed);
  running_ = {};
}

void World::finish_release(SimDevice& device, std::uint64_t generation) {
  // Not there any more if the same stream was given the range again in the meantime.
  const auto found = std::ranges::find(device.pending, generation, &PendingRelease::generation);
  if (found == device.pending.end()) return;
  device.allocator->give(found->offset, found->bytes);
  device.pending.erase(found);
}

void World::run_launch(const SimStream& stream, const Operation& operation) {
  // A kernel would compute with contents that are not there.
  if (!options_.keeps_contents) return;
  const KernelLaunch& launch = *operation.launch;
  if (launch.function.is_placeholder()) return executor_.run_placeholder(launch);
  if (launch.function.interpreter) {
    executor_.translate(launch);
    return interpret(stream, operation);
  }
  if (options_.strict_kernels) return execute_strictly(stream, operation);
  executor_.translate(launch);
  run_users_code(stream, operation);
}

void World::interpret(const SimStream& stream, const Operation& operation) {
  const KernelLaunch& launch = *operation.launch;
  const bool is_in_order = options_.policy == Policy::lazy || options_.policy == Policy::eager;
  const Result<std::vector<language::Mistake>> mistakes = try_interpret(
      launch, {.order_seed = is_in_order ? 0 : options_.seed + operation.sequence + 1,
               .checks_accesses = options_.check});
  // Nobody is in a call that could fail: whoever waits for the kernel hears of it first.
  const auto park = [&](const Failure& failure) {
    if (!parked_by_work_) parked_by_work_ = failure;
  };
  if (!mistakes) return park(mistakes.failure());
  for (const language::Mistake& mistake : *mistakes) {
    std::vector<Touch> touches;
    if (const KernelArgument* const array = find_array(launch, mistake.name)) {
      if (const auto place = locate(array->range_address)) {
        touches.push_back({TouchKind::write,
                           {devices_[place->first]->space, place->second, array->range_bytes}});
      }
    }
    const Result<void> kept =
        keep(checker_.report(code_of(mistake.kind),
                             {.operation = OperationKind::kernel,
                              .actor = stream.actor,
                              .device = stream.device,
                              .name = launch.name,
                              .touches = touches,
                              .site = operation.site},
                             {.what = mistake.what(),
                              .fix = mistake.fix(),
                              .action = fmt::format("kernel \"{}\"", launch.name)},
                             operation.sequence));
    if (!kept) park(kept.failure());
  }
}

void World::execute_strictly(const SimStream& stream, const Operation& operation) {
  StrictWindow window(memories_, *operation.launch);
  run_users_code(stream, operation);
  const std::string_view kernel = operation.launch->name;
  for (const StrictWindow::Undeclared& one : window.close()) {
    const std::uint32_t space = devices_[one.device]->space;
    const Touch touch{TouchKind::write, {space, one.offset, 1}};
    const auto block = checker_.block_at(space, one.offset);
    const std::string whose = !block                ? "memory outside of every block"
                              : block->tag == Tag() ? "a block"
                                                    : fmt::format("\"{}\"", block->tag.name());
    const char* verb = one.is_written ? "wrote to" : "touched";
    const char* const declared =
        one.is_declared_for_read ? "declared for reading only" : "did not declare";
    const std::string what =
        one.is_by_other_thread
            ? fmt::format("a thread {} {} while kernel \"{}\" ran, which the kernel {}", verb,
                          whose, kernel, declared)
            : fmt::format("kernel \"{}\" {} {}, which it {}", kernel, verb, whose, declared);
    // Nobody is in a call that could fail: whoever waits for the kernel hears of it first.
    Result<void> kept = keep(checker_.report(
        FindingCode::undeclared_access,
        {.operation = OperationKind::kernel,
         .actor = stream.actor,
         .device = stream.device,
         .name = kernel,
         .touches = {&touch, 1},
         .site = operation.site},
        {.what = what,
         .fix = one.is_declared_for_read
                    ? "declare the range for writing too, as inout() does, or do not write to it"
                    : "declare the range as an argument of the launch, or do not access it",
         .action = fmt::format("kernel \"{}\" {} [{:#x}, +1 B)", kernel, verb, one.offset)},
        operation.sequence));
    if (!kept && !parked_by_work_) parked_by_work_ = kept.failure();
  }
}

std::vector<Finding> World::leaks() const {
  std::vector<Finding> found = checker_.leaks();
  for (const std::unique_ptr<SimDevice>& device : devices_) {
    device->pages->for_each_handle([&](std::uint64_t, std::size_t bytes) {
      found.push_back(checker_.report(
          FindingCode::leak, {.kind = RecordKind::host_access},
          {.what = fmt::format("{} MiB of pages were never released", bytes / mib),
           .fix = "release the handle; the pages are freed when their last mapping ends",
           .action = "leaks pages"}));
    });
  }
  return found;
}

std::uint64_t World::time_ns() const noexcept {
  std::uint64_t latest = std::max(host_time_ns_, retired_time_ns_);
  for (const std::unique_ptr<SimStream>& stream : streams_) {
    latest = std::max(latest, stream->time_ns);
  }
  return latest;
}

}  // namespace tern::sim
