#include "trace/order_checker.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "tern/core/error.hpp"
#include "trace/actors.hpp"
#include "trace/note.hpp"
#include "trace/order_report.hpp"
#include "trace/shadow.hpp"

namespace tern {
namespace {

/// History that can no longer matter is dropped whenever the history has doubled since the last
/// time, so the cost of pruning is a constant share of the cost of recording.
constexpr std::size_t min_history_to_prune = 1024;
/// Above this number of intervals, the history of old frees is dropped too. A program that never
/// reuses an address would otherwise keep one interval for every block that it ever had.
constexpr std::size_t max_intervals_with_names = 65'536;

/// The actor of a touch: a stream on behalf of a host thread, or the host thread itself.
struct Toucher {
  ActorId actor;
  ActorId host;
  bool is_host;
};

/// The source and the destination of a copy. Both are null if the record is not a plain copy.
struct CopySides {
  const Touch* from = nullptr;
  const Touch* to = nullptr;
};

CopySides sides_of(const TraceRecord& record) noexcept {
  if (record.operation != OperationKind::copy || record.touches.size() != 2) return {};
  const Touch* from = &record.touches[0];
  const Touch* to = &record.touches[1];
  if (to->kind == TouchKind::read) std::swap(from, to);
  const bool is_plain = from->kind == TouchKind::read && to->kind == TouchKind::write &&
                        from->range.bytes == to->range.bytes;
  return is_plain ? CopySides{from, to} : CopySides{};
}

/// Returns true if the record only declares bytes as initialized (see Touch::is_assumed).
bool counts_as_written(const TraceRecord& record) noexcept {
  return !record.was_refused && !record.touches.empty() &&
         std::ranges::all_of(record.touches, [](const Touch& touch) {
           return touch.kind == TouchKind::write && touch.is_assumed;
         });
}

}  // namespace

struct OrderChecker::State {
  std::string context = "trace";
  std::string replay;
  std::uint64_t step = 0;
  Actors actors;
  NotePool notes;  // declared before the shadows, which refer to it
  std::map<std::uint32_t, Shadow> shadows;
  std::unordered_map<std::uint64_t, VectorClock> events;
  std::set<std::string, std::less<>> names;
  /// The code and the two conflicting lines of each reported finding. The strings are interned or
  /// belong to call sites.
  using Origin = std::tuple<bool, std::string_view, std::uint64_t, int>;
  std::set<std::tuple<FindingCode, Origin, Origin>> reported;
  std::uint64_t gaps = 0;
  std::uint64_t work = 0;
  std::size_t history_after_prune = 0;

  Shadow& shadow(std::uint32_t space) {
    return shadows.try_emplace(space, space == 0, gaps > 0, work).first->second;
  }

  std::string_view intern(std::string_view name) {
    if (name.empty()) return {};
    const auto found = names.find(name);
    return found != names.end() ? *found : *names.emplace(name).first;
  }

  [[nodiscard]] std::size_t interval_count() const {
    std::size_t count = 0;
    for (const auto& [space, one] : shadows) count += one.interval_count();
    return count;
  }

  void lose_records() {
    ++gaps;
    actors.join_all();
    // During the gap, blocks may have been allocated and freed, bytes written, and events recorded
    // again. Nothing known about memory is valid any more. The floor covers whatever an event stood
    // for.
    shadows.clear();
    events.clear();
    history_after_prune = 0;
  }

  void prune_if_grown() {
    work += shadows.size();
    const std::size_t intervals = interval_count();
    if (intervals + actors.snapshot_count() <
        std::max(min_history_to_prune, 2 * history_after_prune)) {
      return;
    }
    const auto is_settled = [&](ActorId actor, std::uint64_t clock) {
      return actors.is_settled(actor, clock);
    };
    work += intervals * actors.count();
    for (auto& [space, one] : shadows) {
      one.prune(is_settled, intervals > max_intervals_with_names);
    }
    actors.prune();
    history_after_prune = interval_count() + actors.snapshot_count();
  }

  auto view_of(const Toucher& toucher, OperationKind operation) const {
    // Judge as if the operation were submitted already: the stream is then also ordered after
    // everything that the submitting host thread is ordered after.
    const auto is_ordered = [this, toucher](ActorId actor, std::uint64_t clock) {
      return actors.known_if_submitted(toucher.actor, toucher.host, actor) >= clock;
    };
    const bool moves_bytes =
        operation == OperationKind::copy || operation == OperationKind::prefetch;
    return Shadow::View<decltype(is_ordered)>{toucher.is_host, moves_bytes, is_ordered};
  }

