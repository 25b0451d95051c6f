#include "backends/sim/range_allocator.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "backends/sim/random.hpp"
#include "tern/core/bytes.hpp"

namespace tern::sim {
namespace {

constexpr std::uint64_t granule = RangeAllocator::granule;

TEST(RangeAllocator, RoundsUpToTheGranule) {
  RangeAllocator allocator(10 * granule, Reuse::hostile);
  EXPECT_EQ(allocator.take(1, 1), 0u);
  EXPECT_EQ(allocator.free_bytes(), 9 * granule);
  EXPECT_EQ(allocator.take(granule + 1, 1), granule);
  EXPECT_EQ(allocator.free_bytes(), 7 * granule);
  EXPECT_EQ(allocator.take(granule, 1), 3 * granule);
  EXPECT_EQ(allocator.total_bytes(), 10 * granule);
}

TEST(RangeAllocator, CountsFreeBytesExactly) {
  RangeAllocator allocator(10 * granule, Reuse::hostile);
  const std::uint64_t a = allocator.take(100, 1).value();
  const std::uint64_t b = allocator.take(3 * granule - 1, 1).value();
  EXPECT_EQ(allocator.free_bytes(), 6 * granule);
  allocator.give(a, 100);
  EXPECT_EQ(allocator.free_bytes(), 7 * granule);
  allocator.give(b, 3 * granule - 1);
  EXPECT_EQ(allocator.free_bytes(), 10 * granule);
}

TEST(RangeAllocator, RefusesWhatDoesNotFitAndChangesNothing) {
  for (const Reuse reuse : {Reuse::hostile, Reuse::friendly}) {
    RangeAllocator allocator(4 * granule, reuse);
    EXPECT_FALSE(allocator.take(4 * granule + 1, 1));
    EXPECT_FALSE(allocator.take(~std::uint64_t{0}, 1));
    EXPECT_EQ(allocator.free_bytes(), 4 * granule);
    EXPECT_EQ(allocator.take(4 * granule, 1), 0u);
    EXPECT_EQ(allocator.free_bytes(), 0u);
    EXPECT_FALSE(allocator.take(1, 1));
    allocator.give(0, 4 * granule);
    EXPECT_EQ(allocator.take(4 * granule, 1), 0u);
  }
}

TEST(RangeAllocator, AlignsUpToTheLargestAlignment) {
  for (const Reuse reuse : {Reuse::hostile, Reuse::friendly}) {
    RangeAllocator allocator(2 * gib, reuse);
    EXPECT_EQ(allocator.take(1, 1), 0u);
    EXPECT_EQ(allocator.take(1, 256 * mib), 256 * mib);
    EXPECT_EQ(allocator.take(256 * mib + 1, 256 * mib), 512 * mib);
    EXPECT_EQ(allocator.take(1, 256 * mib), 1 * gib);
    EXPECT_EQ(allocator.free_bytes(), 2 * gib - 256 * mib - 4 * granule);
    // What was skipped is still there.
    std::uint64_t small = 0;
    while (allocator.take(128 * mib, 1)) ++small;
    EXPECT_EQ(small, 1u + 1 + 1 + 7);
  }
}

TEST(RangeAllocator, HostileHandsOutTheMostRecentlyFreedRangeThatFits) {
  RangeAllocator allocator(100 * granule, Reuse::hostile);
  std::vector<std::uint64_t> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(allocator.take(2 * granule, 1).value());
  const std::uint64_t large = allocator.take(4 * granule, 1).value();
  static_cast<void>(allocator.take(granule, 1));
  allocator.give(large, 4 * granule);
  allocator.give(blocks[5], 2 * granule);
  allocator.give(blocks[1], 2 * granule);
  allocator.give(blocks[3], 2 * granule);

  EXPECT_EQ(allocator.take(3 * granule, 1), large);  // the others are too small
  EXPECT_EQ(allocator.take(granule, 1), blocks[3]);
  EXPECT_EQ(allocator.take(granule, 1), blocks[3] + granule);  // the rest of it
  EXPECT_EQ(allocator.take(2 * granule, 1), blocks[1]);
  EXPECT_EQ(allocator.take(2 * granule, 1), blocks[5]);
}

TEST(RangeAllocator, HostileRemembersRangesWhileAnotherComesAndGoes) {
  RangeAllocator allocator(1000 * granule, Reuse::hostile);
  const std::uint64_t lowest = allocator.take(granule, 1).value();
  static_cast<void>(allocator.take(granule, 1));
  const std::uint64_t older = allocator.take(granule, 1).value();
  static_cast<void>(allocator.take(granule, 1));
  const std::uint64_t newest = allocator.take(granule, 1).value();
  static_cast<void>(allocator.take(granule, 1));
  allocator.give(lowest, granule);
  allocator.give(older, granule);
  allocator.give(newest, granule);
  for (int i = 0; i < 200; ++i) {
    ASSERT_EQ(allocator.take(granule, 1), newest);
    allocator.give(newest, granule);
  }
  // Nor may one that comes in two halves and goes as a whole.
  const std::uint64_t left = allocator.take(2 * granule, 1).value();
  static_cast<void>(allocator.take(3 * granule, 1));
  for (int i = 0; i < 200; ++i) {
    allocator.give(left, granule);
    allocator.give(left + granule, granule);
    ASSERT_EQ(allocator.take(2 * granule, 1), left);
  }
  EXPECT_EQ(allocator.take(granule, 1), newest);
  EXPECT_EQ(allocator.take(granule, 1), older);
  EXPECT_EQ(allocator.take(granule, 1), lowest);
}

TEST(RangeAllocator, FriendlyHandsOutNoByteTwiceUntilNothingFreshFits) {
  RangeAllocator allocator(10 * granule, Reuse::friendly);
  for (std::uint64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(allocator.take(2 * granule, 1), 2 * i * granule);
    allocator.give(2 * i * granule, 2 * granule);
  }
  EXPECT_EQ(allocator.free_bytes(), 10 * granule);
  EXPECT_EQ(allocator.take(2 * granule, 1), 0u);
}

TEST(RangeAllocator, JoinsFreedNeighboursInAnyOrder) {
  for (const Reuse reuse : {Reuse::hostile, Reuse::friendly}) {
    for (const auto& order :
         {std::vector{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}) {
      RangeAllocator allocator(3 * granule, reuse);
      for (int i = 0; i < 3; ++i) static_cast<void>(allocator.take(granule, 1));
      for (const int i : order) allocator.give(static_cast<std::uint64_t>(i) * granule, granule);
      EXPECT_EQ(allocator.take(3 * granule, 1), 0u);
    }
  }
}

/// One flag per granule: whether it is handed out.
class Model {
 public:
  explicit Model(std::uint64_t granules) : is_used_(granules) {}

  [[nodiscard]] bool fits_at(std::uint64_t first, std::uint64_t count) const {
    if (first + count > is_used_.size()) return false;
    for (std::uint64_t i = first; i < first + count; ++i) {
      if (is_used_[i]) return false;
    }
    return true;
  }
  [[nodiscard]] bool fits(std::uint64_t count, std::uint64_t alignment) const {
    for (std::uint64_t i = 0; i < is_used_.size(); i += alignment) {
      if (fits_at(i, count)) return true;
    }
    return false;
  }
  void set(std::uint64_t first, std::uint64_t count, bool is_used) {
    for (std::uint64_t i = first; i < first + count; ++i) is_used_[i] = is_used;
  }
  [[nodiscard]] std::uint64_t free_bytes() const {
    std::uint64_t free = 0;
    for (const bool is_used : is_used_) free += is_used ? 0 : granule;
    return free;
  }

 private:
  std::vector<bool> is_used_;
};

TEST(RangeAllocator, AgreesWithAModelOverRandomOperations) {
  struct Block {
    std::uint64_t first, count;
  };
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed, Purpose::program);
    RangeAllocator allocator(200 * granule, seed % 2 == 0 ? Reuse::hostile : Reuse::friendly);
    Model model(200);
    std::vector<Block> live;
    for (int step = 0; step < 500; ++step) {
      if (live.empty() || random.chance(60)) {
        const std::uint64_t count = 1 + random.below(20);
        const std::uint64_t alignment = std::uint64_t{1} << random.below(5);
        const auto offset =
            allocator.take(count * granule - random.below(granule), alignment * granule);
        ASSERT_EQ(offset.has_value(), model.fits(count, alignment));
        if (!offset) continue;
        ASSERT_EQ(*offset % (alignment * granule), 0u);
        ASSERT_TRUE(model.fits_at(*offset / granule, count));
        model.set(*offset / granule, count, true);
        live.push_back({*offset / granule, count});
      } else {
        const auto at = live.begin() + static_cast<std::ptrdiff_t>(random.below(live.size()));
        allocator.give(at->first * granule, at->count * granule);
        model.set(at->first, at->count, false);
        live.erase(at);
      }
      ASSERT_EQ(allocator.free_bytes(), model.free_bytes());
    }
  }
}

}  // namespace
}  // namespace tern::sim
