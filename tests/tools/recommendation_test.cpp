#include "tools/replay/recommendation.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "tern/backends/catalog.hpp"
#include "tern/core/bytes.hpp"
#include "tools/replay/smallest.hpp"

namespace tern::tools {
namespace {

TEST(FindSmallest, ReturnsTheFirstNumberThatServes) {
  for (std::size_t answer = 1; answer <= 60; ++answer) {
    std::set<std::size_t> tried;
    const auto serves = [&](std::size_t number) {
      EXPECT_TRUE(tried.insert(number).second) << "tried twice";
      return number >= answer;
    };
    EXPECT_EQ(find_smallest(0, 60, serves), answer);
    EXPECT_LE(tried.size(), 12u);
  }
}

TEST(FindSmallest, ReturnsNothingIfNothingServes) {
  const auto never = [](std::size_t) { return false; };
  EXPECT_EQ(find_smallest(3, 100, never), std::nullopt);
  EXPECT_EQ(find_smallest(3, 3, never), std::nullopt);
  EXPECT_EQ(find_smallest(SIZE_MAX - 5, SIZE_MAX, never), std::nullopt);
}

ContestResult result_with(std::size_t held, std::uint64_t cold, std::uint64_t warm) {
  ContestResult result;
  result.peak_held_bytes = held;
  result.passes = {{0, cold, 0, 0}, {0, warm, 0, 0}};
  return result;
}

TEST(Compare, OnlyCountsWhatMatters) {
  std::vector<Change> gains, costs;
  const ContestResult base = result_with(10 * gib, 1000, 0);
  compare(base, result_with(10 * gib - 100 * mib, 950, 9), gains, costs);
  EXPECT_TRUE(gains.empty() && costs.empty());
  compare(base, result_with(9 * gib, 1200, 0), gains, costs);
  ASSERT_EQ(gains.size(), 1u);
  EXPECT_EQ(gains[0].figure, "peak_held_bytes");
  ASSERT_EQ(costs.size(), 1u);
  EXPECT_EQ(costs[0].figure, "cold_driver_calls");
}

TEST(Recommendations, AreBetterWhenTheyAreMeasuredAgain) {
  const Device device = open_device("sim:0?check=off&schedule=eager");
  std::size_t count = 0;
  for (const bench::AllocationTrace& trace :
       {bench::checkerboard(), bench::train_varlen(), bench::multi_stream_etl()}) {
    SCOPED_TRACE(trace.name);
    Contest contest(device, trace, 2, [](std::string_view) {});
    const ContestResult base = contest.run({});
    for (const Recommendation& one : recommend(contest, base)) {
      SCOPED_TRACE(one.text);
      ++count;
      const ContestResult again = contest.run(one.result.setting);
      std::vector<Change> gains, costs;
      compare(contest.run({}), again, gains, costs);
      EXPECT_LE(again.refusals(), base.refusals());
      for (const Change& gain : one.gains) {
        const auto same = std::ranges::find(gains, gain.figure, &Change::figure);
        EXPECT_NE(same, gains.end()) << gain.figure;
      }
    }
  }
  EXPECT_GE(count, 4u);
}

TEST(Recommendations, DoNotRefuseMore) {
  // Pages fit, and segments do not: they cannot be put together.
  const Device device = open_device("sim:0?check=off&schedule=eager&memory=2300MiB");
  const bench::AllocationTrace trace = bench::checkerboard();
  Contest contest(device, trace, 2, [](std::string_view) {});
  const ContestResult base = contest.run({});
  ASSERT_EQ(base.refusals(), 0u);
  ResourceSetting segments;
  segments.pool.backing = PoolBacking::segments;
  ASSERT_GT(contest.run(segments).refusals(), 0u);
  for (const Recommendation& one : recommend(contest, base)) {
    EXPECT_EQ(one.result.refusals(), 0u) << one.text;
  }
}

TEST(FindSmallestLimit, WithOneGranuleLessARequestIsRefused) {
  const Device device = open_device("sim:0?check=off&schedule=eager");
  const bench::AllocationTrace trace = bench::train_varlen(4);
  Contest contest(device, trace, 1, [](std::string_view) {});
  const ContestResult found = find_smallest_limit(contest, {}, 8 * gib, 2 * mib);
  ASSERT_TRUE(found.has_figures());
  EXPECT_EQ(found.refusals(), 0u);
  EXPECT_GE(found.setting.pool.limit_bytes, contest.facts().peak_bytes);
  ResourceSetting less = found.setting;
  less.pool.limit_bytes -= 2 * mib;
  EXPECT_GT(contest.run(less).refusals(), 0u);
}

TEST(FindSmallestLimit, IsEmptyIfTheLargestRefuses) {
  const Device device = open_device("sim:0?check=off&schedule=eager");
  const bench::AllocationTrace trace = bench::checkerboard();
  Contest contest(device, trace, 1, [](std::string_view) {});
  EXPECT_FALSE(find_smallest_limit(contest, {}, 1 * gib, 2 * mib).has_figures());
}

}  // namespace
}  // namespace tern::tools
