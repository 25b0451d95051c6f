// An IntervalMap gives values to ranges of bytes: disjoint, sorted, with gaps where there is none.
//
// It is a pure value: it computes with offsets and touches no memory. Ranges are half open, end at
// 2^64 - 1 at the latest, and an empty one stands for nothing. Neighbours with equal values are not
// joined by themselves, because a value may know where its range began; `join` does it on demand.
// Thread-compatible.

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

  /// The first interval that ends behind `offset`: the one that holds it, or the next one.
  [[nodiscard]] iterator first_behind(std::uint64_t offset) noexcept {
    iterator next = map_.upper_bound(offset);
    if (next == map_.begin()) return next;
    const iterator before = std::prev(next);
    return before->second.end > offset ? before : next;
  }
  [[nodiscard]] const_iterator first_behind(std::uint64_t offset) const noexcept {
    return const_cast<IntervalMap*>(this)->first_behind(offset);
  }
  /// The interval that holds the byte, or end().
  [[nodiscard]] const_iterator find(std::uint64_t offset) const noexcept {
    const const_iterator at = first_behind(offset);
    return at != map_.end() && at->first <= offset ? at : map_.end();
  }

  /// Calls visit(begin, end, value pointer) over [begin, end) in ascending order; the pointer is
  /// null for a gap. Ends early when visit returns false.
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

  /// Makes `offset` a border if it lies inside an interval; both halves keep the value.
  void split(std::uint64_t offset) {
    iterator it = first_behind(offset);
    if (it == map_.end() || it->first >= offset) return;
    map_.emplace_hint(std::next(it), offset, Interval{it->second.end, it->second.value});
    it->second.end = offset;
  }

  /// Removes whatever is in [begin, end).
  void erase(std::uint64_t begin, std::uint64_t end) {
    if (begin >= end) return;
    split(begin);
    split(end);
    map_.erase(map_.lower_bound(begin), map_.lower_bound(end));
  }

  /// Replaces whatever is in [begin, end) by one interval.
  void assign(std::uint64_t begin, std::uint64_t end, Value value) {
    if (begin >= end) return;
    // The commonest case by far is writing over an interval exactly: no node changes hands then.
    const iterator at = map_.lower_bound(begin);
    if (at != map_.end() && at->first == begin && at->second.end == end) {
      at->second.value = std::move(value);
      return;
    }
    erase(begin, end);
    map_.emplace_hint(map_.lower_bound(begin), begin, Interval{end, std::move(value)});
  }

  /// Calls change(begin, end, value) for every interval inside [begin, end), after splitting at
  /// both ends.
  template <class Change>
  void update(std::uint64_t begin, std::uint64_t end, Change change) {
    if (begin >= end) return;
    split(begin);
    split(end);
    for (iterator it = map_.lower_bound(begin); it != map_.end() && it->first < end; ++it) {
      change(it->first, it->second.end, it->second.value);
    }
  }

  /// Removes the intervals for which is_useless(begin, value) holds.
  template <class IsUseless>
  void erase_if(IsUseless is_useless) {
    std::erase_if(map_,
                  [&](const auto& entry) { return is_useless(entry.first, entry.second.value); });
  }

  /// Joins touching neighbours while absorb(left begin, left, right begin, right) returns true; it
  /// may change the left value, which stands for both then.
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
