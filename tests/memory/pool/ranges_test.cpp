#include "memory/pool/ranges.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace tern::pool {
namespace {

constexpr std::uint64_t page = 16;

Descriptor* take_available_from(Ranges& ranges, std::uint64_t granules, std::uint64_t alignment,
                                FitIndex::Effort effort = FitIndex::Effort::quick,
                                Ranges::Placement placement = Ranges::Placement::tightest) {
  Descriptor* const found = ranges.find(ranges.available(), granules, alignment, effort, placement);
  return found == nullptr ? nullptr : ranges.take_available(*found, granules, alignment);
}

Descriptor* take_in_flight_from(Ranges& ranges, const Lane& lane, std::uint64_t granules,
                                std::uint64_t alignment) {
  Descriptor* const found = ranges.find(lane.index, granules, alignment);
  return found == nullptr ? nullptr : ranges.take_in_flight(*found, granules, alignment);
}

class RangesTest : public testing::Test {
 protected:
  RangesTest() { EXPECT_TRUE(ranges.store().try_prepare(64)); }
  void TearDown() override { EXPECT_TRUE(ranges.count().check_invariants); }

  Ranges ranges{nullptr, DeviceId{1}, page};
  Lane lane, other;
};

TEST_F(RangesTest, JoinsAdjacentFreeRanges) {
  Descriptor& a = ranges.add(0, 10, nullptr);
  Descriptor& b = ranges.add(10, 10, &a);
  Descriptor& c = ranges.add(20, 10, &b);
  EXPECT_EQ(ranges.last(), &c);
  ranges.put_available(a);
  ranges.put_available(c);
  EXPECT_EQ(ranges.largest_available(), 10u);
  ranges.put_available(b);
  EXPECT_EQ(ranges.largest_available(), 30u);
  EXPECT_EQ(ranges.store().used_count(), 1u);
  EXPECT_EQ(ranges.last(), &a);
}

TEST_F(RangesTest, LeavesTheRestOfACutRangeInPlace) {
  ranges.put_available(ranges.add(3, 29, nullptr));
  Descriptor* taken = take_available_from(ranges, 4, 8);
  ASSERT_NE(taken, nullptr);
  EXPECT_EQ(taken->offset, 8u);
  EXPECT_EQ(taken->size, 4u);
  EXPECT_EQ(taken->state, State::held);
  EXPECT_EQ(ranges.available().total(), 25u);
  EXPECT_EQ(ranges.largest_available(), 20u);
  ranges.put_available(*taken);
  EXPECT_EQ(ranges.largest_available(), 29u);
}

TEST_F(RangesTest, CutsToLeaveMoreWholePages) {
  // A page, and the beginning of one that is in use.
  ranges.put_available(ranges.add(page, page + 6, nullptr));
  Descriptor* taken = take_available_from(ranges, 4, 1);
  ASSERT_NE(taken, nullptr);
  EXPECT_EQ(taken->offset, 2 * page + 2);
  EXPECT_EQ(ranges.free_pages(), 1u);
  // What is left behind the page would do for 2; for 4 it takes a page either way.
  taken = take_available_from(ranges, 4, 1);
  ASSERT_NE(taken, nullptr);
  EXPECT_EQ(taken->offset, page);
  EXPECT_EQ(ranges.free_pages(), 0u);
}

TEST_F(RangesTest, CutsAtTheEndOnlyWhereTheAlignmentAllowsIt) {
  ranges.put_available(ranges.add(page, page + 6, nullptr));
  const Descriptor* taken = take_available_from(ranges, 3, 4);
  ASSERT_NE(taken, nullptr);
  EXPECT_EQ(taken->offset, 2 * page);
  EXPECT_EQ(ranges.free_pages(), 1u);
}

TEST_F(RangesTest, PacksSmallBlocksIfPagesAreScarce) {
  using Placement = Ranges::Placement;
  constexpr auto quick = FitIndex::Effort::quick;
  // A page that is half free, a smaller hole in a later one, and a whole page between them.
  Descriptor& low = ranges.add(0, page / 2, nullptr);
  ranges.put_available(low);
  ranges.put_available(ranges.add(2 * page, page, nullptr));
  ranges.put_available(ranges.add(4 * page, 2, nullptr));
  EXPECT_EQ(take_available_from(ranges, 1, 1)->offset, 4 * page) << "the tightest";
  EXPECT_EQ(take_available_from(ranges, 1, 1, quick, Placement::together)->offset, 0u);
  // One that is not small is put where it fits.
  Descriptor& high = ranges.add(5 * page, 2, nullptr);
  ranges.put_available(high);
  EXPECT_EQ(take_available_from(ranges, 2, 1, quick, Placement::together)->offset, 5 * page);
  EXPECT_EQ(ranges.free_pages(), 1u);
  // A whole page is begun when nothing else is left.
  for (std::uint64_t left = ranges.available().total() - page; left > 0; --left) {
    EXPECT_NE(take_available_from(ranges, 1, 1, quick, Placement::together), nullptr);
    EXPECT_EQ(ranges.free_pages(), 1u);
  }
  EXPECT_EQ(take_available_from(ranges, 1, 1, quick, Placement::together)->offset, 2 * page);
}

TEST_F(RangesTest, JoinsInFlightRangesOnlyWithTheirOwnLane) {
  Descriptor& a = ranges.add(0, 10, nullptr);
  Descriptor& b = ranges.add(10, 10, &a);
  Descriptor& c = ranges.add(20, 10, &b);
  ranges.put_available(a);
  ranges.put_in_flight(b, lane, 1);
  ranges.put_in_flight(c, other, 1);
  EXPECT_EQ(ranges.available().total(), 10u);
  EXPECT_EQ(ranges.in_flight_granules(), 20u);
  EXPECT_EQ(lane.index.total(), 10u);
  EXPECT_EQ(other.index.total(), 10u);
  EXPECT_EQ(take_available_from(ranges, 11, 1), nullptr);
  EXPECT_EQ(take_in_flight_from(ranges, lane, 11, 1), nullptr);
}

TEST_F(RangesTest, JoinedRangesHaveTheLaterMark) {
  Descriptor& a = ranges.add(0, 10, nullptr);
  Descriptor& b = ranges.add(10, 10, &a);
  ranges.put_in_flight(a, lane, 1);
  ranges.put_in_flight(b, lane, 5);
  EXPECT_EQ(lane.oldest, lane.newest);
  EXPECT_EQ(ranges.settle(lane, 4), 0u);
  EXPECT_EQ(ranges.settle(lane, 5), 20u);
  EXPECT_EQ(ranges.largest_available(), 20u);
}

TEST_F(RangesTest, KeepsALaneInTheOrderOfItsMarks) {
  Descriptor& a = ranges.add(0, 10, nullptr);
  Descriptor& b = ranges.add(100, 10, nullptr);
  ranges.put_in_flight(a, lane, 5);
  ranges.put_in_flight(b, lane, 3);  // came late: it waits with the others
  EXPECT_EQ(ranges.settle(lane, 3), 0u);
  EXPECT_EQ(ranges.settle(lane, 5), 20u);
  EXPECT_EQ(lane.oldest, nullptr);
  EXPECT_EQ(lane.newest, nullptr);
}

TEST_F(RangesTest, ACutRangeKeepsItsMark) {
  ranges.put_in_flight(ranges.add(0, 30, nullptr), lane, 5);
  Descriptor* taken = take_in_flight_from(ranges, lane, 10, 8);
  ASSERT_NE(taken, nullptr);
  EXPECT_EQ(taken->sequence, 5u);
  EXPECT_EQ(ranges.in_flight_granules(), 20u);
  EXPECT_EQ(ranges.settle(lane, 4), 0u);
  EXPECT_EQ(ranges.settle(lane, 5), 20u);
}

TEST_F(RangesTest, PutsBackAnUnusedRange) {
  Descriptor& a = ranges.add(0, 10, nullptr);
  Descriptor& b = ranges.add(100, 20, nullptr);
  Descriptor& c = ranges.add(200, 30, nullptr);
  ranges.put_in_flight(a, lane, 1);
  ranges.put_in_flight(b, lane, 3);
  ranges.put_in_flight(c, lane, 5);
  Descriptor* taken = take_in_flight_from(ranges, lane, 20, 1);
  ASSERT_EQ(taken, &b);
  ranges.return_in_flight(*taken, lane, taken->sequence);
  EXPECT_EQ(ranges.in_flight_granules(), 60u);
  EXPECT_EQ(ranges.settle(lane, 1), 10u);
  EXPECT_EQ(ranges.settle(lane, 3), 20u);
  EXPECT_EQ(ranges.settle(lane, 5), 30u);
}

TEST_F(RangesTest, CountsWholePagesOnly) {
  ranges.put_available(ranges.add(1, 2 * page, nullptr));  // one whole page between two parts
  EXPECT_EQ(ranges.free_pages(), 1u);
  Descriptor* taken = ranges.take_handles(4);
  ASSERT_NE(taken, nullptr);
  EXPECT_EQ(taken->offset, page);
  EXPECT_EQ(taken->size, page);
  EXPECT_EQ(ranges.free_pages(), 0u);
  EXPECT_EQ(ranges.take_handles(1), nullptr);
}

/// Handles of 4, 1 and 8 pages from page 10 on.
class RangesOfHandles : public RangesTest {
 protected:
  RangesOfHandles() {
    EXPECT_TRUE(handles.try_add_region(10, 20));
    handles.set(10, 4);
    handles.set(14, 1);
    handles.set(15, 8);
    ranges.set_handles(handles);
  }

