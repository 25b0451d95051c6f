// Ranges keeps the free ranges of a pool: in flight, available, or addresses without memory.
//
// A range in flight is in the lane of the stream that freed it. That stream can reuse the range
// immediately, because its work runs in order. Other streams can use the range when the mark after
// the free is done, or after a wait for the mark. Adjacent ranges of one lane are joined, and the
// later mark counts for both. Ranges in flight are joined with nothing else. A lane is ordered by
// mark, so its oldest range shows how far the stream has come.
//
// Available ranges with whole handles (of one or more pages) are also in lists of their own: whole
// handles can be moved, so they can serve any request. Code that splits a range must prepare
// descriptors first. Not thread-safe: the pool holds its lock.

#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "memory/pool/descriptor_store.hpp"
#include "memory/pool/fit_index.hpp"
#include "memory/pool/handle_map.hpp"
#include "tern/device/mark.hpp"

namespace tern::pool {

/// The ranges in flight of one stream.
struct Lane {
  StreamId stream = {};
  FitIndex index;
  Descriptor* oldest = nullptr;
  Descriptor* newest = nullptr;
  // Blocks and granules freed since the last event was recorded after the frees.
  std::size_t unsealed_blocks = 0;
  std::uint64_t unsealed_granules = 0;
  /// Marks up to this one have an event.
  std::uint64_t sealed = 0;
};

class Ranges {
 public:
  /// Upper bound on the descriptors that a growth step needs after its driver call, when it must
  /// not fail.
  static constexpr std::size_t descriptors_per_growth = 4;
  /// Descriptors that a take prepares: two for itself, the rest for threads that are calling the
  /// driver.
  static constexpr std::size_t descriptors_per_take = 2 + descriptors_per_growth;
  /// From this many contiguous pages on, a run is worth keeping together.
  static constexpr std::uint64_t run_pages = 8;
  /// Small blocks are at most 1/16 of a page. Larger ones, placed together, would leave unusable
  /// holes.
  static constexpr std::uint64_t small_share = 16;

  /// `page_granules` is the page size, a power of two. 0 means that memory comes in segments; then
  /// a range without neighbours can be returned to the driver.
  Ranges(const Resource* owner, DeviceId device, std::uint64_t page_granules) noexcept
      : store_(owner, device),
        page_granules_(page_granules),
        page_shift_(std::countr_zero(page_granules)) {}
  /// Names the handles that pages belong to. Without this, each page is a handle of its own.
  void set_handles(const HandleMap& handles) noexcept { handles_ = &handles; }

  [[nodiscard]] DescriptorStore& store() noexcept { return store_; }

  /// Adds a held range, adjacent to `before` or with `before` null. It becomes last().
  Descriptor& add(std::uint64_t offset, std::uint64_t size, Descriptor* before) noexcept;
  /// The range at the end of the newest addresses.
  [[nodiscard]] Descriptor* last() const noexcept { return last_; }
  /// Removes a held range. It must be at the end of its chain of neighbours, or alone.
  void drop(Descriptor& range) noexcept;

  // --- Taking: the returned range is held, the rest stays where it was

  /// Where to place a block: in the range that fits best, or, if the block is small, next to other
  /// small blocks, so that they share few pages and the other pages become whole.
  enum class Placement : std::uint8_t { tightest, together };
  /// Returns a range of available() or of a lane's index that fits, or null. It stays where it is.
  [[nodiscard]] Descriptor* find(const FitIndex& index, std::uint64_t granules,
                                 std::uint64_t alignment,
                                 FitIndex::Effort effort = FitIndex::Effort::quick,
                                 Placement placement = Placement::tightest) const noexcept;
  /// Take a part of a range that was found.
  Descriptor* take_available(Descriptor& found, std::uint64_t granules,
                             std::uint64_t alignment) noexcept;
  Descriptor* take_in_flight(Descriptor& found, std::uint64_t granules,
                             std::uint64_t alignment) noexcept;
  /// Takes addresses without memory. The search is thorough.
  [[nodiscard]] Descriptor* take_unbacked(std::uint64_t granules, std::uint64_t alignment) noexcept;
  /// Takes a range of addresses that has no memory and no neighbours and for which
  /// is_wanted(offset, granules) returns true. Returns null if there is no such range.
  template <class IsWanted>
  [[nodiscard]] Descriptor* take_unbacked_alone(IsWanted is_wanted) noexcept {
    Descriptor* const found = unbacked_.find_if([&](const Descriptor& range) {
      return range.before == nullptr && range.after == nullptr &&
             is_wanted(range.offset, range.size);
    });
    if (found == nullptr) return nullptr;
    unbacked_.remove(*found);
    found->state = State::held;
    return found;
  }
  /// Takes contiguous whole handles from an available range, small ranges first: as many as have
  /// `pages` together, or all of the range. Returns null if there are none.
  [[nodiscard]] Descriptor* take_handles(std::uint64_t pages) noexcept;
  /// Returns the available range that contains the pages, or null. Whole handles only.
  [[nodiscard]] Descriptor* find_pages(std::uint64_t first_page,
                                       std::uint64_t pages) const noexcept;
  /// Takes the pages out of an available range.
  Descriptor& take_pages(Descriptor& range, std::uint64_t first_page, std::uint64_t pages) noexcept;
  /// Calls visit(first_page, pages) for the whole handles of each available range, until it returns
  /// false.
  template <class Visit>
  void for_each_whole_run(Visit visit) const {
    for (const std::size_t list : {std::size_t{1}, std::size_t{0}}) {
      for (const Descriptor* at = holders_[list]; at != nullptr; at = at->newer) {
        const Pages whole = whole_pages_of(*at);
        if (!visit(whole.first, whole.count())) return;
      }
    }
  }
  /// Begins a block in an alias whose homes are held. Takes one descriptor.
  Descriptor& begin_alias(Alias& alias, std::uint64_t granules) noexcept;
  /// Takes a whole available range.
  void take_whole(Descriptor& range) noexcept;
  /// Cuts a held range down to `granules` from `offset` on. Calls put() with the parts before and
  /// after.
  template <class Put>
  void cut(Descriptor& range, std::uint64_t offset, std::uint64_t granules, Put put) noexcept {
    if (range.offset + range.size > offset + granules) put(split(range, offset + granules));
    if (offset > range.offset) {
      // The descriptor, and with it the place, stays with the requested part.
      put(split_front(range, offset));
    }
  }

