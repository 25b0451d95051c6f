// Budgets for tests, and a check that the counters of a budget are consistent.

#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <utility>

#include "memory/budget_state.hpp"
#include "tern/memory/budget.hpp"

namespace tern::test {

inline BudgetHandle limited(std::size_t bytes, const char* name = "test", BudgetHandle parent = {},
                            Overflow overflow = Overflow::spill) {
  return Budget::make(name, BudgetLimit::bytes(bytes),
                      {.parent = std::move(parent), .overflow = overflow});
}

/// Call while no other thread charges or frees.
inline void expect_sound(const Budget& budget) {
  const BudgetState now = state_of(budget);
  EXPECT_EQ(now.charged_bytes, now.admitted_bytes + now.provisional_bytes + now.reserved_bytes);
  EXPECT_LE(now.pending_bytes, now.admitted_bytes);
  EXPECT_LE(now.admitted_bytes, now.peak_bytes);
  std::size_t sum = 0;
  for (const auto& [tag, bytes] : budget.used_by_tag()) sum += bytes;
  EXPECT_EQ(sum, now.admitted_bytes);
}

}  // namespace tern::test
