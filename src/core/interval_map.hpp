// An IntervalMap assigns values to ranges of byte offsets.
//
//   IntervalMap<int> map;
//   map.assign(0, 100, 1);   // [0, 100) -> 1
//   map.assign(40, 60, 2);   // [0, 40) -> 1, [40, 60) -> 2, [60, 100) -> 1
//
// The intervals are disjoint, sorted and half open, and there may be gaps between them. Offsets go
// up to 2^64 - 1, and operations on an empty range do nothing. The map only computes with offsets
// and never touches the memory that they describe.
//
// Adjacent intervals with equal values stay separate, because a value may depend on where its
// interval began. Call join() to merge them. Functions that change the map may throw
// std::bad_alloc. Thread-compatible: concurrent calls of const functions are safe, other calls need
// a lock.

#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>

namespace tern {

template <class Value>
class IntervalMap {
 public:
  /// The end and the value of an interval. The key in the map is the begin.
  struct Interval {
    std::uint64_t end;
    Value value;
  };
  using Map = std::map<std::uint64_t, Interval>;
  using iterator = typename Map::iterator;
  using const_iterator = typename Map::const_iterator;

  [[nodiscard]] bool empty() const noexcept { return map_.empty(); }
  [[nodiscard]] std::size_t size() const noexcept { return map_.size(); }
  [[nodiscard]] iterator begin() noexcept { return map_.begin(); }
  [[nodiscard]] iterator end() noexcept { return map_.end(); }
  [[nodiscard]] const_iterator begin() const noexcept { return map_.begin(); }
  [[nodiscard]] const_iterator end() const noexcept { return map_.end(); }
  void clear() noexcept { map_.clear(); }

  /// Returns the interval that contains `offset`, else the next interval after it, else end().
  [[nodiscard]] iterator first_behind(std::uint64_t offset) noexcept {
    iterator next = map_.upper_bound(offset);
    if (next == map_.begin()) return next;
    const iterator before = std::prev(next);
    return before->second.end > offset ? before : next;
  }
  [[nodiscard]] const_iterator first_behind(std::uint64_t offset) const noexcept {
    return const_cast<IntervalMap*>(this)->first_behind(offset);
  }
  /// Returns the interval that contains `offset`, or end() if `offset` lies in a gap.
  [[nodiscard]] const_iterator find(std::uint64_t offset) const noexcept {
    const const_iterator at = first_behind(offset);
    return at != map_.end() && at->first <= offset ? at : map_.end();
  }

  /// Calls visit(begin, end, value pointer) for each part of [begin, end), in ascending order. The
  /// pointer is null for a gap. Stops when visit returns false.
  template <class Visit>
  void visit(std::uint64_t begin, std::uint64_t end, Visit visit) const {
    std::uint64_t at = begin;
    for (const_iterator it = first_behind(begin); at < end;) {
      if (it == map_.end() || it->first >= end) {
        visit(at, end, static_cast<const Value*>(nullptr));
        return;
      }
      if (it->first > at) {
        if (!visit(at, it->first, static_cast<const Value*>(nullptr))) return;
        at = it->first;
      }
      const std::uint64_t stop = it->second.end < end ? it->second.end : end;
      if (!visit(at, stop, &it->second.value)) return;
      at = stop;
      ++it;
    }
  }

  /// Splits the interval that contains `offset` in two at `offset`. Both parts get a copy of the
  /// value. Does nothing if `offset` lies in a gap or at a boundary.
  void split(std::uint64_t offset) {
    iterator it = first_behind(offset);
    if (it == map_.end() || it->first >= offset) return;
    map_.emplace_hint(std::next(it), offset, Interval{it->second.end, it->second.value});
    it->second.end = offset;
  }

  /// Removes all values from [begin, end). Intervals that reach beyond the range are split first.
  void erase(std::uint64_t begin, std::uint64_t end) {
    if (begin >= end) return;
    split(begin);
    split(end);
    map_.erase(map_.lower_bound(begin), map_.lower_bound(end));
  }

  /// Makes [begin, end) one interval with `value` and removes what was there before.
  void assign(std::uint64_t begin, std::uint64_t end, Value value) {
    if (begin >= end) return;
    // Overwriting exactly one existing interval is by far the most common case, and it needs no
    // allocation.
    const iterator at = map_.lower_bound(begin);
    if (at != map_.end() && at->first == begin && at->second.end == end) {
      at->second.value = std::move(value);
      return;
    }
    erase(begin, end);
    map_.emplace_hint(map_.lower_bound(begin), begin, Interval{end, std::move(value)});
  }

  /// Splits at `begin` and `end`, then calls change(begin, end, value) for every interval in the
  /// range. `value` is a reference that may be modified. Gaps are skipped.
  template <class Change>
  void update(std::uint64_t begin, std::uint64_t end, Change change) {
    if (begin >= end) return;
    split(begin);
    split(end);
    for (iterator it = map_.lower_bound(begin); it != map_.end() && it->first < end; ++it) {
      change(it->first, it->second.end, it->second.value);
    }
  }

  /// Removes the intervals for which is_useless(begin, value) returns true.
  template <class IsUseless>
  void erase_if(IsUseless is_useless) {
    std::erase_if(map_,
                  [&](const auto& entry) { return is_useless(entry.first, entry.second.value); });
  }

  /// Calls absorb(left begin, left, right begin, right) for each pair of adjacent intervals without
  /// a gap. If absorb returns true, the two become one interval with the left value, which absorb
  /// may modify. The merged interval is then compared with its next neighbour.
  template <class Absorb>
  void join(Absorb absorb) {
    for (iterator it = map_.begin(); it != map_.end();) {
      const iterator next = std::next(it);
      if (next != map_.end() && it->second.end == next->first &&
          absorb(it->first, it->second.value, next->first, std::as_const(next->second.value))) {
        it->second.end = next->second.end;
        map_.erase(next);
      } else {
        it = next;
      }
    }
  }

 private:
  Map map_;
};

}  // namespace tern
