#include "backends/sim/world.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "backends/sim/stray_access.hpp"
#include "tern/core/bytes.hpp"

namespace tern::sim {
namespace {

/// After this many answers of "not ready" in a row a stream goes on, so that polling loops end.
constexpr unsigned most_unready_answers = 64;
/// So many worlds may trace to files of one name.
constexpr unsigned most_traces = 100;

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

std::uint64_t mix_in(std::uint64_t state, std::uint64_t value) noexcept {
  return hash(state ^ (value + 0x9e3779b97f4a7c15u + (state << 6)));
}

std::uint64_t mix_in(std::uint64_t state, std::string_view text) noexcept {
  for (const char c : text) state = mix_in(state, static_cast<unsigned char>(c));
  return mix_in(state, text.size());
}

}  // namespace

World::World(const Options& options, const Profile& profile)
    : options_(options),
      profile_(profile),
      scheduler_(options.policy, options.pct_depth, options.seed),
      faults_(FaultPlan::try_parse(options.faults, options.seed).value()),
      host_(options.reuse) {
  checker_.set_context(context(), replay());
}

World::~World() {
  // Whatever is live now has no device any more.
  if (trace_) trace_->write({.kind = RecordKind::shutdown});
  for (const std::unique_ptr<SimDevice>& device : devices_) forget_reservation(*device->memory);
}

std::string World::context() const {
  return fmt::format("sim:0  seed {:#x}  schedule {}", options_.seed, name_of(scheduler_.policy()));
}

std::string World::replay() const { return fmt::format("TERN_SIM_SEED={:#x}", options_.seed); }

Result<void> World::open_trace() {
  TraceWriter::Options trace{context(), replay(), options_.trace_memory_bytes};
  if (options_.trace.empty() && options_.trace_memory_bytes == 0) return {};
  if (!options_.check) {
    return Failure(ErrorCode::invalid_argument,
                   "the simulated device does not take {name}='{value}' with check=off: {why}.")
        .with("name", "trace")
        .with("why", "marks in a trace are counted by the checker")
        .with("value", options_.trace);
  }
  if (options_.trace.empty()) {
    trace_ = TraceWriter::to_memory(trace);
    return {};
  }
  trace.limit_bytes = TraceWriter::Options().limit_bytes;
  for (unsigned number = 1;; ++number) {
    const std::string path =
        number == 1 ? options_.trace : fmt::format("{}.{}", options_.trace, number);
    trace.replay = fmt::format("{}  ({})", replay(), path);
    Result<TraceWriter> writer = TraceWriter::try_open(path, trace);
    if (writer) {
      trace_ = *std::move(writer);
      checker_.set_context(trace.context, trace.replay);
      return {};
    }
    // Taken by another world; but that all of so many are is no accident.
    if (writer.failure().code() != ErrorCode::capacity || number == most_traces) {
      return writer.failure();
    }
  }
}

void World::close_trace_at_exit() noexcept {
  // Whoever holds the lock now may hold it for ever; the trace then ends at its last chunk.
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock() && trace_) static_cast<void>(trace_->close());
}

Result<std::uint32_t> World::add_device() noexcept {
  try {
    const std::size_t page = 2 * mib;
    const std::size_t bytes =
        std::max(page, options_.memory_bytes.value_or(profile_.memory_bytes) / page * page);
    Result<std::unique_ptr<AliasMemory>> memory =
        AliasMemory::try_make(bytes, bytes, options_.seed);
    if (!memory) return memory.failure();
    auto device = std::make_unique<SimDevice>();
    const auto index = static_cast<std::uint32_t>(devices_.size());
    device->space = index + 1;
    device->memory = *std::move(memory);
    device->allocator.emplace(bytes, options_.reuse);
    device->window.emplace(bytes, options_.reuse);
    watch_reservation(*device->memory, index);
    devices_.push_back(std::move(device));
    devices_.back()->default_stream = add_stream(index, ActorKind::default_stream, "default");
    return index;
  } catch (const std::bad_alloc&) {
    return Failure(ErrorCode::out_of_memory,
                   "the host could not allocate memory for a simulated device. Free host memory.");
  }
}

