// Evicts copies of unified buffers because another tenant of a shared budget has asked for memory.
//
// The copies of all places are candidates, in the usual order: stale, clean, dirty, and within a
// kind the least recently used first. The implementation of eviction_hook.

#pragma once

#include <cstddef>

#include "tern/memory/budget.hpp"

namespace tern {

/// Evicts copies that count against the budget or one below it until `bytes` bytes are evicted.
/// `reach` and the Overflow of the budgets of a copy decide whether the copy may go. Returns the
/// bytes of the evicted copies. Does not wait for leases, and evicts no copy that is in use.
std::size_t evict_for_others(const Budget& budget, std::size_t bytes, Overflow reach) noexcept;

}  // namespace tern
