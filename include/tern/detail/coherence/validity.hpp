// Not part of the interface.
//
// Validity is the directory of a unified buffer: it says for each byte in which places the byte is
// up to date.
//
// Validity is a pure value. It computes with offsets and place numbers, and touches no memory of
// the buffer. The bytes are kept as intervals, each with the set of places that have the newest
// value. A byte that is valid in no place was never written. plan() computes the copies that an
// access needs, and apply() records that an access was granted.
//
// A change cannot fail if make_room() has succeeded before. A caller can therefore move bytes first
// and update the directory afterwards, and never has to undo a copy. For this reason Validity is a
// sorted list and not an IntervalMap: up to sixteen intervals need no heap memory. Not
// synchronized: the owner locks. check() tests these invariants:
// 1. Intervals are ascending, begin at 0, and cover all bytes.
// 2. Neighbouring intervals have different sets of places.
// 3. No byte is valid in a place that does not exist.

#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tern/core/access.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/buffer/byte_range.hpp"
#include "tern/detail/core/inline_vector.hpp"
#include "tern/detail/core/visibility.hpp"

namespace tern {

/// A set of places of one buffer. Places have numbers from 0 to 63, and 0 is the host.
struct PlaceSet {
  static constexpr unsigned max_places = 64;

  std::uint64_t bits = 0;

  [[nodiscard]] static constexpr PlaceSet of(unsigned place) noexcept {
    return {std::uint64_t{1} << place};
  }
  [[nodiscard]] constexpr bool empty() const noexcept { return bits == 0; }
  [[nodiscard]] constexpr bool has(unsigned place) const noexcept {
    return (bits >> place & 1) != 0;
  }
  [[nodiscard]] constexpr PlaceSet with(unsigned place) const noexcept {
    return {bits | of(place).bits};
  }
  [[nodiscard]] constexpr PlaceSet without(unsigned place) const noexcept {
    return {bits & ~of(place).bits};
  }
  [[nodiscard]] constexpr PlaceSet operator&(PlaceSet other) const noexcept {
    return {bits & other.bits};
  }
  [[nodiscard]] constexpr PlaceSet operator|(PlaceSet other) const noexcept {
    return {bits | other.bits};
  }
  [[nodiscard]] constexpr unsigned size() const noexcept {
    return static_cast<unsigned>(std::popcount(bits));
  }
  /// Returns the lowest place, or 64 if the set is empty.
  [[nodiscard]] constexpr unsigned first() const noexcept {
    return static_cast<unsigned>(std::countr_zero(bits));
  }
  friend constexpr bool operator==(const PlaceSet&, const PlaceSet&) noexcept = default;
};

/// Bytes [begin, end) to be copied from the place `source`.
struct CopyRun {
  std::size_t begin = 0, end = 0;
  unsigned source = 0;

  friend constexpr bool operator==(const CopyRun&, const CopyRun&) noexcept = default;
};

/// What Validity::plan() has to consider.
struct CopyCosts {
  /// The cost of copying from each place. plan() takes the cheapest source; of several, the lowest
  /// place.
  std::array<std::uint8_t, PlaceSet::max_places> of_source = {};
  /// Two runs are coalesced if the gap between them is smaller than this, is up to date at the
  /// source, and does not touch `leased`. Leased bytes are never overwritten, not even with equal
  /// bytes.
  std::size_t merge_below = 0;
  std::span<const ByteRange> leased = {};

  /// The cost of a source that is used only if there is no other.
  static constexpr std::uint8_t last_resort = 255;
  /// Returns the source that a copy is taken from.
  [[nodiscard]] unsigned cheapest(PlaceSet sources) const noexcept {
    unsigned best = sources.first();
    for (PlaceSet rest = sources; !rest.empty(); rest = rest.without(rest.first())) {
      if (of_source[rest.first()] < of_source[best]) best = rest.first();
    }
    return best;
  }
};

class TERN_EXPORT Validity {
 public:
  struct Interval {
    std::size_t begin = 0;
    PlaceSet valid = {};
  };

  /// Creates a directory of `bytes` bytes that were never written.
  explicit Validity(std::size_t bytes = 0) noexcept : bytes_(bytes) { intervals_.emplace_back(); }
  /// The moved-from directory keeps its size, and counts as never written.
  Validity(Validity&& other) noexcept;
  Validity& operator=(Validity&& other) noexcept;

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// Returns the number of intervals, which is at least one.
  [[nodiscard]] std::size_t size() const noexcept { return intervals_.size(); }
  /// Returns whether all bytes are up to date in the same places.
  [[nodiscard]] bool is_uniform() const noexcept { return size() == 1; }