void World::lose(std::uint32_t index, const Failure& cause) noexcept {
  SimDevice& lost = *devices_[index];
  if (lost.loss) return;
  lost.loss = cause;
  // What was queued will never run. It counts as passed, so that nobody waits for ever.
  for (const std::unique_ptr<SimStream>& stream : streams_) {
    if (stream->device != index) continue;
    stream->queue.clear();
    stream->passed = stream->submitted;
  }
  while (!lost.pending.empty()) finish_release(lost, lost.pending.front().offset);
}

Result<void> World::begin(std::uint32_t index, FaultClass fault_class, const char* call,
                          std::size_t bytes) {
  SimDevice& device = *devices_[index];
  const auto lost = [&](const char* name) {
    return Failure(ErrorCode::device_lost)
        .with("device", fmt::format("sim:{}", index))
        .with("call", call)
        .with("name", name)
        .with("code", std::uint64_t{700});
  };
  if (device.loss) return *device.loss;
  if (parked_) {
    const Failure parked = *parked_;
    parked_.reset();
    return parked;
  }
  host_time_ns_ += profile_.submit_ns;
  const std::optional<FaultKind> fault = faults_.next(fault_class);
  if (!fault) return {};
  switch (*fault) {
    case FaultKind::oom:
    case FaultKind::fragmented:
      return Failure(
                 ErrorCode::out_of_memory,
                 "{device} could not allocate {requested}: {call} failed by the fault plan with "
                 "{free} of {total} free. {why}.")
          .with("device", fmt::format("sim:{}", index))
          .with_bytes("requested", bytes)
          .with("call", call)
          .with_bytes("free", *fault == FaultKind::oom ? 0 : device.allocator->free_bytes())
          .with_bytes("total", device.allocator->total_bytes())
          .with("why", *fault == FaultKind::oom ? "Free something" : "No free range is that long");
    case FaultKind::refuse:
    case FaultKind::fail:
      return Failure(ErrorCode::driver, "{call} returned {name} ({code}), as the fault plan says.")
          .with("call", call)
          .with("name", *fault == FaultKind::fail ? "injected failure" : "operation not permitted")
          .with("code", std::uint64_t{1});
    case FaultKind::lost: {
      const Failure cause = lost("injected loss");
      lose(index, cause);
      return cause;
    }
    case FaultKind::fault: {
      // Submitted like any work, and fails when a stream gets there.
      Operation operation;
      operation.kind = Operation::Kind::fault;
      operation.generation = index;
      submit(device.default_stream, std::move(operation));
      return {};
    }
    case FaultKind::not_ready:
      return {};
  }
  return {};
}

// --- The checker
// ----------------------------------------------------------------------------------

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
      .with("fix", finding.fix);
}

Result<void> World::judge(const TraceRecord& record) {
  hash_record(record);
  if (!options_.check) return {};
  const bool must_apply = options_.mode != Mode::raise;
  std::optional<Finding> finding = checker_.check(
      record, must_apply ? OrderChecker::OnFinding::apply : OrderChecker::OnFinding::leave_out);
  if (trace_) {
    TraceRecord judged = record;
    judged.was_refused = finding && !must_apply;
    trace_->write(judged);
  }
  if (!finding) return {};
  if (options_.mode == Mode::abort) {
    if (trace_) static_cast<void>(trace_->close());
    // The one place in the library that prints and ends the process: it was asked to.
    std::fputs(finding->text().c_str(), stderr);
    std::abort();
  }
  findings_.push_back(*std::move(finding));
  if (options_.mode == Mode::collect) return {};
  return violation(findings_.back());
}

void World::judge_later(const TraceRecord& record) {
  if (Result<void> judged = judge(record); !judged && !parked_) parked_ = judged.failure();
}

std::optional<std::pair<std::uint32_t, std::uint64_t>> World::locate(
    const void* address) const noexcept {
  for (std::uint32_t i = 0; i < devices_.size(); ++i) {
    if (const auto offset = devices_[i]->memory->offset_of(address)) return std::pair(i, *offset);
  }
  return std::nullopt;
}

void World::add_touch(std::vector<Touch>& touches, TouchKind kind, const void* address,
                      std::size_t bytes, bool is_assumed, std::uint64_t generation) {
  if (const auto place = locate(address)) {
    touches.push_back(
        {kind, {devices_[place->first]->space, place->second, bytes}, generation, is_assumed});
    return;
  }
  std::vector<SpaceRange> ranges;
  host_.translate(address, bytes, ranges);
  for (const SpaceRange& range : ranges) touches.push_back({kind, range, generation, is_assumed});
}