  std::optional<Finding> touch(const TraceRecord& record, const Toucher& toucher,
                               OnFinding on_finding) {
    const auto view = view_of(toucher, record.operation);
    const bool is_refused = record.was_refused || on_finding == OnFinding::leave_out;
    const Touch* wrong = nullptr;
    std::optional<Problem> problem;
    for (const Touch& one : record.touches) {
      if (one.range.bytes == 0) continue;
      problem = shadow(one.range.space).judge(one, view);
      wrong = &one;
      if (problem) break;
    }
    const CopySides copy = sides_of(record);
    std::vector<SpaceRange> undefined;
    if (copy.from != nullptr) {
      undefined = shadow(copy.from->range.space).undefined_in(copy.from->range);
      if (!problem && !copy.from->is_assumed) {
        problem = judge_undefined(copy, undefined);
        if (problem) wrong = copy.from;
      }
    }

    std::optional<Finding> finding;
    if (problem) {
      const Note now = note_of(record, toucher, *wrong, actors.sequence(toucher.actor) + 1);
      if (is_refused || is_new(now, *problem)) {
        finding = about_this_run(
            OrderReport(actors, shadow(wrong->range.space)).describe(now, toucher.host, *problem));
      }
      if (is_refused) return finding;
    }
    if (record.was_refused) return finding;

    if (toucher.is_host) {
      actors.step(toucher.actor);
    } else {
      actors.submit(toucher.actor, toucher.host);
    }
    for (const Touch& one : record.touches) {
      if (one.range.bytes > 0) apply(record, toucher, one);
    }
    for (SpaceRange range : undefined) {
      range.offset += copy.to->range.offset - copy.from->range.offset;
      shadow(copy.to->range.space).make_undefined(range);
    }
    return finding;
  }

  /// Uninitialized bytes may be copied between blocks, but not to host memory outside every known
  /// block, because the checker cannot see who reads them there.
  std::optional<Problem> judge_undefined(const CopySides& copy,
                                         const std::vector<SpaceRange>& undefined) {
    // After a gap, host memory that seems to be in no block may be in a block allocated during the
    // gap.
    if (copy.to->range.space != 0 || gaps > 0) return std::nullopt;
    const std::uint64_t distance = copy.to->range.offset - copy.from->range.offset;
    for (const SpaceRange& range : undefined) {
      const auto unowned = shadow(0).first_unowned({0, range.offset + distance, range.bytes});
      if (!unowned) continue;
      return Problem{FindingCode::uninitialised_read, *unowned - distance,
                     range.offset + range.bytes};
    }
    return std::nullopt;
  }

  void apply(const TraceRecord& record, const Toucher& toucher, const Touch& one) {
    Shadow& memory = shadow(one.range.space);
    const std::uint64_t sequence = actors.sequence(toucher.actor);
    Note note = note_of(record, toucher, one, sequence);
    if (is_birth(one.kind)) {
      note.generation = one.generation;
      note.reuse = memory.reuse_of(one.range) + 1;
    }
    // A driver orders its reuse of these bytes after their free. That order concerns only this
    // block: the allocation replaces the history of the bytes, but the allocating actor gains no
    // order with the stream that freed them.
    const Epoch epoch{toucher.actor, sequence, notes.make(note)};
    if (one.kind == TouchKind::read) {
      memory.apply_read(one, epoch, view_of(toucher, record.operation));
    } else if (is_birth(one.kind)) {
      memory.apply_birth(one, epoch);
    } else if (is_death(one.kind)) {
      memory.apply_death(one, epoch);
    } else {
      memory.apply_write(one, epoch);
    }
  }

  Note note_of(const TraceRecord& record, const Toucher& toucher, const Touch& one,
               std::uint64_t sequence) {
    Note note;
    note.step = step;
    note.actor = toucher.actor;
    note.sequence = sequence;
    note.operation = record.operation;
    note.touch = one.kind;
    note.is_host = toucher.is_host;
    note.range = one.range;
    if (record.operation == OperationKind::copy && record.touches.size() == 2) {
      note.other = record.touches[&one == &record.touches[0] ? 1 : 0].range;
    }
    note.name = intern(record.name);
    note.site = record.site;
    note.tag = record.tag;
    return note;
  }

  Finding about_this_run(Finding finding) const {
    finding.context = context;
    finding.step = step;
    finding.replay = replay;
    return finding;
  }

