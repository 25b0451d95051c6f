#include "trace/slice.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "core/interval_map.hpp"
#include "tern/core/error.hpp"
#include "trace/actors.hpp"
#include "trace/note.hpp"
#include "trace/order_checker.hpp"

namespace tern {
namespace {

using Records = std::span<const TraceRecord>;
/// One flag per record up to the finding. Not bool, because std::vector<bool> packs its elements.
using Flags = std::vector<unsigned char>;

/// Above this number of records, the slice is not thinned, because each attempt replays all of it.
constexpr std::size_t max_records_to_thin = 400;

/// Returns true if the record concerns the clock of the host thread and not that of a stream.
bool is_by_host(const TraceRecord& record) noexcept {
  switch (record.kind) {
    case RecordKind::host_wait_mark:
    case RecordKind::host_wait_event:
    case RecordKind::host_access:
    case RecordKind::release_edge:
    case RecordKind::acquire_edge:
    case RecordKind::shutdown:
      return true;
    default:
      return false;
  }
}
ActorId actor_of(const TraceRecord& record) noexcept {
  return is_by_host(record) ? record.host : record.actor;
}
/// Returns true if the record counts as an operation of its actor.
bool is_step(const TraceRecord& record) noexcept {
  switch (record.kind) {
    case RecordKind::operation:
    case RecordKind::record_event:
    case RecordKind::wait_event:
    case RecordKind::host_access:
    case RecordKind::release_edge:
      return true;
    default:
      return false;
  }
}
bool is_actor(const TraceRecord& record) noexcept {
  return record.kind == RecordKind::actor_begins || record.kind == RecordKind::actor_ends;
}

bool overlaps(const SpaceRange& a, const SpaceRange& b) noexcept {
  return a.space == b.space && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
}

class ByteSet {
 public:
  void add(const SpaceRange& range) {
    spaces_[range.space].assign(range.offset, range.offset + range.bytes, {});
  }
  void remove(const SpaceRange& range) {
    spaces_[range.space].erase(range.offset, range.offset + range.bytes);
  }
  [[nodiscard]] bool overlaps(const SpaceRange& range) const {
    const auto space = spaces_.find(range.space);
    if (space == spaces_.end() || range.bytes == 0) return false;
    const auto next = space->second.first_behind(range.offset);
    return next != space->second.end() && next->first < range.offset + range.bytes;
  }

 private:
  struct Member {};
  std::map<std::uint32_t, IntervalMap<Member>> spaces_;
};

// --- Which operations

/// Chooses the operations on the affected bytes, and the operations that they need in order to be
/// judged as before: the allocation of each block, and a write of each byte that is read.
class Operations {
 public:
  Operations(Records records, const SpaceRange* concerned) : records_(records) {
    const TraceRecord& last = records.back();
    for (const Touch& touch : last.touches) {
      if (concerned == nullptr || concerned->space != touch.range.space) {
        if (concerned == nullptr) concerned_.add(touch.range);
        continue;
      }
      // Include one more byte on either side, if the access extends there: the state of that byte
      // is the reason why the finding ends there.
      const std::uint64_t begin = std::max(
          touch.range.offset, concerned->offset - std::min<std::uint64_t>(1, concerned->offset));
      const std::uint64_t end = std::min(touch.range.offset + touch.range.bytes,
                                         concerned->offset + concerned->bytes + 1);
      if (begin < end) concerned_.add({concerned->space, begin, end - begin});
    }
    if (concerned != nullptr) concerned_.add(*concerned);
    chosen_.assign(records.size(), 0);
    chosen_.back() = 1;
  }

