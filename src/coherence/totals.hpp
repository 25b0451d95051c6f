// What all unified buffers of the process have done: what they moved, and what pressure took from
// them. A lock of it is taken when bytes move or a copy goes, and not otherwise.

#pragma once

#include <mutex>

#include "tern/coherence/pressure.hpp"
#include "tern/coherence/transfer.hpp"

namespace tern {

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
