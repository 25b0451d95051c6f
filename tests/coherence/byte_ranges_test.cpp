#include "coherence/byte_ranges.hpp"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace tern::test {
namespace {

using Ranges = std::vector<ByteRange>;

std::vector<std::pair<std::size_t, std::size_t>> pairs(const Ranges& ranges) {
  std::vector<std::pair<std::size_t, std::size_t>> all;
  for (const ByteRange& one : ranges) all.emplace_back(one.begin, one.end);
  return all;
}

TEST(ByteRanges, OverlapIfTheyHaveAByteInCommon) {
  EXPECT_TRUE(overlap({0, 10}, {9, 20}));
  EXPECT_TRUE(overlap({0, 30}, {9, 20}));
  EXPECT_FALSE(overlap({0, 10}, {10, 20}));
  EXPECT_FALSE(overlap({5, 5}, {6, 20}));
}

TEST(ByteRanges, HullCoversBothRangesAndTheGap) {
  const ByteRange around = hull({30, 40}, {0, 10});
  EXPECT_EQ(around.begin, 0u);
  EXPECT_EQ(around.end, 40u);
}

TEST(ByteRanges, SubtractSplitsARangeAroundEachHole) {
  const Ranges ranges{{0, 100}, {200, 300}};
  const Ranges removed{{10, 20}, {50, 60}, {90, 210}};
  const std::vector<std::pair<std::size_t, std::size_t>> expected{
      {0, 10}, {20, 50}, {60, 90}, {210, 300}};
  EXPECT_EQ(pairs(subtract(ranges, removed)), expected);
}

TEST(ByteRanges, SubtractOfNothingChangesNothing) {
  const Ranges ranges{{0, 100}};
  EXPECT_EQ(pairs(subtract(ranges, {})), pairs(ranges));
  EXPECT_TRUE(subtract(ranges, ranges).empty());
}

}  // namespace
}  // namespace tern::test