// --- Streams
// --------------------------------------------------------------------------------------

std::size_t World::add_stream(std::uint32_t device, ActorKind kind, std::string_view name) {
  auto stream = std::make_unique<SimStream>();
  stream->actor = static_cast<ActorId>(streams_.size() + 1);  // 0 is the host
  stream->device = device;
  stream->kind = kind;
  streams_.push_back(std::move(stream));
  judge_later({.kind = RecordKind::actor_begins,
               .actor_kind = kind,
               .actor = streams_.back()->actor,
               .device = device,
               .name = name});
  return streams_.size() - 1;
}

void World::enqueue(SimStream& stream, Operation&& operation) {
  operation.earliest_ns = host_time_ns_;
  ++stream.submitted;
  if (operation.kind == Operation::Kind::record) operation.point->position = stream.submitted;
  stream.queue.push_back(std::move(operation));
}

void World::submit(std::size_t index, Operation&& operation) {
  SimStream& stream = *streams_[index];
  if (stream.kind == ActorKind::default_stream || stream.kind == ActorKind::blocking_stream) {
    wait_for_partners(stream);
  }
  enqueue(stream, std::move(operation));
  run_until_host();
}

void World::wait_for_partners(SimStream& stream) {
  const ActorKind partner = stream.kind == ActorKind::default_stream ? ActorKind::blocking_stream
                                                                     : ActorKind::default_stream;
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    const SimStream& other = *streams_[i];
    if (other.kind != partner || other.device != stream.device || other.passed == other.submitted) {
      continue;
    }
    Operation wait;
    wait.kind = Operation::Kind::wait;
    wait.point = std::make_shared<RecordPoint>(RecordPoint{i, other.submitted, other.time_ns});
    enqueue(stream, std::move(wait));
  }
}

bool World::can_run(const SimStream& stream) const noexcept {
  if (stream.queue.empty()) return false;
  const Operation& head = stream.queue.front();
  if (head.kind == Operation::Kind::hold) return !holds_.contains(head.generation);
  if (head.kind != Operation::Kind::wait || !head.point) return true;
  return streams_[head.point->stream]->passed >= head.point->position;
}

void World::collect_ready() {
  ready_.clear();
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (can_run(*streams_[i])) ready_.push_back(i);
  }
}

void World::run_until_host() {
  // A host function may not call the device; if it does, it must not run other streams in between.
  if (is_running_) return;
  for (;;) {
    if (scheduler_.policy() == Policy::lazy) return;
    collect_ready();
    if (ready_.empty()) return;
    const std::size_t choice = scheduler_.pick(ready_, true);
    if (choice == Scheduler::host) return;
    run_one(choice);
  }
}

Failure World::deadlock(std::size_t index, const char* call) const {
  return Failure(ErrorCode::violation,
                 "{finding}: {call} waits for stream {stream}, and no stream can go on. A wait is "
                 "queued before the record it needs.")
      .with("finding", "TERN-S501 deadlock")
      .with("call", call)
      .with("stream", streams_[index]->actor);
}

Result<void> World::wait_for(std::size_t index, std::uint64_t position, const char* call) {
  while (streams_[index]->passed < position) {
    if (is_running_) {
      return Failure(ErrorCode::violation,
                     "{finding}: {call} was called from a host function. Host functions must not "
                     "call the device.")
          .with("finding", "TERN-S404 device call in a host function")
          .with("call", call);
    }
    collect_ready();
    if (!ready_.empty()) {
      run_one(scheduler_.pick(ready_, false));
    } else if (!holds_.empty()) {
      let_go_.wait(mutex_);  // another thread can let a stream go
    } else {
      return deadlock(index, call);
    }
  }
  if (const auto& loss = devices_[streams_[index]->device]->loss) return *loss;
  host_time_ns_ = std::max(host_time_ns_, streams_[index]->time_ns);
  return {};
}

bool World::answer_query(std::size_t index, std::uint64_t position) {
  run_until_host();
  SimStream& stream = *streams_[index];
  if (stream.passed >= position) {
    stream.unready_answers = 0;
    return true;
  }
  if (++stream.unready_answers < most_unready_answers) return false;
  stream.unready_answers = 0;
  collect_ready();
  if (!ready_.empty() && !is_running_) run_one(scheduler_.pick(ready_, false));
  return stream.passed >= position;
}