  HandleMap handles;
};

TEST_F(RangesOfHandles, CountsWholeHandlesOnly) {
  Descriptor& all = ranges.add(10 * page, 13 * page, nullptr);
  ranges.put_available(all);
  EXPECT_EQ(ranges.free_pages(), 13u);
  Descriptor* block = take_available_from(ranges, 1, 1);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(block->offset, 10 * page);  // pins 4 pages; at the end it would pin 8
  EXPECT_EQ(ranges.free_pages(), 9u);
  Descriptor* taken = ranges.take_handles(2);
  ASSERT_NE(taken, nullptr);
  EXPECT_EQ(taken->offset, 14 * page);
  EXPECT_EQ(taken->size, 9 * page);  // the handle of one page does not suffice
  EXPECT_EQ(ranges.free_pages(), 0u);
  EXPECT_EQ(ranges.take_handles(1), nullptr);
  ranges.put_available(*taken);
  ranges.put_available(*block);
  EXPECT_EQ(ranges.free_pages(), 13u);
}

TEST_F(RangesOfHandles, CountsNoHandleThatIsInUseAtItsEnd) {
  // Only the first three pages of the handle with eight are free.
  ranges.put_available(ranges.add(10 * page, 8 * page, nullptr));
  EXPECT_EQ(ranges.free_pages(), 5u);
  Descriptor* taken = ranges.take_handles(8);
  ASSERT_NE(taken, nullptr);
  EXPECT_EQ(taken->size, 5 * page);
  ranges.put_available(*taken);
}

TEST_F(RangesOfHandles, TakesNoMoreHandlesThanAreNeeded) {
  ranges.put_available(ranges.add(10 * page, 13 * page, nullptr));
  Descriptor* taken = ranges.take_handles(3);
  ASSERT_NE(taken, nullptr);
  EXPECT_EQ(taken->size, 4 * page);
  EXPECT_EQ(ranges.free_pages(), 9u);
  ranges.put_available(*taken);
}

TEST_F(RangesOfHandles, PlacesABlockWhereItPinsFewerPages) {
  // The end of the first handle is free, then the others.
  ranges.put_available(ranges.add(13 * page, 10 * page, nullptr));
  EXPECT_EQ(ranges.free_pages(), 9u);
  Descriptor* block = take_available_from(ranges, page, 1);
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(block->offset, 13 * page);
  EXPECT_EQ(ranges.free_pages(), 9u);
}

TEST_F(RangesTest, TakesPagesFromSmallPiecesFirst) {
  ranges.put_available(ranges.add(0, page * Ranges::run_pages, nullptr));
  ranges.put_available(ranges.add(page * 100, page * 2, nullptr));
  Descriptor* first = ranges.take_handles(100);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->offset, page * 100);
  Descriptor* second = ranges.take_handles(3);
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(second->size, page * 3);
  EXPECT_EQ(ranges.free_pages(), Ranges::run_pages - 3);
}

