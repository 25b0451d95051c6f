#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <vector>

#include "backends/sim/random.hpp"
#include "tern/backends/sim.hpp"

namespace tern::sim {
namespace {

using Numbers = std::vector<int>;

Numbers zero_to(int count) {
  Numbers numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}
bool has(std::span<const int> steps, int wanted) {
  return std::ranges::find(steps, wanted) != steps.end();
}

TEST(Shrink, KeepsOnlyTheStepsThatFailTogetherAndTheirOrder) {
  const Numbers shortest = shrink(zero_to(1000), [](std::span<const int> steps) {
    return has(steps, 7) && has(steps, 400) && has(steps, 999);
  });
  EXPECT_EQ(shortest, (Numbers{7, 400, 999}));
}

TEST(Shrink, NeedsFewRunsToFindOneStepAmongThousands) {
  int runs = 0;
  const Numbers shortest = shrink(zero_to(4096), [&](std::span<const int> steps) {
    ++runs;
    return has(steps, 1234);
  });
  EXPECT_EQ(shortest, Numbers{1234});
  EXPECT_LT(runs, 50);
}

TEST(Shrink, GivesBackAProgramThatDoesNotFail) {
  int runs = 0;
  const auto never = [&](std::span<const int>) {
    ++runs;
    return false;
  };
  EXPECT_EQ(shrink(zero_to(10), never), zero_to(10));
  EXPECT_EQ(runs, 1);
  EXPECT_EQ(shrink(Numbers{}, never), Numbers{});
}

TEST(Shrink, CanLeaveNothingWhereNothingIsNeeded) {
  EXPECT_EQ(shrink(zero_to(10), [](std::span<const int>) { return true; }), Numbers{});
}

TEST(Shrink, LeavesNoStepThatCouldGoAlone) {
  // Failing takes a set of steps that the seed draws, or one of two others in place of its first.
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed, Purpose::program);
    Numbers needed;
    for (int i = 0; i < 5; ++i) needed.push_back(static_cast<int>(random.below(100)));
    const auto fails = [&](std::span<const int> steps) {
      const bool begins = has(steps, needed[0]) || (has(steps, needed[3]) && has(steps, needed[4]));
      return begins && has(steps, needed[1]) && has(steps, needed[2]);
    };
    const Numbers shortest = shrink(zero_to(100), fails);
    ASSERT_TRUE(fails(shortest)) << "seed " << seed;
    for (std::size_t i = 0; i < shortest.size(); ++i) {
      Numbers fewer = shortest;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_FALSE(fails(fewer)) << "seed " << seed << ", step " << shortest[i];
    }
  }
}

TEST(Shrink, TriesAgainWhatCouldNotGoBeforeAnEarlierStepWent) {
  const auto fails = [](std::span<const int> steps) {
    return has(steps, 1) && (!has(steps, 2) || has(steps, 5));
  };
  EXPECT_EQ(shrink(Numbers{1, 2, 5}, fails), Numbers{1});
}

/// A step that may need an earlier one.
struct Node {
  int number = 0;
  int parent = -1;
  friend bool operator==(const Node&, const Node&) = default;
};

TEST(Shrink, LeavesOutWhatDependsOnAStepTogetherWithIt) {
  std::vector<Node> steps;
  for (int i = 0; i < 60; ++i) steps.push_back({i, i % 3 == 0 ? -1 : i - 1});
  const auto fails = [](std::span<const Node> some) {
    for (const Node& node : some) {
      const bool is_whole =
          node.parent < 0 || std::ranges::find(some, node.parent, &Node::number) != some.end();
      EXPECT_TRUE(is_whole) << "step " << node.number << " came without step " << node.parent;
    }
    return std::ranges::find(some, 31, &Node::number) != some.end();
  };
  const auto needs = [](const Node& later, const Node& earlier) {
    return later.parent == earlier.number;
  };
  EXPECT_EQ(shrink(steps, fails, needs), (std::vector<Node>{{30, -1}, {31, 30}}));
}

std::vector<int> halves(int number) {
  std::vector<int> simpler;
  for (int n = 1; n < number; n *= 2) simpler.push_back(n);
  if (number > 1) simpler.push_back(number - 1);
  return simpler;
}

TEST(Shrink, MakesTheStepsThatStaySimpler) {
  const auto fails = [](std::span<const int> steps) {
    return std::accumulate(steps.begin(), steps.end(), 0) >= 13 && steps.size() >= 2;
  };
  const Numbers shortest = shrink(Numbers{50, 60, 70}, fails, NothingDepends<int>{}, halves);
  EXPECT_EQ(shortest.size(), 2u);
  EXPECT_EQ(std::accumulate(shortest.begin(), shortest.end(), 0), 13);
}

TEST(Shrink, LeavesOutAgainWhatASimplerStepHasMadeUseless) {
  // The large first step is what all the others are needed for.
  const auto fails = [](std::span<const int> steps) {
    return !steps.empty() && static_cast<int>(steps.size()) >= std::min(steps[0], 40);
  };
  Numbers steps(50, 9);
  steps[0] = 40;
  EXPECT_EQ(shrink(steps, fails, NothingDepends<int>{}, halves), Numbers{1});
}

TEST(Shrink, EndsWithTheShortestSoFarWhenTheRunsAreUsedUp) {
  std::size_t runs = 0;
  const auto fails = [&](std::span<const int> steps) {
    ++runs;
    return has(steps, 5) && has(steps, 90);
  };
  const Numbers shortest = shrink(zero_to(100), fails, NothingDepends<int>{}, halves, 10);
  EXPECT_EQ(runs, 10u);
  EXPECT_TRUE(has(shortest, 5) && has(shortest, 90));
  EXPECT_LT(shortest.size(), 100u);
}

TEST(Shrink, GoesTheSameWayEveryTime) {
  const auto fails = [](std::span<const int> steps) {
    return std::accumulate(steps.begin(), steps.end(), 0) % 7 == 3;
  };
  Numbers steps = zero_to(100);
  steps.push_back(2);  // 4950 leaves 1
  ASSERT_TRUE(fails(steps));
  EXPECT_EQ(shrink(steps, fails), shrink(steps, fails));
}

}  // namespace
}  // namespace tern::sim