  /// Returns the chosen operations, including those in `wanted`, which Order needs.
  [[nodiscard]] const Flags& choose(const Flags& wanted) {
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i] && !records_[i].touches.empty()) chosen_[i] = 1;
    }
    do {
      choose_backwards();
    } while (complete_lives());
    return chosen_;
  }

 private:
  /// Bytes that later operations of the slice still need something for.
  struct Lacking {
    ByteSet contents;  // need a write
    ByteSet block;     // need an allocation of either kind
    ByteSet driver;    // need the allocation of a driver block
    ByteSet piece;     // need the allocation of a pool block
  };

  void choose_backwards() {
    Lacking lacking;
    for (std::size_t i = records_.size(); i-- > 0;) {
      const TraceRecord& record = records_[i];
      if (!chosen_[i]) {
        chosen_[i] = std::ranges::any_of(record.touches, [&](const Touch& touch) {
          return touch.range.bytes > 0 && is_needed(touch, lacking);
        });
      }
      if (!chosen_[i]) continue;
      for (const Touch& touch : record.touches) supply(touch, lacking);
      for (const Touch& touch : record.touches) demand(touch, lacking);
    }
  }

  [[nodiscard]] bool is_needed(const Touch& touch, const Lacking& lacking) const {
    if (concerned_.overlaps(touch.range)) return true;
    if (is_birth(touch.kind)) {
      const bool is_piece = touch.kind == TouchKind::suballocate;
      return lacking.block.overlaps(touch.range) ||
             (is_piece ? lacking.piece : lacking.driver).overlaps(touch.range);
    }
    return !is_death(touch.kind) && touch.kind != TouchKind::read &&
           lacking.contents.overlaps(touch.range);
  }

  static void supply(const Touch& touch, Lacking& lacking) {
    if (touch.kind == TouchKind::read || is_death(touch.kind)) return;
    lacking.contents.remove(touch.range);
    if (!is_birth(touch.kind)) return;
    lacking.block.remove(touch.range);
    (touch.kind == TouchKind::suballocate ? lacking.piece : lacking.driver).remove(touch.range);
  }

  static void demand(const Touch& touch, Lacking& lacking) {
    if (is_birth(touch.kind)) return;
    if (is_death(touch.kind)) {
      (touch.kind == TouchKind::subrelease ? lacking.piece : lacking.driver).add(touch.range);
      return;
    }
    lacking.block.add(touch.range);
    if (touch.kind != TouchKind::write) lacking.contents.add(touch.range);
  }

  /// Adds the free of each chosen block, because a later block would otherwise be allocated twice.
  /// Also adds the first pool block in each driver block, which makes the rest of the driver block
  /// reserved. Returns true if something was added.
  bool complete_lives() {
    bool has_grown = false;
    const auto choose = [&](std::size_t i) {
      has_grown = has_grown || !chosen_[i];
      chosen_[i] = 1;
    };
    for (std::size_t i = 0; i < records_.size(); ++i) {
      if (!chosen_[i]) continue;
      for (const Touch& touch : records_[i].touches) {
        if (!is_birth(touch.kind)) continue;
        const bool is_piece = touch.kind == TouchKind::suballocate;
        bool is_whole = !is_piece;
        for (std::size_t later = i + 1; later < records_.size(); ++later) {
          const Touch* cut = first_in(records_[later], touch.range, TouchKind::suballocate);
          if (cut != nullptr && is_whole) {
            choose(later);
            is_whole = false;
          }
          const TouchKind death = is_piece ? TouchKind::subrelease : TouchKind::release;
          if (first_in(records_[later], touch.range, death) == nullptr) continue;
          choose(later);
          break;
        }
      }
    }
    return has_grown;
  }

  static const Touch* first_in(const TraceRecord& record, const SpaceRange& range, TouchKind kind) {
    for (const Touch& touch : record.touches) {
      if (touch.kind == kind && overlaps(touch.range, range)) return &touch;
    }
    return nullptr;
  }

  const Records records_;
  ByteSet concerned_;
  Flags chosen_;
};

// --- Which order

/// Replays the vector clocks as the checker computes them. The listener receives each clock that an
/// actor is about to join, and the source of the clock.
class Replay {
 public:
  /// The source of a clock: a record that the slice must contain, or everything that an actor did
  /// before record `until`.
  struct Source {
    static constexpr std::size_t none = static_cast<std::size_t>(-1);
    std::size_t record = none;
    ActorId actor = 0;
    std::size_t until = 0;
  };

  Actors actors;

  Replay() { actors.begin(0, ActorKind::host, 0, {}, 0); }