  // --- Returning: adjacent ranges are joined

  void put_available(Descriptor& range) noexcept;
  void put_unbacked(Descriptor& range) noexcept;
  void put_in_flight(Descriptor& range, Lane& lane, std::uint64_t sequence) noexcept;
  /// Puts a range that was taken from a lane, but not used, back to its position in the lane.
  void return_in_flight(Descriptor& range, Lane& lane, std::uint64_t sequence) noexcept;
  /// Makes all ranges of the lane up to `done_sequence` available to every stream. Returns their
  /// granules.
  std::uint64_t settle(Lane& lane, std::uint64_t done_sequence) noexcept;
  /// Takes a held range out of use for good.
  void mark_stuck(Descriptor& range) noexcept { range.state = State::stuck; }
  /// Joins two adjacent held ranges.
  void join_held(Descriptor& left, Descriptor& right) noexcept { absorb(left, right); }

  // --- Facts

  [[nodiscard]] const FitIndex& available() const noexcept { return available_; }
  [[nodiscard]] std::uint64_t in_flight_granules() const noexcept { return in_flight_granules_; }
  /// Pages of whole handles in available ranges.
  [[nodiscard]] std::uint64_t free_pages() const noexcept { return free_pages_; }
  /// The exact size of the largest available range.
  [[nodiscard]] std::uint64_t largest_available() const noexcept {
    return available_.exact_largest();
  }
  /// Requested bytes of all live blocks. Visits every range.
  [[nodiscard]] std::uint64_t requested_bytes() const noexcept;
  /// An available range with whole handles; for segments, a whole segment.
  [[nodiscard]] Descriptor* first_holder() noexcept {
    return holders_[0] != nullptr ? holders_[0] : holders_[1];
  }
  /// Granules of all whole segments.
  [[nodiscard]] std::uint64_t whole_granules() const noexcept {
    std::uint64_t sum = 0;
    for (const Descriptor* one : holders_) {
      for (; one != nullptr; one = one->newer) sum += one->size;
    }
    return sum;
  }
  /// Counts granules by state, one range at a time, and checks lists and links. For tests.
  struct Census {
    bool check_invariants = true;
    std::uint64_t held = 0, in_flight = 0, available = 0, unbacked = 0;
    /// The blocks of aliases, which held and in_flight include, and the memory they use.
    std::uint64_t in_aliases = 0, lent = 0;
  };
  [[nodiscard]] Census count() const noexcept;

 private:
  /// Splits a range and returns the part from `offset` on, held.
  Descriptor& split(Descriptor& range, std::uint64_t offset) noexcept;
  /// Splits a range and returns the part before `offset`, held.
  Descriptor& split_front(Descriptor& range, std::uint64_t offset) noexcept;
  /// Joins `right` into `left` and frees the descriptor of `right`.
  void absorb(Descriptor& left, Descriptor& right) noexcept;
  /// The pages of the whole handles in a range, by page number.
  struct Pages {
    std::uint64_t first = 0;
    std::uint64_t last = 0;  // exclusive
    [[nodiscard]] std::uint64_t count() const noexcept { return last > first ? last - first : 0; }
  };
  [[nodiscard]] Pages whole_pages_of(const Descriptor& range) const noexcept;
  /// Returns the number of pages of whole handles; for segments, 1 if the range is a whole segment.
  [[nodiscard]] std::uint64_t pages_in(const Descriptor& range) const noexcept;
  [[nodiscard]] HandleMap::Extent handle_of(std::uint64_t page) const noexcept {
    return handles_ != nullptr ? handles_->of(page) : HandleMap::Extent{page, page + 1};
  }
  /// Returns where to cut a block out of a range: at the end if that leaves more whole handles.
  [[nodiscard]] std::uint64_t begin_that_spares_handles(const Descriptor& range,
                                                        std::uint64_t granules,
                                                        std::uint64_t alignment) const noexcept;
  void insert_available(Descriptor& range) noexcept;
  void remove_available(Descriptor& range) noexcept;
  void insert_in_flight(Descriptor& range, Lane& lane, std::uint64_t sequence) noexcept;
  void link_behind(Descriptor& range, Descriptor* older, Lane& lane) noexcept;
  void remove_in_flight(Descriptor& range) noexcept;
  /// Makes the memory that the block of an alias used available again.
  void end_alias(Descriptor& block) noexcept;

  DescriptorStore store_;
  const std::uint64_t page_granules_;
  const int page_shift_;  // to divide by the page size
  const HandleMap* handles_ = nullptr;
  FitIndex available_;
  FitIndex unbacked_;
  Descriptor* last_ = nullptr;
  Descriptor* holders_[2] = {};  // ranges with whole handles: short and long runs, linked by newer
  std::uint64_t free_pages_ = 0;
  std::uint64_t in_flight_granules_ = 0;
};

}  // namespace tern::pool
