// A small stream-ordered pool with a switch for each of six classic mistakes, for testing the
// checker. It keeps an address-ordered, coalescing free list and one event per stream, and reports
// its blocks to the checker as a real pool would.
//
//   free      records the stream's event and inserts the block in its list.
//   allocate  on s: (1) best fit in the list of s; (2) steal: from the first other stream o with a
//             fit, s waits for the event of o, the remainder stays with o; (3) merge: for each
//             other stream o in turn, s waits for the event of o, all blocks of o move to s, the
//             event of s is recorded, and (1) is tried again.

#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "trace/order_checker.hpp"
#include "trace/record_list.hpp"

namespace tern::tools {

enum class Mistake : std::uint8_t {
  none,
  merge_without_record,      // M1: (3) does not record the event of s
  steal_without_wait,        // M2: (2) does not wait
  remainder_to_thief,        // M3: in (2) the remainder goes to s, whose event is older
  event_at_first_free_only,  // M4
  thief_waits_for_itself,    // M5: in (2) s waits for its own event
  merge_without_wait,        // M6: (3) does not wait
};

inline constexpr std::array all_mistakes = {
    Mistake::merge_without_record,   Mistake::steal_without_wait,
    Mistake::remainder_to_thief,     Mistake::event_at_first_free_only,
    Mistake::thief_waits_for_itself, Mistake::merge_without_wait};

inline constexpr std::string_view name_of(Mistake mistake) {
  switch (mistake) {
    case Mistake::none:
      break;
    case Mistake::merge_without_record:
      return "merge without record";
    case Mistake::steal_without_wait:
      return "steal without wait";
    case Mistake::remainder_to_thief:
      return "remainder to the thief";
    case Mistake::event_at_first_free_only:
      return "event at the first free only";
    case Mistake::thief_waits_for_itself:
      return "thief waits for itself";
    case Mistake::merge_without_wait:
      return "merge without wait";
  }
  return "none";
}

class PlantedPool {
 public:
  static constexpr std::uint32_t space = 1;
  static constexpr std::uint64_t granule = 256;

  /// Every record is also appended to `kept`, if it is set.
  PlantedPool(OrderChecker& checker, std::uint64_t bytes, ActorId streams, Mistake mistake,
              RecordList* kept = nullptr)
      : checker_(checker), kept_(kept), streams_(streams), mistake_(mistake) {
    for (ActorId stream = 1; stream <= streams; ++stream) {
      check({.kind = RecordKind::actor_begins, .actor = stream});
    }
    const Touch slab{TouchKind::allocate, {space, 0, bytes}};
    check({.kind = RecordKind::host_access,
           .operation = OperationKind::allocate,
           .touches = {&slab, 1}});
    lists_[1].emplace(0, bytes);
  }

  [[nodiscard]] const std::optional<Finding>& finding() const { return finding_; }

  [[nodiscard]] std::optional<std::uint64_t> allocate(ActorId s, std::uint64_t bytes) {
    bytes = (bytes + granule - 1) / granule * granule;
    std::optional<std::uint64_t> offset = take(s, s, bytes);
    if (!offset) offset = steal(s, bytes);
    if (!offset) offset = merge(s, bytes);
    if (offset) life(TouchKind::suballocate, OperationKind::allocate, s, *offset, bytes);
    return offset;
  }

  void free(ActorId s, std::uint64_t offset, std::uint64_t bytes) {
    bytes = (bytes + granule - 1) / granule * granule;
    life(TouchKind::subrelease, OperationKind::release, s, offset, bytes);
    if (mistake_ != Mistake::event_at_first_free_only || !has_freed_[s]) record(s);
    has_freed_[s] = true;
    insert(s, offset, bytes);
  }

  void use(ActorId s, TouchKind kind, std::uint64_t offset, std::uint64_t bytes) {
    const Touch touch{kind, {space, offset, bytes}};
    check({.operation = OperationKind::kernel,
           .actor = s,
           .name = kind == TouchKind::read ? "verify" : "fill",
           .touches = {&touch, 1}});
  }

 private:
  using FreeList = std::map<std::uint64_t, std::uint64_t>;

  void check(const TraceRecord& record) {
    if (kept_ != nullptr) kept_->add(record);
    std::optional<Finding> found = checker_.check(record, OrderChecker::OnFinding::apply);
    if (found && !finding_) finding_ = std::move(found);
  }
  void life(TouchKind kind, OperationKind operation, ActorId s, std::uint64_t offset,
            std::uint64_t bytes) {
    const Touch touch{kind, {space, offset, bytes}};
    check({.operation = operation, .actor = s, .touches = {&touch, 1}});
  }
  void record(ActorId s) { check({.kind = RecordKind::record_event, .actor = s, .event = s}); }
  void wait(ActorId s, ActorId event) {
    check({.kind = RecordKind::wait_event, .actor = s, .event = event});
  }

  void insert(ActorId s, std::uint64_t offset, std::uint64_t bytes) {
    FreeList& list = lists_[s];
    auto at = list.emplace(offset, bytes).first;
    if (const auto next = std::next(at); next != list.end() && next->first == offset + bytes) {
      at->second += next->second;
      list.erase(next);
    }
    if (at != list.begin()) {
      if (const auto before = std::prev(at); before->first + before->second == offset) {
        before->second += at->second;
        list.erase(at);
      }
    }
  }

  /// Takes the best fit from the list of `owner`. The remainder is added to the list of `heir`.
  std::optional<std::uint64_t> take(ActorId owner, ActorId heir, std::uint64_t bytes) {
    FreeList& list = lists_[owner];
    auto best = list.end();
    for (auto it = list.begin(); it != list.end(); ++it) {
      if (it->second >= bytes && (best == list.end() || it->second < best->second)) best = it;
    }
    if (best == list.end()) return std::nullopt;
    const auto [offset, size] = *best;
    list.erase(best);
    if (size > bytes) insert(heir, offset + bytes, size - bytes);
    return offset;
  }

  std::optional<std::uint64_t> steal(ActorId s, std::uint64_t bytes) {
    for (ActorId o = 1; o <= streams_; ++o) {
      if (o == s) continue;
      const ActorId heir = mistake_ == Mistake::remainder_to_thief ? s : o;
      const std::optional<std::uint64_t> offset = take(o, heir, bytes);
      if (!offset) continue;
      if (mistake_ == Mistake::thief_waits_for_itself) {
        wait(s, s);
      } else if (mistake_ != Mistake::steal_without_wait) {
        wait(s, o);
      }
      return offset;
    }
    return std::nullopt;
  }

  std::optional<std::uint64_t> merge(ActorId s, std::uint64_t bytes) {
    for (ActorId o = 1; o <= streams_; ++o) {
      if (o == s) continue;
      if (mistake_ != Mistake::merge_without_wait) wait(s, o);
      const FreeList moved = std::exchange(lists_[o], {});
      for (const auto& [offset, size] : moved) insert(s, offset, size);
      if (mistake_ != Mistake::merge_without_record) record(s);
      if (const std::optional<std::uint64_t> offset = take(s, s, bytes)) return offset;
    }
    return std::nullopt;
  }

  OrderChecker& checker_;
  RecordList* const kept_;
  const ActorId streams_;
  const Mistake mistake_;
  std::map<ActorId, FreeList> lists_;
  std::map<ActorId, bool> has_freed_;
  std::optional<Finding> finding_;
};

}  // namespace tern::tools
