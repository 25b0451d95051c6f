// Frees that failed silently, of all resources of the process: for the report of shutdown().

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tern {

struct FailedFreeTotals {
  std::atomic<std::uint64_t> frees = 0;  // ever
  std::atomic<std::size_t> bytes = 0;    // that are live because of it
};
/// Written by Resource.
extern FailedFreeTotals failed_free_totals;

}  // namespace tern