  template <class Listener>
  void apply(const TraceRecord& record, std::size_t index, Listener listen) {
    const ActorId self = actor_of(record);
    const auto learn = [&](const VectorClock& clock, const Source& source) {
      listen(clock, source);
      actors.learn(self, clock);
    };
    switch (record.kind) {
      case RecordKind::actor_begins:
        static_cast<void>(actors.at(record.host));
        listen(actors.at(record.host).clock, Source{Source::none, record.host, index});
        actors.begin(record.actor, record.actor_kind, record.device, {}, record.host);
        break;
      case RecordKind::operation:
      case RecordKind::record_event:
      case RecordKind::wait_event:
        submit(record, index, listen);
        break;
      case RecordKind::host_access:
      case RecordKind::release_edge:
        if (record.kind == RecordKind::host_access) actors.step(self);
        break;
      case RecordKind::host_wait_mark:
        learn(actors.clock_at(record.actor, record.sequence),
              Source{Source::none, record.actor, step_record(record.actor, record.sequence)});
        break;
      default:
        break;
    }
    follow_events(record, index, learn);
    if (!is_step(record)) return;
    steps_[self].push_back(index);
  }

 private:
  struct Event {
    VectorClock clock;
    std::vector<std::size_t> records;
  };
  template <class Listener>
  void submit(const TraceRecord& record, std::size_t index, Listener listen) {
    static_cast<void>(actors.at(std::max(record.actor, record.host)));
    if (record.host != record.actor) {
      listen(actors.at(record.host).clock, Source{Source::none, record.host, index});
    }
    for (ActorId id = 0; id < actors.count(); ++id) {
      if (are_partners(*actors.find(record.actor), *actors.find(id))) {
        listen(actors.find(id)->clock, Source{Source::none, id, index});
      }
    }
    actors.submit(record.actor, record.host);
  }

  /// The default stream of a device and its blocking streams are ordered with each other.
  static bool are_partners(const Actor& a, const Actor& b) noexcept {
    const bool is_pair =
        (a.kind == ActorKind::default_stream && b.kind == ActorKind::blocking_stream) ||
        (a.kind == ActorKind::blocking_stream && b.kind == ActorKind::default_stream);
    return is_pair && a.device == b.device;
  }

  template <class Learn>
  void follow_events(const TraceRecord& record, std::size_t index, Learn learn) {
    switch (record.kind) {
      case RecordKind::record_event:
        events_[record.event] = {actors.at(record.actor).clock, {index}};
        break;
      case RecordKind::release_edge: {
        Event& event = events_[record.event];
        event.clock.join(actors.released_by(record.host, record.actor));
        event.records.push_back(index);
        actors.step(record.host);
        break;
      }
      case RecordKind::wait_event:
      case RecordKind::host_wait_event:
      case RecordKind::acquire_edge:
        if (const auto event = events_.find(record.event); event != events_.end()) {
          for (const std::size_t from : event->second.records) {
            learn(event->second.clock, Source{from, 0, 0});
          }
        }
        break;
      case RecordKind::event_ends:
        events_.erase(record.event);
        break;
      default:
        break;
    }
  }

  [[nodiscard]] std::size_t step_record(ActorId actor, std::uint64_t sequence) const {
    const auto steps = steps_.find(actor);
    if (steps == steps_.end() || sequence == 0) return 0;
    const std::size_t count = steps->second.size();
    return steps->second[std::min<std::uint64_t>(sequence, count) - 1] + 1;
  }

  std::unordered_map<std::uint64_t, Event> events_;
  std::unordered_map<ActorId, std::vector<std::size_t>> steps_;
};

/// Chooses the records and waits that order the chosen operations.
class Order {
 public:
  Order(Records records, const Flags& operations) : records_(records), operations_(operations) {
    count_operations();
    find_sources();
  }

