#include "memory/held_bound.hpp"

#include <algorithm>

#include "tern/core/bytes.hpp"
#include "tern/memory/shared_budget.hpp"

namespace tern {
namespace {

using Budgets = std::span<const Budget* const>;

/// Returns the budget directly below `above` that `budget` is or is under, or null. A null `above`
/// is above every root.
const Budget* child_towards(const Budget* above, const Budget* budget) noexcept {
  while (budget != nullptr && budget->parent().get() != above) budget = budget->parent().get();
  return budget;
}

/// Returns the limit of the budget, or a smaller one of the shared budget above it.
std::size_t limit_of(const Budget& budget) noexcept {
  const SharedBudget* const shared = budget.parent() ? nullptr : budget.shared().get();
  if (shared == nullptr) return budget.limit_bytes();
  return std::min({budget.limit_bytes(), shared->limit_bytes(), shared->tenant_limit_bytes()});
}

/// Returns what the budgets directly below `above` allow together.
// NOLINTNEXTLINE(misc-no-recursion): as deep as the tree of budgets
std::size_t sum_below(const Budget* above, Budgets budgets) noexcept {
  std::size_t sum = 0;
  for (std::size_t i = 0; i < budgets.size(); ++i) {
    const Budget* const child = child_towards(above, budgets[i]);
    const auto is_same = [&](const Budget* other) { return child_towards(above, other) == child; };
    // Each child counts once, with the first budget that is under it.
    if (child == nullptr || std::ranges::any_of(budgets.first(i), is_same)) continue;
    const std::size_t limit = child->bounds_held() ? limit_of(*child) : max_request_bytes;
    const bool is_listed = std::ranges::find(budgets, child) != budgets.end();
    const std::size_t allowed = is_listed ? limit : std::min(limit, sum_below(child, budgets));
    sum = std::min(max_request_bytes, sum + allowed);
  }
  return sum;
}

}  // namespace

std::size_t held_bound(Budgets budgets) noexcept { return sum_below(nullptr, budgets); }

}  // namespace tern