Result<void> World::wait_for_all(std::uint32_t device) {
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i]->device != device) continue;
    if (Result<void> waited = wait_for(i, streams_[i]->submitted, "synchronize"); !waited) {
      return waited;
    }
    judge_later({.kind = RecordKind::host_wait_mark,
                 .actor = streams_[i]->actor,
                 .sequence = checker_.sequence(streams_[i]->actor)});
  }
  return {};
}

std::uint64_t World::hold(std::size_t index) {
  Operation operation;
  operation.kind = Operation::Kind::hold;
  operation.generation = ++last_hold_;
  SimStream& stream = *streams_[index];
  enqueue(stream, std::move(operation));
  holds_.emplace(last_hold_, RecordPoint{index, stream.submitted, 0});
  run_until_host();
  return last_hold_;
}

void World::let_go(std::uint64_t hold) {
  holds_.erase(hold);
  let_go_.notify_all();
  run_until_host();
}

void World::run_to_hold(std::uint64_t hold) {
  const auto found = holds_.find(hold);
  if (found == holds_.end()) return;
  const RecordPoint point = found->second;
  while (streams_[point.stream]->passed + 1 < point.position) {
    collect_ready();
    if (ready_.empty()) return;
    run_one(scheduler_.pick(ready_, false));
  }
}

// --- Execution
// ------------------------------------------------------------------------------------

std::byte* World::reach(const void* address) const noexcept {
  if (const auto place = locate(address)) {
    return devices_[place->first]->memory->alias_of(place->second);
  }
  return static_cast<std::byte*>(const_cast<void*>(address));
}

void World::prepare(const void* address, std::size_t bytes) {
  if (const auto place = locate(address)) {
    devices_[place->first]->memory->prepare(place->second, bytes);
  }
}

void World::forget(const void* address, std::size_t bytes) {
  if (const auto place = locate(address)) {
    devices_[place->first]->memory->forget(place->second, bytes);
  }
}

void World::charge(SimStream& stream, const Operation& operation) {
  enum Engine : std::size_t { up, down, compute };
  std::uint64_t cost = 0;
  std::size_t engine = compute;
  switch (operation.kind) {
    case Operation::Kind::copy: {
      const bool to_device = locate(operation.destination).has_value();
      const bool from_device = locate(operation.source).has_value();
      const bool is_local = to_device && from_device;
      engine = is_local ? compute : to_device ? up : down;
      cost = profile_.copy_ns +
             operation.bytes * 1000 /
                 (is_local ? profile_.memory_bytes_per_us : profile_.link_bytes_per_us);
      break;
    }
    case Operation::Kind::copy_2d:
      cost = profile_.copy_ns + operation.bytes * 1000 / profile_.link_bytes_per_us;
      break;
    case Operation::Kind::fill:
      cost = profile_.copy_ns + operation.bytes * 1000 / profile_.memory_bytes_per_us;
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
    start = std::max(start, operation.point->time_ns);
  }
  if (cost > 0) {
    start = std::max(start, engine_time_ns_[engine]);
    engine_time_ns_[engine] = start + cost;
  }
  stream.time_ns = start + cost;
}

void World::run_one(std::size_t index) {
  SimStream& stream = *streams_[index];
  Operation operation = std::move(stream.queue.front());
  stream.queue.pop_front();
  charge(stream, operation);
  execute(stream, operation);
  // A loss has already declared everything passed.
  if (stream.passed < stream.submitted) ++stream.passed;
}

