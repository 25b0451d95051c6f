// Sums over all unified buffers of the process: transfers and evictions. Their lock is taken only
// when bytes move or a copy is evicted.

#pragma once

#include <mutex>

#include "tern/coherence/pressure.hpp"
#include "tern/coherence/unified_statistics.hpp"

namespace tern {

/// Statistics that are never destroyed before the program ends. Lock `mutex` to change them.
template <class Statistics>
struct Totals {
  [[nodiscard]] static Totals& instance() noexcept {
    static Totals totals;
    return totals;
  }
  [[nodiscard]] Statistics now() noexcept {
    const std::lock_guard lock(mutex);
    return statistics;
  }

  std::mutex mutex;
  Statistics statistics;  // guarded by mutex
};

using UnifiedTotals = Totals<UnifiedStatistics>;
using PressureTotals = Totals<PressureStatistics>;

}  // namespace tern
