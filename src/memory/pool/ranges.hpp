// All ranges of a pool that nobody holds, joined and offered: what streams have freed and may still
// use, what is free for everybody, and addresses without memory.
//
// A range in flight is in the lane of the stream that freed it. That stream may have it again at
// once, because its work is in order; others may when the mark behind it is done, or behind a wait
// for it. Ranges of one lane that touch are joined, and the later mark counts for both; nothing
// else is joined with what is in flight. In each lane ranges are in the order of their marks, so
// looking at the oldest is enough to know how far a stream has come.
//
// Of the free ranges those with whole pages are listed apart: pages can be moved, so they serve any
// request. Whoever splits a range prepares descriptors first. Confined: the pool holds its lock.

#pragma once

#include <cstddef>
#include <cstdint>

#include "memory/pool/descriptor_store.hpp"
#include "memory/pool/fit_index.hpp"
#include "tern/device/mark.hpp"

namespace tern::pool {

/// What one stream has freed.
struct Lane {
  StreamId stream = {};
  FitIndex index;
  Descriptor* oldest = nullptr;
  Descriptor* newest = nullptr;
  // Since a mark was last recorded behind them.
  std::size_t unsealed_blocks = 0;
  std::uint64_t unsealed_granules = 0;
};

class Ranges {
 public:
  /// How many spare descriptors whoever asks the driver needs at most, when it comes back with the
  /// answer and nobody may fail any more.
  static constexpr std::size_t descriptors_per_growth = 4;
  /// How many a take needs: two at most, and what it leaves for others that are asking the driver.
  static constexpr std::size_t descriptors_per_take = 2 + descriptors_per_growth;
  /// So many whole pages in one piece are worth keeping together.
  static constexpr std::uint64_t run_pages = 8;
  /// Blocks that lie together are at most such a part of a page. Larger ones would leave holes
  /// between them that nothing fits in.
  static constexpr std::uint64_t small_share = 16;

  /// Ranges have whole pages of so many granules; 0: memory comes in segments, and what can be
  /// given back is a range without neighbours.
  Ranges(const Resource* owner, DeviceId device, std::uint64_t page_granules) noexcept
      : store_(owner, device), page_granules_(page_granules) {}

  [[nodiscard]] DescriptorStore& store() noexcept { return store_; }

  /// A new range behind `before`, which it touches, or null; held, and the last one now.
  Descriptor& add(std::uint64_t offset, std::uint64_t size, Descriptor* before) noexcept;
  /// The one that ends where the newest addresses do.
  [[nodiscard]] Descriptor* last() const noexcept { return last_; }
  /// A held range that is no more; it must be the first or the last of its neighbours, or alone.
  void drop(Descriptor& range) noexcept;

  // --- Taking: what is given is held, and what is left over stays where it was

  /// Where the block is put: into the tightest of the ranges; or, if it is small, beside others
  /// that are, so that a few pages have them all and the rest can become whole.
  enum class Placement : std::uint8_t { tightest, together };
  [[nodiscard]] Descriptor* take_quiescent(std::uint64_t granules, std::uint64_t alignment,
                                           FitIndex::Effort effort = FitIndex::Effort::quick,
                                           Placement placement = Placement::tightest) noexcept;
  [[nodiscard]] Descriptor* take_in_flight(Lane& lane, std::uint64_t granules,
                                           std::uint64_t alignment) noexcept;
  /// Misses nothing.
  [[nodiscard]] Descriptor* take_unbacked(std::uint64_t granules, std::uint64_t alignment) noexcept;
  /// Up to so many whole pages in one piece out of a quiescent range, small ranges first; null if
  /// there are none.
  [[nodiscard]] Descriptor* take_pages(std::uint64_t most_pages) noexcept;
  /// The quiescent range itself.
  void take_whole(Descriptor& range) noexcept;
  /// Of a range that is held: the granules from `offset` on, as a range of their own; what is
  /// before and behind them is put where `put` says.
  template <class Put>
  void cut(Descriptor& range, std::uint64_t offset, std::uint64_t granules, Put put) noexcept {
    if (range.offset + range.size > offset + granules) put(split(range, offset + granules));
    if (offset > range.offset) {
      // The descriptor stays with what was asked for, and its place with it.
      put(split_front(range, offset));
    }
  }

