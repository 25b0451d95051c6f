// The way from a budget to the copies of unified buffers that it counts.
//
// The layer of unified buffers is above this one. It sets the hook when the first unified buffer
// has a copy; until then there is nothing to evict.

#pragma once

#include <atomic>
#include <cstddef>

#include "tern/memory/budget.hpp"

namespace tern {

/// Evicts copies that count against the budget or a budget below it, until `bytes` bytes are freed
/// or no copy is left that `reach` and the Overflow of its own budgets allow to evict. Returns the
/// bytes of the evicted copies.
using EvictionHook = std::size_t (*)(const Budget& budget, std::size_t bytes,
                                     Overflow reach) noexcept;

inline std::atomic<EvictionHook> eviction_hook = nullptr;

}  // namespace tern