  [[nodiscard]] Flags choose() {
    Flags chosen = operations_;
    choose_clues();
    for (const std::size_t clue : clues_) chosen[clue] = 1;
    std::unordered_map<ActorId, std::size_t> live;  // records of the actor before this one matter
    for (std::size_t i = records_.size(); i-- > 0;) {
      const ActorId self = actor_of(records_[i]);
      if (!chosen[i] && raises_[i] && i < live[self]) chosen[i] = 1;
      if (!chosen[i]) continue;
      live[self] = std::max(live[self], i);
      for (const Replay::Source& source : sources_[i]) {
        if (source.record != Replay::Source::none) {
          chosen[source.record] = 1;
        } else {
          live[source.actor] = std::max(live[source.actor], source.until);
        }
      }
    }
    choose_beginnings(chosen);
    thin(chosen);
    return chosen;
  }

 private:
  void count_operations() {
    Replay replay;
    for (std::size_t i = 0; i < records_.size(); ++i) {
      replay.apply(records_[i], i, [](const VectorClock&, const Replay::Source&) {});
      if (!operations_[i]) continue;
      const ActorId self = actor_of(records_[i]);
      positions_[self].push_back(replay.actors.sequence(self));
    }
    find_unknown(replay.actors);
  }

  /// Finds the latest chosen operation that the last record is not ordered after.
  void find_unknown(const Actors& actors) {
    const ActorId last = actor_of(records_.back());
    std::map<ActorId, std::size_t> behind;  // number of operations of the actor after this one
    for (std::size_t i = records_.size() - 1; i-- > 0;) {
      if (!operations_[i]) continue;
      const ActorId self = actor_of(records_[i]);
      const std::vector<std::uint64_t>& all = positions_[self];
      const std::uint64_t sequence = all[all.size() - 1 - behind[self]++];
      if (self == last || actors.known(last, self) >= sequence) continue;
      unknown_ = i;
      unknown_sequence_ = sequence;
      return;
    }
  }

  /// Returns how many of the first `sequence` operations of the actor are chosen.
  [[nodiscard]] std::size_t count(ActorId actor, std::uint64_t sequence) const {
    const auto positions = positions_.find(actor);
    if (positions == positions_.end()) return 0;
    const std::vector<std::uint64_t>& all = positions->second;
    return static_cast<std::size_t>(std::ranges::upper_bound(all, sequence) - all.begin());
  }

  void find_sources() {
    sources_.resize(records_.size());
    raises_.assign(records_.size(), 0);
    Replay replay;
    for (std::size_t i = 0; i < records_.size(); ++i) {
      const ActorId self = actor_of(records_[i]);
      const auto listen = [&](const VectorClock& clock, const Replay::Source& source) {
        // A wait in the slice must find the same event record as before, whatever it is in the
        // slice for.
        const bool raises = is_news(replay.actors, self, clock);
        raises_[i] = raises_[i] || raises;
        if (raises || source.record != Replay::Source::none) sources_[i].push_back(source);
      };
      const bool knew = knows_unknown(replay.actors, self);
      replay.apply(records_[i], i, listen);
      learns_unknown_.push_back(!knew && knows_unknown(replay.actors, self));
    }
  }

  [[nodiscard]] bool knows_unknown(const Actors& actors, ActorId self) const {
    return unknown_ && actors.known(self, actor_of(records_[*unknown_])) >= unknown_sequence_;
  }

  [[nodiscard]] bool is_news(const Actors& actors, ActorId self, const VectorClock& clock) const {
    return std::ranges::any_of(positions_, [&](const auto& entry) {
      const ActorId other = entry.first;
      return other != self &&
             count(other, clock.at(other)) > count(other, actors.known(self, other));
    });
  }

  /// Chooses records that only the text of the report needs: the actor's wait for an event that was
  /// never recorded, and the first record at which another actor has the missing order.
  void choose_clues() {
    std::unordered_map<std::uint64_t, bool> is_recorded;
    std::optional<std::size_t> idle, witness;
    const ActorId self = actor_of(records_.back());
    for (std::size_t i = 0; i < records_.size(); ++i) {
      const TraceRecord& record = records_[i];
      if (record.kind == RecordKind::record_event) is_recorded[record.event] = true;
      if (record.kind == RecordKind::event_ends) is_recorded[record.event] = false;
      const bool waits =
          record.kind == RecordKind::wait_event || record.kind == RecordKind::host_wait_event;
      if (waits && actor_of(record) == self && !is_recorded[record.event]) idle = i;
      if (unknown_ && i > *unknown_ && !witness && learns_unknown_[i]) witness = i;
    }
    if (idle) clues_.push_back(*idle);
    if (witness) clues_.push_back(*witness);
  }