  /// Returns true if this pair of lines was not reported before. In a loop, the same two lines
  /// conflict in every iteration.
  bool is_new(const Note& now, const Problem& problem) {
    const auto origin = [](const Note& note) {
      return note.site.is_known()
                 ? Origin(true, note.site.file, note.site.line, 0)
                 : Origin(false, note.name, note.actor, static_cast<int>(note.touch));
    };
    const Note* before = problem.against.note.get();
    return reported
        .emplace(problem.code, origin(now),
                 before == nullptr ? Origin(false, {}, 0, -1) : origin(*before))
        .second;
  }
};

OrderChecker::OrderChecker() : state_(std::make_unique<State>()) {
  state_->actors.begin(0, ActorKind::host, 0, "H0", 0);
}
OrderChecker::~OrderChecker() = default;
OrderChecker::OrderChecker(OrderChecker&&) noexcept = default;
OrderChecker& OrderChecker::operator=(OrderChecker&&) noexcept = default;

void OrderChecker::set_context(std::string context, std::string replay) {
  state_->context = std::move(context);
  state_->replay = std::move(replay);
}

std::optional<Finding> OrderChecker::check(const TraceRecord& record, OnFinding on_finding) {
  State& state = *state_;
  Actors& actors = state.actors;
  if (!is_well_formed(record)) {
    raise(
        Failure(ErrorCode::invalid_argument,
                "record {step} cannot be checked: it has an unknown kind, an actor from {max} on, "
                "or a range past the end of its space. The trace is damaged.")
            .with("step", state.step + 1)
            .with("max", max_actors)
            .at(record.site));
  }
  ++state.step;
  const bool touches =
      record.kind == RecordKind::operation || record.kind == RecordKind::host_access;
  if (record.was_refused && !touches) return std::nullopt;

  const bool acts = record.kind == RecordKind::operation ||
                    record.kind == RecordKind::record_event ||
                    record.kind == RecordKind::wait_event;
  if (!acts || !actors.is_unknown(record.actor)) return apply(record, on_finding);
  // A stream that began during a gap may be the default stream, which is ordered with all blocking
  // streams. Because this is unknown, the operation counts as ordered with everything before and
  // after it.
  actors.join_all();
  std::optional<Finding> finding = apply(record, on_finding);
  actors.join_all();
  return finding;
}

std::optional<Finding> OrderChecker::apply(const TraceRecord& record, OnFinding on_finding) {
  State& state = *state_;
  Actors& actors = state.actors;
  switch (record.kind) {
    case RecordKind::actor_begins:
      actors.begin(record.actor, record.actor_kind, record.device, std::string(record.name),
                   record.host);
      return std::nullopt;
    case RecordKind::actor_ends:
      actors.at(record.actor).is_alive = false;
      return std::nullopt;
    case RecordKind::operation:
      return state.touch(record, {record.actor, record.host, false}, on_finding);
    case RecordKind::host_access:
      if (counts_as_written(record)) {
        for (const Touch& one : record.touches) {
          if (one.range.bytes > 0) state.shadow(one.range.space).make_defined(one.range);
        }
        return std::nullopt;
      }
      return state.touch(record, {record.host, record.host, true}, on_finding);
    case RecordKind::record_event: {
      actors.submit(record.actor, record.host);
      Actor& actor = actors.at(record.actor);
      state.events[record.event] = actor.clock;
      state.work += actor.clock.size();
      actor.last_record = actors.sequence(record.actor);
      return std::nullopt;
    }
    case RecordKind::wait_event:
      actors.submit(record.actor, record.host);
      if (const auto event = state.events.find(record.event); event != state.events.end()) {
        actors.learn(record.actor, event->second);
      } else if (state.gaps == 0) {
        actors.at(record.actor).idle_wait = actors.sequence(record.actor);
      }
      return std::nullopt;
    case RecordKind::event_ends:
      state.events.erase(record.event);
      return std::nullopt;
    case RecordKind::host_wait_mark:
      actors.learn(record.host, actors.clock_at(record.actor, record.sequence));
      state.prune_if_grown();
      return std::nullopt;
    case RecordKind::host_wait_event:
    case RecordKind::acquire_edge:
      if (const auto event = state.events.find(record.event); event != state.events.end()) {
        actors.learn(record.host, event->second);
      } else if (record.kind == RecordKind::host_wait_event && state.gaps == 0) {
        actors.at(record.host).idle_wait = actors.sequence(record.host);
      }
      state.prune_if_grown();
      return std::nullopt;
    case RecordKind::release_edge:
      state.events[record.event].join(actors.released_by(record.host, record.actor));
      state.work += actors.at(record.host).clock.size();
      actors.step(record.host);
      return std::nullopt;
    case RecordKind::shutdown: {
      std::vector<Finding> found = leaks(1, PoolMemory::is_kept);
      if (found.empty()) return std::nullopt;
      return std::move(found.front());
    }
    case RecordKind::lost_records:
      state.lose_records();
      return std::nullopt;
  }
  return std::nullopt;
}

Finding OrderChecker::report(FindingCode code, const TraceRecord& record, Words words,
                             std::uint64_t sequence) const {
  const bool is_host = record.kind == RecordKind::host_access;
  const Toucher toucher{is_host ? record.host : record.actor, record.host, is_host};
  const bool is_to_come = sequence == 0;
  if (is_to_come) sequence = state_->actors.sequence(toucher.actor) + 1;
  const Touch nothing;
  const Touch& touch = record.touches.empty() ? nothing : record.touches.front();
  const Note now = state_->note_of(record, toucher, touch, sequence);
  Finding finding = state_->about_this_run(
      OrderReport(state_->actors, state_->shadow(touch.range.space))
          .describe_other(code, now, words.action, std::move(words.what), std::move(words.fix)));
  if (is_to_come) ++finding.step;
  return finding;
}

std::string OrderChecker::mark_text(ActorId actor, std::uint64_t sequence) const {
  return OrderReport(state_->actors, state_->shadow(0)).mark(actor, sequence);
}

std::optional<OrderChecker::LiveBlock> OrderChecker::block_at(std::uint32_t space,
                                                              std::uint64_t offset) const noexcept {
  const auto memory = state_->shadows.find(space);
  if (memory == state_->shadows.end()) return std::nullopt;
  std::uint64_t begin = 0;
  const tern::LiveBlock* block = memory->second.block_at(offset, &begin);
  if (block == nullptr) return std::nullopt;
  return LiveBlock{{space, begin, block->bytes}, block->note->tag};
}

std::vector<Finding> OrderChecker::leaks(std::size_t most, PoolMemory pools) const {
  std::vector<std::pair<const tern::LiveBlock*, const Shadow*>> live;
  for (const auto& [space, memory] : state_->shadows) {
    for (const Shadow::Blocks* blocks : {&memory.blocks(), &memory.pieces()}) {
      for (const auto& [offset, block] : *blocks) {
        if (block.is_cut && pools == PoolMemory::is_kept) continue;
        live.emplace_back(&block, &memory);
      }
    }
  }
  state_->work += live.size();
  std::ranges::stable_sort(live, {}, [](const auto& one) { return one.first->note->step; });
  if (live.size() > most) live.resize(most);
  std::vector<Finding> found;
  for (const auto& [block, memory] : live) {
    found.push_back(
        state_->about_this_run(OrderReport(state_->actors, *memory).describe_leak(*block)));
  }
  return found;
}

bool OrderChecker::knows(ActorId actor, ActorId other, std::uint64_t sequence) const noexcept {
  return actor == other || state_->actors.known(actor, other) >= sequence;
}

bool OrderChecker::is_settled(const SpaceRange& range) const noexcept {
  const auto memory = state_->shadows.find(range.space);
  if (memory == state_->shadows.end()) return true;
  return memory->second.is_ordered_throughout(range, [&](ActorId actor, std::uint64_t clock) {
    return state_->actors.is_settled(actor, clock);
  });
}

std::vector<bool> OrderChecker::remembered_actors(bool with_names) const {
  std::vector<bool> remembered(state_->actors.count());
  for (const auto& [space, memory] : state_->shadows) {
    memory.visit_epochs([&](const Epoch& epoch, bool is_moot) {
      if (epoch.actor >= remembered.size() || remembered[epoch.actor]) return;
      if (is_moot && !with_names) return;
      remembered[epoch.actor] = !state_->actors.is_settled(epoch.actor, epoch.clock);
    });
  }
  return remembered;
}

std::uint64_t OrderChecker::sequence(ActorId actor) const noexcept {
  return state_->actors.sequence(actor);
}

std::uint64_t OrderChecker::gaps() const noexcept { return state_->gaps; }

std::uint64_t OrderChecker::work() const noexcept { return state_->work + state_->actors.work(); }

std::size_t OrderChecker::history_bytes() const noexcept {
  std::size_t bytes = state_->actors.clock_bytes();
  for (const auto& [event, clock] : state_->events) bytes += clock.size() * sizeof(std::uint64_t);
  for (const auto& [space, one] : state_->shadows) bytes += one.read_count() * sizeof(Epoch);
  return bytes;
}

std::size_t OrderChecker::interval_count() const noexcept { return state_->interval_count(); }

std::size_t OrderChecker::snapshot_count() const noexcept {
  return state_->actors.snapshot_count();
}

}  // namespace tern