TEST_F(RangesTest, KeepsAddressesWithoutMemoryApart) {
  Descriptor& a = ranges.add(0, page, nullptr);
  Descriptor& b = ranges.add(page, page, &a);
  Descriptor& c = ranges.add(2 * page, page, &b);
  ranges.put_unbacked(a);
  ranges.put_available(c);
  ranges.put_unbacked(b);
  EXPECT_EQ(ranges.count().unbacked, 2 * page);
  EXPECT_EQ(ranges.available().total(), page);
  EXPECT_EQ(ranges.take_unbacked(3 * page, page), nullptr);
  Descriptor* taken = ranges.take_unbacked(page, page);
  ASSERT_NE(taken, nullptr);
  EXPECT_EQ(taken->state, State::held);
  EXPECT_EQ(ranges.count().unbacked, page);
}

TEST_F(RangesTest, JoinsHeldRanges) {
  Descriptor& a = ranges.add(0, page, nullptr);
  Descriptor& b = ranges.add(page, page, &a);
  ranges.join_held(a, b);
  EXPECT_EQ(a.size, 2 * page);
  EXPECT_EQ(ranges.last(), &a);
  EXPECT_EQ(ranges.count().held, 2 * page);
}

TEST(RangesOfSegments, OffersAWholeSegmentOnceItIsFree) {
  Ranges ranges(nullptr, DeviceId{1}, 0);
  ASSERT_TRUE(ranges.store().try_prepare(16));
  ranges.put_available(ranges.add(0, 100, nullptr));
  ranges.put_available(ranges.add(100, 100, nullptr));  // touches, and is another segment
  EXPECT_EQ(ranges.largest_available(), 100u);
  Descriptor* taken = take_available_from(ranges, 40, 1);
  ASSERT_NE(taken, nullptr);
  Descriptor* whole = ranges.first_holder();
  ASSERT_NE(whole, nullptr);
  EXPECT_EQ(whole->size, 100u);
  ranges.take_whole(*whole);
  ranges.drop(*whole);
  EXPECT_EQ(ranges.first_holder(), nullptr);
  ranges.put_available(*taken);
  EXPECT_NE(ranges.first_holder(), nullptr);
  EXPECT_TRUE(ranges.count().check_invariants);
}