  // --- Giving back: joins what touches

  void put_quiescent(Descriptor& range) noexcept;
  void put_unbacked(Descriptor& range) noexcept;
  void put_in_flight(Descriptor& range, Lane& lane, std::uint64_t sequence) noexcept;
  /// A piece of what was in flight, taken in vain: into the order where it was.
  void return_in_flight(Descriptor& range, Lane& lane, std::uint64_t sequence) noexcept;
  /// The stream has passed everything up to this: free for all from now on. Gives the granules.
  std::uint64_t settle(Lane& lane, std::uint64_t done_sequence) noexcept;
  /// Nobody is given a held range any more.
  void put_out_of_use(Descriptor& range) noexcept { range.state = State::stuck; }
  /// Two held ranges that touch become one.
  void join_held(Descriptor& left, Descriptor& right) noexcept { absorb(left, right); }

  // --- Facts

  [[nodiscard]] const FitIndex& quiescent() const noexcept { return quiescent_; }
  [[nodiscard]] std::uint64_t in_flight_granules() const noexcept { return in_flight_granules_; }
  /// In quiescent ranges.
  [[nodiscard]] std::uint64_t free_pages() const noexcept { return free_pages_; }
  /// The exact size of the largest quiescent range.
  [[nodiscard]] std::uint64_t largest_quiescent() const noexcept {
    return quiescent_.exact_largest();
  }
  /// Of live blocks; looks at every range.
  [[nodiscard]] std::uint64_t requested_bytes() const noexcept;
  /// A quiescent range that can be given back whole: without neighbours (segments).
  [[nodiscard]] Descriptor* first_holder() noexcept {
    return holders_[0] != nullptr ? holders_[0] : holders_[1];
  }
  /// Of all that can be given back whole (segments).
  [[nodiscard]] std::uint64_t whole_granules() const noexcept {
    std::uint64_t sum = 0;
    for (const Descriptor* one : holders_) {
      for (; one != nullptr; one = one->newer) sum += one->size;
    }
    return sum;
  }
  /// Granules by state, counted one by one, if lists and links agree with them; for tests.
  struct Census {
    bool is_well = true;
    std::uint64_t held = 0, in_flight = 0, quiescent = 0, unbacked = 0;
  };
  [[nodiscard]] Census count() const noexcept;

 private:
  /// The part from `offset` on, held.
  Descriptor& split(Descriptor& range, std::uint64_t offset) noexcept;
  /// The part before `offset`, held.
  Descriptor& split_front(Descriptor& range, std::uint64_t offset) noexcept;
  /// Left takes in right, which is no more.
  void absorb(Descriptor& left, Descriptor& right) noexcept;
  [[nodiscard]] static std::uint64_t aligned_begin(const Descriptor& range,
                                                   std::uint64_t alignment) noexcept {
    return (range.offset + alignment - 1) / alignment * alignment;
  }
  [[nodiscard]] std::uint64_t pages_in(const Descriptor& range) const noexcept;
  /// Where to cut a block out of a range: at its end if that leaves more whole pages.
  [[nodiscard]] std::uint64_t begin_that_spares_pages(const Descriptor& range,
                                                      std::uint64_t granules,
                                                      std::uint64_t alignment) const noexcept;
  void insert_quiescent(Descriptor& range) noexcept;
  void remove_quiescent(Descriptor& range) noexcept;
  void insert_in_flight(Descriptor& range, Lane& lane, std::uint64_t sequence) noexcept;
  void link_behind(Descriptor& range, Descriptor* older, Lane& lane) noexcept;
  void remove_in_flight(Descriptor& range) noexcept;

  DescriptorStore store_;
  const std::uint64_t page_granules_;
  FitIndex quiescent_;
  FitIndex unbacked_;
  Descriptor* last_ = nullptr;
  Descriptor* holders_[2] = {};  // of whole pages: in small pieces, in runs; linked by newer
  std::uint64_t free_pages_ = 0;
  std::uint64_t in_flight_granules_ = 0;
};

}  // namespace tern::pool
