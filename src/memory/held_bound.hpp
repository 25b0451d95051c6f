// How much a pool may hold from the driver if all its requests are charged to the given budgets.
//
// A budget allows its limit. Limits of budgets side by side add up. A budget above, which is not in
// the list itself, allows what the budgets below it allow together, but at most its own limit. So
// the bound is what the budgets can have in use at the same time, and never less.

#pragma once

#include <cstddef>
#include <span>

#include "tern/memory/budget.hpp"

namespace tern {

/// Returns max_request_bytes if the budgets allow any number of bytes. A budget may be in the list
/// several times. Allocates nothing.
[[nodiscard]] std::size_t held_bound(std::span<const Budget* const> budgets) noexcept;

}  // namespace tern
