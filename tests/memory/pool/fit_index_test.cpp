#include "memory/pool/fit_index.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <set>

namespace tern::pool {
namespace {

TEST(FitIndex, FindsNothingIfEmpty) {
  const FitIndex index;
  EXPECT_TRUE(index.empty());
  EXPECT_EQ(index.find(1), nullptr);
  EXPECT_EQ(index.largest(), 0u);
  EXPECT_EQ(index.total(), 0u);
  EXPECT_TRUE(index.check_invariants());
}

TEST(FitIndex, FindsARangeOfExactlyTheSize) {
  for (std::uint64_t size = 1; size < 5000; ++size) {
    FitIndex index;
    Descriptor range{.offset = 7, .size = size};
    index.insert(range);
    EXPECT_EQ(index.find(size), &range) << size;
    EXPECT_EQ(index.find(size + 1), nullptr) << size;
    EXPECT_LE(index.largest(), size);
    EXPECT_GT(index.largest() * 33, size * 32);  // to the part of an octave
    index.remove(range);
    EXPECT_TRUE(index.empty());
    EXPECT_TRUE(index.check_invariants());
  }
}

TEST(FitIndex, PrefersATighterRangeOfTheSameList) {
  FitIndex index;
  Descriptor loose{.offset = 0, .size = 100'000}, tight{.offset = 200'000, .size = 1000};
  index.insert(loose);
  index.insert(tight);
  EXPECT_EQ(index.find(1000), &tight);
  EXPECT_EQ(index.find(999), &tight);
  EXPECT_EQ(index.find(1001), &loose);
}

TEST(FitIndex, LooksAtSeveralOfTheSameList) {
  FitIndex index;
  std::deque<Descriptor> ranges;
  // 1024 to 1055 share a list; the one that fits lies behind seven that do not.
  ranges.emplace_back();
  ranges.back().offset = 0;
  ranges.back().size = 1050;
  index.insert(ranges.back());
  for (int i = 1; i < FitIndex::max_looks; ++i) {
    ranges.emplace_back();
    ranges.back().offset = std::uint64_t(i) * 2000;
    ranges.back().size = 1030;
    index.insert(ranges.back());
  }
  EXPECT_EQ(index.find(1040), &ranges.front());
}

TEST(FitIndex, HoldsTheLargestSizesThereAre) {
  FitIndex index;
  // Four times 288 GiB in granules has 33 bits; lists go on far above.
  Descriptor huge{.offset = 0, .size = std::uint64_t{1} << 42};
  index.insert(huge);
  EXPECT_EQ(index.find(std::uint64_t{1} << 42), &huge);
  EXPECT_EQ(index.largest(), std::uint64_t{1} << 42);
  EXPECT_EQ(index.find((std::uint64_t{1} << 42) + 1), nullptr);
  EXPECT_EQ(index.find(~std::uint64_t{0}), nullptr);
}

TEST(FitIndex, RespectsAlignment) {
  FitIndex index;
  Descriptor crooked{.offset = 1, .size = 100}, straight{.offset = 1024, .size = 90};
  index.insert(crooked);
  index.insert(straight);
  EXPECT_EQ(index.find(64, 64), &straight);
  EXPECT_NE(index.find(36, 64), nullptr);
  index.remove(straight);
  EXPECT_EQ(index.find(37, 64), &crooked);  // 64 to 101
  EXPECT_EQ(index.find(38, 64), nullptr);
}

TEST(FitIndex, FindsTheLowestOfThoseThatFitAndAreNotTooLarge) {
  FitIndex index;
  Descriptor small{.offset = 0, .size = 9}, large{.offset = 100, .size = 64};
  Descriptor tight{.offset = 900, .size = 10}, loose{.offset = 500, .size = 60};
  for (Descriptor* one : {&small, &large, &tight, &loose}) index.insert(*one);
  EXPECT_EQ(index.find_lowest(10, 1, 64), &loose);
  EXPECT_EQ(index.find_lowest(10, 1, 65), &large);
  EXPECT_EQ(index.find_lowest(9, 1, 64), &small);
  EXPECT_EQ(index.find_lowest(10, 1, 60), &tight);
  EXPECT_EQ(index.find_lowest(61, 1, 64), nullptr);
  // 900 is a multiple of 4, 500 is none of 8 and has room behind it.
  EXPECT_EQ(index.find_lowest(10, 4, 60), &tight);
  EXPECT_EQ(index.find_lowest(57, 8, 64), nullptr);
  EXPECT_EQ(index.find_lowest(56, 8, 64), &loose);
  EXPECT_EQ(FitIndex().find_lowest(1, 1, 64), nullptr);
}

TEST(FitIndex, BoundsTheSearchForTheLowest) {
  FitIndex index;
  Descriptor lowest{.offset = 0, .size = 40};
  index.insert(lowest);
  std::deque<Descriptor> higher(FitIndex::max_looks_for_lowest);
  for (std::size_t i = 0; i < higher.size(); ++i) {
    higher[i].offset = 100 * (i + 1);
    higher[i].size = 20;
    index.insert(higher[i]);
  }
  EXPECT_EQ(index.find_lowest(20, 1, 64), &higher.front());
  index.remove(higher.back());
  EXPECT_EQ(index.find_lowest(20, 1, 64), &lowest);
}

TEST(FitIndex, AgreesWithALinearSearch) {
  std::mt19937_64 random(7);
  FitIndex index;
  std::deque<Descriptor> pool(400);
  std::set<Descriptor*> inside;
  for (int step = 0; step < 200'000; ++step) {
    Descriptor& range = pool[random() % pool.size()];
    if (inside.erase(&range) > 0) {
      index.remove(range);
    } else {
      range.size = 1 + random() % (std::uint64_t{1} << (random() % 34));
      range.offset = random() % 100'000;
      index.insert(range);
      inside.insert(&range);
    }
    const std::uint64_t wanted = 1 + random() % (std::uint64_t{1} << (random() % 34));
    const std::uint64_t alignment = random() % 4 == 0 ? std::uint64_t{1} << (random() % 14) : 1;
    const Descriptor* found = index.find(wanted, alignment);
    if (found != nullptr) {
      const std::uint64_t begin = (found->offset + alignment - 1) / alignment * alignment;
      ASSERT_LE(begin + wanted, found->end());
      ASSERT_TRUE(inside.contains(const_cast<Descriptor*>(found)));
    } else {
      // What it may miss lies in the size's own list, or fits only by luck of its offset.
      for (const Descriptor* one : inside) {
        ASSERT_LT(one->size, wanted + wanted / 32 + 2 + 33 * alignment) << wanted;
      }
    }
    if (step % 1000 == 0) {
      ASSERT_TRUE(index.check_invariants());
    }
  }
}

}  // namespace
}  // namespace tern::pool