void World::execute(SimStream& stream, Operation& operation) {
  switch (operation.kind) {
    case Operation::Kind::copy:
      prepare(operation.source, operation.bytes);
      forget(operation.destination, operation.bytes);
      std::memcpy(reach(operation.destination), reach(operation.source), operation.bytes);
      return;
    case Operation::Kind::copy_2d: {
      const Copy2D& copy = operation.copy_2d;
      for (std::size_t row = 0; row < copy.height; ++row) {
        void* to = static_cast<std::byte*>(copy.destination) + row * copy.destination_pitch_bytes;
        const void* from =
            static_cast<const std::byte*>(copy.source) + row * copy.source_pitch_bytes;
        prepare(from, copy.width_bytes);
        forget(to, copy.width_bytes);
        std::memcpy(reach(to), reach(from), copy.width_bytes);
      }
      return;
    }
    case Operation::Kind::fill: {
      forget(operation.destination, operation.bytes);
      std::byte* to = reach(operation.destination);
      const Pattern& pattern = operation.pattern;
      if (pattern.width_bytes == 1) {
        std::memset(to, std::to_integer<int>(pattern.bytes[0]), operation.bytes);
        return;
      }
      for (std::size_t i = 0; i < operation.bytes; i += pattern.width_bytes) {
        std::memcpy(to + i, pattern.bytes, pattern.width_bytes);
      }
      return;
    }
    case Operation::Kind::call:
      is_running_ = true;
      operation.function(operation.context);
      is_running_ = false;
      return;
    case Operation::Kind::launch:
      execute_launch(*operation.launch);
      return;
    case Operation::Kind::birth:
    case Operation::Kind::death: {
      const auto place = locate(operation.destination);
      if (!place) return;
      AliasMemory& memory = *devices_[place->first]->memory;
      if (operation.kind == Operation::Kind::birth) {
        memory.set_fresh(place->second, operation.bytes, operation.generation);
      } else {
        memory.set_freed(place->second, operation.bytes, operation.generation);
        finish_release(*devices_[place->first], place->second);
      }
      return;
    }
    case Operation::Kind::record:
      operation.point->time_ns = stream.time_ns;
      return;
    case Operation::Kind::fault:
      lose(static_cast<std::uint32_t>(operation.generation),
           Failure(ErrorCode::device_lost)
               .with("device", fmt::format("sim:{}", operation.generation))
               .with("call", "queued work")
               .with("name", "injected fault")
               .with("code", std::uint64_t{719}));
      return;
    case Operation::Kind::wait:
    case Operation::Kind::hold:
    case Operation::Kind::prefetch:
      return;
  }
}

void World::finish_release(SimDevice& device, std::uint64_t offset) {
  // Not there any more if the same stream was given the range again in the meantime.
  const auto found = std::ranges::find(device.pending, offset, &PendingRelease::offset);
  if (found == device.pending.end()) return;
  device.allocator->give(offset, found->bytes);
  device.pending.erase(found);
}

void World::execute_launch(KernelLaunch& launch) {
  for (KernelArgument& argument : launch.arguments) {
    if (argument.range_address == nullptr || argument.range_bytes == 0) continue;
    if (argument.access == Access::discard && launch.body == nullptr) {
      forget(argument.range_address, argument.range_bytes);
    } else {
      prepare(argument.range_address, argument.range_bytes);
    }
  }
  if (launch.body != nullptr) {
    // The body works on the alias: its arguments are translated where they are addresses.
    for (KernelArgument& argument : launch.arguments) {
      if (argument.range_address == nullptr || argument.value_bytes != sizeof(void*)) continue;
      void* user = nullptr;
      std::memcpy(&user, argument.value, sizeof user);
      void* reached = reach(user);
      std::memcpy(const_cast<void*>(argument.value), &reached, sizeof reached);
    }
    is_running_ = true;
    launch.run();
    is_running_ = false;
    return;
  }
  // Stand-in: what is written depends on everything that is read, so that a wrong order changes
  // every byte downstream.
  std::uint64_t state = mix_in(0, launch.name);
  for (const KernelArgument& argument : launch.arguments) {
    if (argument.range_address == nullptr) {
      state = mix_in(
          state, std::string_view(static_cast<const char*>(argument.value), argument.value_bytes));
    } else if (needs_old_bytes(argument.access)) {
      state = mix_in(state,
                     std::string_view(reinterpret_cast<const char*>(reach(argument.range_address)),
                                      argument.range_bytes));
    }
  }
  for (const KernelArgument& argument : launch.arguments) {
    if (argument.range_address == nullptr || !is_write(argument.access)) continue;
    std::byte* to = reach(argument.range_address);
    for (std::size_t i = 0; i < argument.range_bytes; i += 8) {
      const std::uint64_t word = hash(state + i);
      std::memcpy(to + i, &word, std::min<std::size_t>(8, argument.range_bytes - i));
    }
    state = mix_in(state, argument.range_bytes);
  }
}

std::uint64_t World::time_ns() const noexcept {
  std::uint64_t latest = host_time_ns_;
  for (const std::unique_ptr<SimStream>& stream : streams_) {
    latest = std::max(latest, stream->time_ns);
  }
  return latest;
}

}  // namespace tern::sim
