#include "memory/held_bound.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "support/budgets.hpp"
#include "tern/core/bytes.hpp"

namespace tern {
namespace {

using test::limited;

std::size_t bound_of(const std::vector<BudgetHandle>& budgets) {
  std::vector<const Budget*> all;
  for (const BudgetHandle& budget : budgets) all.push_back(budget.get());
  return held_bound(all);
}

TEST(HeldBound, IsTheLimitOfOneBudget) {
  const BudgetHandle budget = limited(100);
  EXPECT_EQ(bound_of({budget}), 100u);
  EXPECT_EQ(bound_of({budget, budget}), 100u);
  EXPECT_EQ(bound_of({}), 0u);
}

TEST(HeldBound, AddsTheLimitsOfSeveralTrees) {
  EXPECT_EQ(bound_of({limited(100), limited(20), limited(3)}), 123u);
}

TEST(HeldBound, IsNeverMoreThanALimitAbove) {
  const BudgetHandle root = limited(100, "root");
  const BudgetHandle one = limited(80, "one", root), two = limited(60, "two", root);
  EXPECT_EQ(bound_of({one}), 80u);
  EXPECT_EQ(bound_of({one, two}), 100u);
  EXPECT_EQ(bound_of({one, root}), 100u);  // what is charged to the root alone is in its limit
  EXPECT_EQ(bound_of({one, two, limited(7)}), 107u);
}

TEST(HeldBound, AppliesEveryLevelOfATree) {
  const BudgetHandle root = limited(1000, "root");
  const BudgetHandle tenant = limited(50, "tenant", root), other = limited(500, "other", root);
  const BudgetHandle task = limited(40, "task", tenant), second = limited(30, "second", tenant);
  EXPECT_EQ(bound_of({task}), 40u);
  EXPECT_EQ(bound_of({task, second}), 50u);
  EXPECT_EQ(bound_of({task, other, second}), 550u);
}

TEST(HeldBound, IsUnboundedOnlyIfNoLimitApplies) {
  const auto unlimited = [](BudgetHandle parent) {
    return Budget::make("any", BudgetLimit::unlimited(), {.parent = std::move(parent)});
  };
  EXPECT_EQ(bound_of({unlimited({})}), max_request_bytes);
  EXPECT_EQ(bound_of({unlimited({}), limited(5)}), max_request_bytes);
  EXPECT_EQ(bound_of({unlimited(limited(9))}), 9u);
}

TEST(HeldBound, SkipsLimitsOfLiveBytes) {
  const auto live_only = [](std::size_t bytes, BudgetHandle parent) {
    return Budget::make("live", BudgetLimit::bytes(bytes),
                        {.parent = std::move(parent), .bounds_held = false});
  };
  EXPECT_EQ(bound_of({live_only(9, {})}), max_request_bytes);
  EXPECT_EQ(bound_of({live_only(9, limited(20))}), 20u);
  EXPECT_EQ(bound_of({limited(9, "task", live_only(5, {}))}), 9u);
}

}  // namespace
}  // namespace tern
