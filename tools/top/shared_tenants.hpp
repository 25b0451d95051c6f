// The table of `tern top --shared`: the tenants of a shared budget.

#pragma once

#include <string>

#include "tern/memory/shared_budget.hpp"

namespace tern::tools {

/// Writes the state as a table for people, the tenant with the most bytes first.
[[nodiscard]] std::string shared_text(const SharedBudgetState& state);

}  // namespace tern::tools
