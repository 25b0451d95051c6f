// Process-wide totals of failed deallocate() calls, for the report of shutdown(). Updated by
// Resource, which also retries these frees (resource.cpp).

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tern {

struct FailedFreeTotals {
  std::atomic<std::uint64_t> frees = 0;  // deallocate() calls that failed so far
  std::atomic<std::size_t> bytes = 0;    // bytes that are still live because of that
};
/// Updated by Resource.
extern FailedFreeTotals failed_free_totals;

}  // namespace tern