  /// Calls visit(begin, end, PlaceSet) for the intervals in [begin, end), in ascending order.
  template <class Visit>
  void visit(std::size_t begin, std::size_t end, Visit visit) const {
    if (begin >= end) return;
    for (std::size_t i = index_of(begin); i < size() && data()[i].begin < end; ++i) {
      visit(data()[i].begin > begin ? data()[i].begin : begin, end_of(i) < end ? end_of(i) : end,
            data()[i].valid);
    }
  }

  /// Returns whether every byte of the range is up to date in the place. True for an empty range.
  [[nodiscard]] bool is_valid(std::size_t begin, std::size_t end, unsigned place) const noexcept {
    if (is_uniform()) [[likely]]
      return begin >= end || data()[0].valid.has(place);
    return valid_everywhere(begin, end).has(place);
  }
  /// Returns the places that are up to date if they are the same for all bytes, else the empty set.
  [[nodiscard]] PlaceSet uniform() const noexcept {
    return is_uniform() ? data()[0].valid : PlaceSet{};
  }
  /// Returns whether every byte is up to date in the place and nowhere else. If so, a write there
  /// changes nothing.
  [[nodiscard]] bool is_only(std::size_t begin, std::size_t end, unsigned place) const noexcept {
    if (is_uniform()) [[likely]]
      return begin >= end || data()[0].valid == PlaceSet::of(place);
    return are_all_only(begin, end, place);
  }
  /// Return the places that have every byte of the range, and the places that have at least one.
  [[nodiscard]] PlaceSet valid_everywhere(std::size_t begin, std::size_t end) const noexcept;
  [[nodiscard]] PlaceSet valid_somewhere(std::size_t begin, std::size_t end) const noexcept;
  /// Returns the first run of the range that was never written, or an empty range.
  [[nodiscard]] ByteRange first_unwritten(std::size_t begin, std::size_t end) const noexcept;

  /// Computes the copies that bring the range up to date in a place, and appends them to `runs` in
  /// ascending order. Up-to-date bytes are copied only in coalesced gaps, and bytes that were never
  /// written are not copied. Returns the number of bytes in coalesced gaps. Throws std::bad_alloc.
  std::size_t plan(std::size_t begin, std::size_t end, unsigned place, const CopyCosts& costs,
                   std::vector<CopyRun>& runs) const;

  /// Reserves memory for changes to that many ranges. Returns false if the host has no memory.
  [[nodiscard]] bool make_room(std::size_t ranges = 1) noexcept;

  // --- Changes to one range. Each requires room (make_room), also if it turns out to change
  // nothing.

  /// Records that an access was granted. A read makes all written bytes of the range up to date in
  /// the place too. A write makes the range up to date in the place and stale everywhere else.
  void apply(Access access, std::size_t begin, std::size_t end, unsigned place) noexcept;
  /// Makes the range stale in the place.
  void remove(std::size_t begin, std::size_t end, unsigned place) noexcept;
  /// Makes the range stale in the place, except for bytes that are up to date nowhere else.
  void remove_copy(std::size_t begin, std::size_t end, unsigned place) noexcept;
  /// Marks the range as never written.
  void forget(std::size_t begin, std::size_t end) noexcept;

  /// Checks the invariants. Fails with violation, naming the invariant that does not hold.
  [[nodiscard]] Result<void> check(PlaceSet existing) const noexcept;

 private:
  [[nodiscard]] bool are_all_only(std::size_t begin, std::size_t end,
                                  unsigned place) const noexcept;
  [[nodiscard]] const Interval* data() const noexcept { return intervals_.data(); }
  [[nodiscard]] Interval* data() noexcept { return intervals_.data(); }
  [[nodiscard]] std::size_t end_of(std::size_t index) const noexcept {
    return index + 1 < size() ? data()[index + 1].begin : bytes_;
  }
  /// Returns the index of the interval that contains the byte.
  [[nodiscard]] std::size_t index_of(std::size_t offset) const noexcept;
  void insert(std::size_t index, Interval interval) noexcept;
  /// Splits intervals at the ends of the range, applies `change` to each set of places in between,
  /// and merges neighbours that became equal.
  template <class Change>
  void change(std::size_t begin, std::size_t end, Change change) noexcept;

  std::size_t bytes_ = 0;
  InlineVector<Interval, 16> intervals_;  // at least one
};

}  // namespace tern