  /// Adds the begin and end of every actor and the end of every event in the slice.
  void choose_beginnings(Flags& chosen) const {
    std::unordered_map<ActorId, bool> acts;
    std::unordered_map<std::uint64_t, bool> is_used;
    for (std::size_t i = 0; i < records_.size(); ++i) {
      if (!chosen[i]) continue;
      acts[actor_of(records_[i])] = acts[records_[i].host] = true;
      is_used[records_[i].event] = true;
    }
    for (std::size_t i = 0; i < records_.size(); ++i) {
      const TraceRecord& record = records_[i];
      if (is_actor(record) && acts[record.actor]) chosen[i] = 1;
      if (record.kind == RecordKind::event_ends && is_used[record.event]) chosen[i] = 1;
    }
  }

  /// Removes records that are not operations, one by one, as long as the order of the chosen
  /// operations stays the same. Often several actors carry the same order, and one of them is
  /// sufficient.
  void thin(Flags& chosen) const {
    if (static_cast<std::size_t>(std::ranges::count(chosen, 1)) > max_records_to_thin) return;
    const std::vector<VectorClock> wanted = knowledge(chosen);
    for (std::size_t i = records_.size(); i-- > 0;) {
      if (!chosen[i] || operations_[i] || is_actor(records_[i])) continue;
      const bool is_clue = std::ranges::find(clues_, i) != clues_.end();
      if (is_clue || feeds_clue(i) || records_[i].kind == RecordKind::event_ends) continue;
      chosen[i] = 0;
      if (!is_same(knowledge(chosen), wanted)) chosen[i] = 1;
    }
  }

  [[nodiscard]] bool feeds_clue(std::size_t record) const {
    return std::ranges::any_of(clues_, [&](std::size_t clue) {
      return std::ranges::find(sources_[clue], record, &Replay::Source::record) !=
             sources_[clue].end();
    });
  }

  struct SameClock {
    std::size_t actors;
    bool operator()(const VectorClock& a, const VectorClock& b) const {
      for (std::size_t i = 0; i < actors; ++i) {
        if (a.at(i) != b.at(i)) return false;
      }
      return true;
    }
  };
  [[nodiscard]] bool is_same(const std::vector<VectorClock>& a,
                             const std::vector<VectorClock>& b) const {
    std::size_t actors = 0;
    for (const auto& [actor, positions] : positions_) actors = std::max<std::size_t>(actors, actor);
    return std::ranges::equal(a, b, SameClock{actors + 1});
  }

  /// Returns, for each chosen operation, how many chosen operations of every actor it is ordered
  /// after.
  [[nodiscard]] std::vector<VectorClock> knowledge(const Flags& chosen) const;

  const Records records_;
  const Flags& operations_;
  // The sequence numbers of the chosen operations of each actor.
  std::map<ActorId, std::vector<std::uint64_t>> positions_;
  std::vector<std::vector<Replay::Source>> sources_;
  Flags raises_;
  std::optional<std::size_t> unknown_;
  std::uint64_t unknown_sequence_ = 0;
  Flags learns_unknown_;
  std::vector<std::size_t> clues_;
};

/// Tracks which operations of each actor are chosen, to renumber waits.
class Renumbering {
 public:
  /// Returns the record with the numbers that apply among the chosen records.
  [[nodiscard]] TraceRecord renumbered(TraceRecord record) const {
    if (record.kind != RecordKind::host_wait_mark) return record;
    const auto found = steps_.find(record.actor);
    if (found == steps_.end()) {
      record.sequence = 0;
      return record;
    }
    const std::span steps(found->second);
    const std::uint64_t passed = std::min<std::uint64_t>(record.sequence, steps.size());
    record.sequence = static_cast<std::uint64_t>(std::ranges::count(steps.first(passed), 1));
    return record;
  }
  void pass(const TraceRecord& record, bool is_chosen) {
    if (is_step(record)) steps_[actor_of(record)].push_back(is_chosen ? 1 : 0);
  }

