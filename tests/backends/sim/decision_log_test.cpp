#include "backends/sim/decision_log.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace tern::sim {
namespace {

TEST(DecisionLog, TriesEveryWayOnceAndThenEnds) {
  // What the second choice offers depends on the first.
  DecisionLog log;
  std::multiset<std::string> ways;
  do {
    const std::size_t one = log.choose(3);
    const std::size_t two = log.choose(one + 1);
    ways.insert(std::to_string(one) + std::to_string(two));
  } while (log.advance());
  EXPECT_EQ(ways, (std::multiset<std::string>{"00", "10", "11", "20", "21", "22"}));
  EXPECT_TRUE(log.is_repeatable());
}

TEST(DecisionLog, OfNothingHasOneWay) {
  DecisionLog log;
  EXPECT_FALSE(log.advance());
  EXPECT_EQ(log.choose(1), 0u);
  EXPECT_FALSE(log.advance());
}

TEST(DecisionLog, ForgetsWhatAShorterRunDidNotReach) {
  DecisionLog log;
  std::size_t runs = 0;
  do {
    ++runs;
    if (log.choose(2) == 0) static_cast<void>(log.choose(2));
  } while (log.advance());
  EXPECT_EQ(runs, 3u);
}

TEST(DecisionLog, NoticesAProgramThatDoesNotRepeat) {
  DecisionLog log;
  static_cast<void>(log.choose(2));
  static_cast<void>(log.choose(2));
  ASSERT_TRUE(log.advance());
  EXPECT_LT(log.choose(1), 1u);  // it was 2 before
  EXPECT_FALSE(log.is_repeatable());
}

}  // namespace
}  // namespace tern::sim
