// Validity says for each byte of a buffer in which places it is up to date.
//
// It is a pure value: it computes with offsets and numbers of places, and touches no memory. Bytes
// are kept as intervals, each with the set of places that hold the newest value; a byte in no place
// was never written. From that follow the copies an access needs (plan), and what is true once the
// access was granted (apply).
//
// Changing it cannot fail once there is room for it (make_room), so that whoever moves bytes first
// and tells afterwards never has to undo. That is why it is a sorted list, and no IntervalMap:
// sixteen intervals need no heap memory. Thread-compatible. Invariants, which check() looks at:
//  1. Intervals are ascending, begin at 0, and cover all bytes.
//  2. Neighbours differ.
//  3. No byte is valid in a place that does not exist.

#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tern/buffer/storage.hpp"
#include "tern/core/access.hpp"
#include "tern/core/export.hpp"
#include "tern/core/result.hpp"

namespace tern {

/// Numbers from 0 to 63, each a place of one buffer: 0 is the host.
struct PlaceSet {
  static constexpr unsigned most = 64;

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
  /// The lowest number; of no place 64.
  [[nodiscard]] constexpr unsigned first() const noexcept {
    return static_cast<unsigned>(std::countr_zero(bits));
  }
  friend constexpr bool operator==(const PlaceSet&, const PlaceSet&) noexcept = default;
};

/// Bytes [begin, end) to be copied from one place.
struct CopyRun {
  std::size_t begin = 0, end = 0;
  unsigned source = 0;

  friend constexpr bool operator==(const CopyRun&, const CopyRun&) noexcept = default;
};

/// What a plan takes into account.
struct CopyCosts {
  /// Of copying from each place; the lowest is taken, of several the lowest number.
  std::array<std::uint8_t, PlaceSet::most> of_source = {};
  /// Two runs are one if the gap between them is smaller than this, up to date at the source, and
  /// in nobody's hands: bytes of `leased` are never written, be it with what they are.
  std::size_t merge_below = 0;
  std::span<const ByteRange> leased = {};

  /// Of a source that is taken only if there is no other.
  static constexpr std::uint8_t last_resort = 255;
  /// Which of them a copy comes from.
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

  /// Of so many bytes, never written.
  explicit Validity(std::size_t bytes = 0) noexcept : bytes_(bytes) {}
  /// The same without the room for more.
  Validity(Validity&& other) noexcept;
  Validity& operator=(Validity&& other) noexcept;

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// Intervals there are; at least one.
  [[nodiscard]] std::size_t size() const noexcept { return count_; }
  [[nodiscard]] bool is_uniform() const noexcept { return count_ == 1; }

  /// Calls visit(begin, end, PlaceSet) over [begin, end) in ascending order.
  template <class Visit>
  void visit(std::size_t begin, std::size_t end, Visit visit) const {
    if (begin >= end) return;
    for (std::size_t i = index_of(begin); i < count_ && data()[i].begin < end; ++i) {
      visit(data()[i].begin > begin ? data()[i].begin : begin, end_of(i) < end ? end_of(i) : end,
            data()[i].valid);
    }
  }

  /// Is every byte of the range up to date there? An empty range is.
  [[nodiscard]] bool is_valid(std::size_t begin, std::size_t end, unsigned place) const noexcept {
    if (count_ == 1) [[likely]]
      return begin >= end || data()[0].valid.has(place);
    return valid_everywhere(begin, end).has(place);
  }
  /// The places that have all bytes, if those are the same for every byte; else none.
  [[nodiscard]] PlaceSet uniform() const noexcept {
    return count_ == 1 ? data()[0].valid : PlaceSet{};
  }
  /// Is it up to date there and nowhere else? Then writing it there changes nothing.
  [[nodiscard]] bool is_only(std::size_t begin, std::size_t end, unsigned place) const noexcept {
    if (count_ == 1) [[likely]]
      return begin >= end || data()[0].valid == PlaceSet::of(place);
    return are_all_only(begin, end, place);
  }
  /// The places that have all of the range, and those that have any of it.
  [[nodiscard]] PlaceSet valid_everywhere(std::size_t begin, std::size_t end) const noexcept;
  [[nodiscard]] PlaceSet valid_somewhere(std::size_t begin, std::size_t end) const noexcept;
  /// The first bytes of the range that nobody wrote; empty if there are none.
  [[nodiscard]] ByteRange first_unwritten(std::size_t begin, std::size_t end) const noexcept;

  /// The copies that bring the range up to date in a place: ascending, never of bytes that are so
  /// already but for merged gaps, never of bytes nobody wrote. They are put behind what `runs` has;
  /// gives the bytes of gaps. Throws std::bad_alloc.
  std::size_t plan(std::size_t begin, std::size_t end, unsigned place, const CopyCosts& costs,
                   std::vector<CopyRun>& runs) const;

  /// Room for the changes to so many ranges. False if the host has no memory.
  [[nodiscard]] bool make_room(std::size_t ranges = 1) noexcept;

  // --- Changes to one range, for which there is room; also for one that changes nothing.

  /// An access was granted. Reading brought what was written up to date in the place; writing makes
  /// the range up to date there, and nowhere else.
  void apply(Access access, std::size_t begin, std::size_t end, unsigned place) noexcept;
  /// The place no longer counts, or counts no longer for the range.
  void remove(std::size_t begin, std::size_t end, unsigned place) noexcept;
  /// The same, but not of bytes that are up to date nowhere else.
  void remove_copy(std::size_t begin, std::size_t end, unsigned place) noexcept;
  /// As if it had never been written.
  void forget(std::size_t begin, std::size_t end) noexcept;

  /// Refused with violation, saying which invariant does not hold.
  [[nodiscard]] Result<void> check(PlaceSet existing) const noexcept;

 private:
  [[nodiscard]] bool are_all_only(std::size_t begin, std::size_t end,
                                  unsigned place) const noexcept;
  static constexpr std::size_t inline_intervals = 16;

  [[nodiscard]] const Interval* data() const noexcept { return more_ ? more_.get() : inline_; }
  [[nodiscard]] Interval* data() noexcept { return more_ ? more_.get() : inline_; }
  [[nodiscard]] std::size_t end_of(std::size_t index) const noexcept {
    return index + 1 < count_ ? data()[index + 1].begin : bytes_;
  }
  /// Of the interval that holds the byte.
  [[nodiscard]] std::size_t index_of(std::size_t offset) const noexcept;
  void insert(std::size_t index, Interval interval) noexcept;
  template <class Change>
  void change(std::size_t begin, std::size_t end, Change change) noexcept;

  std::size_t bytes_ = 0;
  std::size_t count_ = 1, capacity_ = inline_intervals;
  std::unique_ptr<Interval[]> more_;
  Interval inline_[inline_intervals];
};

}  // namespace tern