// --- Against a picture of every granule

enum class Cell : std::uint8_t { nothing, held, in_flight, available, unbacked };

class Picture {
 public:
  static constexpr std::size_t lanes = 3;
  static constexpr std::uint64_t most = 6000;

  explicit Picture(std::uint64_t seed) : random_(seed) {}

  void step() {
    ASSERT_TRUE(ranges_.store().try_prepare(4));
    const std::uint64_t dice = roll(100);
    if (dice < 6) {
      add();
    } else if (dice < 26) {
      take_available();
    } else if (dice < 40) {
      take_in_flight();
    } else if (dice < 70) {
      put();
    } else if (dice < 85) {
      settle();
    } else if (dice < 92) {
      take_handles();
    } else {
      take_unbacked();
    }
  }

  void compare(bool in_full) {
    const Ranges::Census census = ranges_.count();
    ASSERT_TRUE(census.check_invariants);
    std::uint64_t counts[5] = {};
    for (std::uint64_t at = 0; at < end_; ++at) ++counts[static_cast<std::size_t>(cells_[at])];
    ASSERT_EQ(census.held, counts[1]);
    ASSERT_EQ(census.in_flight, counts[2]);
    ASSERT_EQ(census.available, counts[3]);
    ASSERT_EQ(census.unbacked, counts[4]);
    if (!in_full) return;
    ranges_.store().for_each([&](const Descriptor& range) {
      if (range.state == State::spare) return;
      const Cell cell = cell_of(range.state);
      for (std::uint64_t at = range.offset; at < range.end(); ++at) {
        ASSERT_EQ(cells_[at], cell) << at;
        if (cell != Cell::in_flight) continue;
        ASSERT_EQ(&lanes_[lane_[at]], range.lane) << at;
        ASSERT_LE(mark_[at], range.sequence) << at;
      }
    });
    for (const Lane& lane : lanes_) {
      std::uint64_t before = 0, granules = 0;
      const Descriptor* older = nullptr;
      for (const Descriptor* at = lane.oldest; at != nullptr; at = at->newer) {
        ASSERT_EQ(at->older, older);
        ASSERT_LE(before, at->sequence);
        before = at->sequence;
        granules += at->size;
        older = at;
      }
      ASSERT_EQ(lane.newest, older);
      ASSERT_EQ(lane.index.total(), granules);
      ASSERT_TRUE(lane.index.check_invariants());
    }
    std::uint64_t pages = 0, largest = 0;
    for_each_run(Cell::available, [&](std::uint64_t begin, std::uint64_t end) {
      const std::uint64_t first = (begin + page - 1) / page;
      if (end / page > first) pages += end / page - first;
      largest = std::max(largest, end - begin);
    });
    ASSERT_EQ(ranges_.free_pages(), pages);
    ASSERT_EQ(ranges_.largest_available(), largest);
  }

