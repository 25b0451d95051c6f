#include "backends/sim/random.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <set>
#include <vector>

namespace tern::sim {
namespace {

std::vector<std::uint64_t> draw(std::uint64_t seed, Purpose purpose, int count = 100) {
  Random random(seed, purpose);
  std::vector<std::uint64_t> numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(random.next());
  return numbers;
}

TEST(Random, IsTheSameOnEveryMachine) {
  // Written down once: another value would make every recorded seed replay something else.
  Random random(7, Purpose::schedule);
  EXPECT_EQ(random.next(), 0x9c01479161bc5d78u);
  EXPECT_EQ(random.next(), 0x68bffcd4b372ef48u);
  EXPECT_EQ(hash(1), 0x5692161d100b05e5u);
}

TEST(Random, RepeatsFromItsSeed) { EXPECT_EQ(draw(7, Purpose::coins), draw(7, Purpose::coins)); }

TEST(Random, HasASequenceOfItsOwnPerPurpose) {
  std::set<std::vector<std::uint64_t>> sequences;
  for (const Purpose purpose :
       {Purpose::schedule, Purpose::coins, Purpose::faults, Purpose::fill, Purpose::program}) {
    sequences.insert(draw(7, purpose));
  }
  EXPECT_EQ(sequences.size(), 5u);
}

TEST(Random, GivesNeighbouringSeedsNothingInCommon) {
  // A shifted copy would show as a number that both have.
  std::set<std::uint64_t> seen;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    for (const std::uint64_t number : draw(seed, Purpose::program)) {
      EXPECT_TRUE(seen.insert(number).second) << "seed " << seed;
    }
  }
}

TEST(Random, StaysBelowTheBoundAndReachesAllOfIt) {
  Random random(1, Purpose::coins);
  std::array<int, 5> counts = {};
  for (int i = 0; i < 5000; ++i) ++counts.at(random.below(5));
  EXPECT_GT(*std::ranges::min_element(counts), 900);
  EXPECT_EQ(random.below(1), 0u);
}

TEST(Random, KeepsItsChances) {
  Random random(2, Purpose::coins);
  int hits = 0;
  for (int i = 0; i < 10'000; ++i) {
    EXPECT_FALSE(random.chance(0));
    EXPECT_TRUE(random.chance(100));
    hits += random.chance(30) ? 1 : 0;
  }
  EXPECT_NEAR(hits, 3000, 150);
}

}  // namespace
}  // namespace tern::sim