 private:
  std::unordered_map<ActorId, Flags> steps_;
};

std::vector<VectorClock> Order::knowledge(const Flags& chosen) const {
  std::vector<VectorClock> known;
  std::map<ActorId, std::vector<std::uint64_t>> positions;
  Renumbering numbers;
  Replay replay;
  for (std::size_t i = 0; i < records_.size(); ++i) {
    const TraceRecord& record = records_[i];
    if (chosen[i]) {
      replay.apply(numbers.renumbered(record), i, [](const VectorClock&, const Replay::Source&) {});
    }
    numbers.pass(record, chosen[i] != 0);
    if (!operations_[i]) continue;
    const ActorId self = actor_of(record);
    positions[self].push_back(replay.actors.sequence(self));
    VectorClock counts;
    for (const auto& [actor, all] : positions) {
      counts.set(actor, static_cast<std::uint64_t>(
                            std::ranges::upper_bound(all, replay.actors.known(self, actor)) -
                            all.begin()));
    }
    known.push_back(std::move(counts));
  }
  return known;
}

std::vector<std::size_t> indices_of(const Flags& chosen) {
  std::vector<std::size_t> indices;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    if (chosen[i]) indices.push_back(i);
  }
  return indices;
}

/// Returns the finding at the last record.
std::optional<Finding> finding_at_end(Records records) {
  OrderChecker checker;
  std::optional<Finding> finding;
  for (const TraceRecord& record : records) {
    finding = checker.check(record, OrderChecker::OnFinding::apply);
  }
  return finding;
}

bool gives(Records records, const Flags& chosen, const Finding& wanted) {
  const RecordList some = extract(records, indices_of(chosen));
  const std::optional<Finding> found = finding_at_end(some.records());
  return found && found->code == wanted.code && found->range.space == wanted.range.space &&
         found->range.offset == wanted.range.offset && found->range.bytes == wanted.range.bytes;
}

}  // namespace

std::vector<std::size_t> slice(std::span<const TraceRecord> all, std::size_t at) {
  if (at >= all.size()) {
    raise(Failure(ErrorCode::invalid_argument,
                  "record {value} cannot be sliced: the trace has {count}. Give the index of a "
                  "record with a finding.")
              .with("name", "at")
              .with("value", at)
              .with("count", all.size()));
  }
  const Records records = all.first(at + 1);
  const std::optional<Finding> finding = finding_at_end(records);
  Operations operations(records, finding ? &finding->range : nullptr);
  Flags chosen, before;
  do {
    // Order may come from operations on other bytes, which then need allocations and writes of
    // their own.
    before = operations.choose(chosen);
    chosen = Order(records, before).choose();
  } while (operations.choose(chosen) != before);
  if (finding && !gives(records, chosen, *finding)) {
    // In some traces, such as one with frees of wrong ranges, order follows from details of the
    // checker that are not modelled here. Then keep all records except unrelated operations. If
    // that does not reproduce the finding either, keep all records.
    chosen = before;
    for (std::size_t i = 0; i < records.size(); ++i) {
      if (records[i].kind != RecordKind::operation && records[i].kind != RecordKind::host_access) {
        chosen[i] = 1;
      }
    }
    if (!gives(records, chosen, *finding)) chosen.assign(records.size(), 1);
  }
  return indices_of(chosen);
}

RecordList extract(std::span<const TraceRecord> records, std::span<const std::size_t> chosen) {
  RecordList list;
  Renumbering numbers;
  auto next = chosen.begin();
  for (std::size_t i = 0; i < records.size() && next != chosen.end(); ++i) {
    const bool is_chosen = *next == i;
    if (is_chosen) list.add(numbers.renumbered(records[i]));
    numbers.pass(records[i], is_chosen);
    if (is_chosen) ++next;
  }
  return list;
}

}  // namespace tern