  void end() {
    while (!held_.empty()) put();
    for (Lane& lane : lanes_) settle(lane, mark_now_);
    compare(true);
    EXPECT_EQ(ranges_.in_flight_granules(), 0u);
  }

 private:
  std::uint64_t roll(std::uint64_t sides) { return random_() % sides; }
  std::uint64_t some_size() { return 1 + roll(std::uint64_t{1} << roll(8)); }
  static Cell cell_of(State state) {
    switch (state) {
      case State::held:
        return Cell::held;
      case State::in_flight:
        return Cell::in_flight;
      case State::available:
        return Cell::available;
      case State::unbacked:
        return Cell::unbacked;
      default:
        return Cell::nothing;
    }
  }
  /// Runs of equal cells that touch without a gap of addresses between them.
  template <class Visit>
  void for_each_run(Cell cell, Visit visit) const {
    for (std::uint64_t at = 0; at < end_;) {
      if (cells_[at] != cell) {
        ++at;
        continue;
      }
      const std::uint64_t begin = at;
      while (at < end_ && cells_[at] == cell) ++at;
      visit(begin, at);
    }
  }
  void paint(const Descriptor& range, Cell before, Cell now) {
    for (std::uint64_t at = range.offset; at < range.end(); ++at) {
      ASSERT_EQ(cells_[at], before) << at;
      cells_[at] = now;
    }
  }
  void hold(Descriptor& range, Cell before) {
    paint(range, before, Cell::held);
    held_.push_back(&range);
  }

  void add() {
    const std::uint64_t size = page * (1 + roll(6));
    // A gap now and then: a cell of nothing keeps the runs apart.
    const std::uint64_t begin = end_ == 0 || roll(8) == 0 ? end_ + page : end_;
    if (begin + size > most) return;
    Descriptor* last = ranges_.last();
    const bool touches = last != nullptr && last->end() == begin;
    Descriptor& range = ranges_.add(begin, size, touches ? last : nullptr);
    end_ = begin + size;
    hold(range, Cell::nothing);
  }

  void take_available() {
    const std::uint64_t size = some_size(), alignment = std::uint64_t{1} << roll(6);
    const bool is_thorough = roll(2) == 0;
    Descriptor* taken =
        take_available_from(ranges_, size, alignment,
                            is_thorough ? FitIndex::Effort::thorough : FitIndex::Effort::quick);
    if (taken != nullptr) {
      ASSERT_EQ(taken->size, size);
      ASSERT_EQ(taken->offset % alignment, 0u);
      hold(*taken, Cell::available);
    } else if (is_thorough) {
      for_each_run(Cell::available, [&](std::uint64_t begin, std::uint64_t end) {
        ASSERT_GT((begin + alignment - 1) / alignment * alignment + size, end);
      });
    }
  }

  void take_in_flight() {
    const std::size_t lane = roll(lanes);
    const std::uint64_t size = some_size(), alignment = std::uint64_t{1} << roll(4);
    Descriptor* taken = take_in_flight_from(ranges_, lanes_[lane], size, alignment);
    if (taken == nullptr) return;
    ASSERT_EQ(taken->size, size);
    ASSERT_EQ(taken->offset % alignment, 0u);
    for (std::uint64_t at = taken->offset; at < taken->end(); ++at) ASSERT_EQ(lane_[at], lane);
    if (roll(4) == 0) {
      paint(*taken, Cell::in_flight, Cell::in_flight);
      ranges_.return_in_flight(*taken, lanes_[lane], taken->sequence);
    } else {
      hold(*taken, Cell::in_flight);
    }
  }

