// All counts of a budget at one moment, for messages and tests.

#pragma once

#include <cstddef>

#include "tern/memory/budget.hpp"

namespace tern {

/// The counts of a budget at one moment. The parts may be off by the calls in progress.
struct BudgetState {
  std::size_t limit_bytes = 0;
  std::size_t charged_bytes = 0;
  std::size_t admitted_bytes = 0;
  std::size_t pending_bytes = 0;
  std::size_t provisional_bytes = 0;
  std::size_t reserved_bytes = 0;
  std::size_t peak_bytes = 0;

  friend bool operator==(const BudgetState&, const BudgetState&) noexcept = default;
};

[[nodiscard]] inline BudgetState state_of(const Budget& budget) noexcept {
  return {.limit_bytes = budget.limit_bytes(),
          .charged_bytes = budget.charged_bytes(),
          .admitted_bytes = budget.used_bytes(),
          .pending_bytes = budget.pending_bytes(),
          .provisional_bytes = budget.provisional_bytes(),
          .reserved_bytes = budget.reserved_bytes(),
          .peak_bytes = budget.peak_bytes()};
}

}  // namespace tern