  void put() {
    if (held_.empty()) return;
    std::swap(held_[roll(held_.size())], held_.back());
    Descriptor& range = *held_.back();
    held_.pop_back();
    const std::uint64_t dice = roll(10);
    if (dice < 6) {
      const std::size_t lane = roll(lanes);
      // Mostly in order; a thread may come late with an older mark.
      const std::uint64_t mark = roll(10) == 0 ? 1 + roll(++mark_now_) : ++mark_now_;
      for (std::uint64_t at = range.offset; at < range.end(); ++at) {
        lane_[at] = lane;
        mark_[at] = mark;
      }
      paint(range, Cell::held, Cell::in_flight);
      ranges_.put_in_flight(range, lanes_[lane], mark);
    } else if (dice < 9 || range.offset % page != 0 || range.size % page != 0) {
      paint(range, Cell::held, Cell::available);
      ranges_.put_available(range);
    } else {
      paint(range, Cell::held, Cell::unbacked);
      ranges_.put_unbacked(range);
    }
  }

  void settle() {
    Lane& lane = lanes_[roll(lanes)];
    if (lane.oldest == nullptr) return;
    const bool is_all = roll(8) == 0;
    settle(lane, is_all ? mark_now_ : lane.oldest->sequence + roll(20));
    if (is_all) {
      ASSERT_EQ(lane.oldest, nullptr);
    }
  }
  void settle(Lane& lane, std::uint64_t done) {
    // Lanes are numbered as in lane_.
    const auto number = static_cast<std::size_t>(&lane - lanes_);
    std::uint64_t expected = 0;
    for (const Descriptor* at = lane.oldest; at != nullptr; at = at->newer) {
      if (at->sequence > done) continue;
      expected += at->size;
      for (std::uint64_t cell = at->offset; cell < at->end(); ++cell) {
        ASSERT_EQ(cells_[cell], Cell::in_flight);
        ASSERT_EQ(lane_[cell], number);
        ASSERT_LE(mark_[cell], done);
        cells_[cell] = Cell::available;
      }
    }
    ASSERT_EQ(ranges_.settle(lane, done), expected);
  }

  void take_handles() {
    const std::uint64_t max_pages = 1 + roll(5);
    const std::uint64_t free = ranges_.free_pages();
    Descriptor* taken = ranges_.take_handles(max_pages);
    ASSERT_EQ(taken == nullptr, free == 0);
    if (taken == nullptr) return;
    ASSERT_EQ(taken->offset % page, 0u);
    ASSERT_EQ(taken->size % page, 0u);
    ASSERT_LE(taken->size / page, max_pages);
    ASSERT_EQ(ranges_.free_pages(), free - taken->size / page);
    hold(*taken, Cell::available);
  }

  void take_unbacked() {
    const std::uint64_t size = page * (1 + roll(3));
    Descriptor* taken = ranges_.take_unbacked(size, page);
    if (taken == nullptr) return;
    ASSERT_EQ(taken->size, size);
    hold(*taken, Cell::unbacked);
  }

  std::mt19937_64 random_;
  Ranges ranges_{nullptr, DeviceId{1}, page};
  Lane lanes_[lanes];
  std::vector<Cell> cells_ = std::vector<Cell>(most, Cell::nothing);
  std::vector<std::size_t> lane_ = std::vector<std::size_t>(most);
  std::vector<std::uint64_t> mark_ = std::vector<std::uint64_t>(most);
  std::vector<Descriptor*> held_;
  std::uint64_t end_ = 0, mark_now_ = 0;
};

TEST(RangesAgainstAPicture, AgreeAfterEachStep) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    Picture picture(seed);
    for (int step = 0; step < 25'000; ++step) {
      picture.step();
      picture.compare(step % 16 == 0);
      ASSERT_FALSE(testing::Test::HasFatalFailure()) << "seed " << seed << ", step " << step;
    }
    picture.end();
  }
}

}  // namespace
}  // namespace tern::pool
