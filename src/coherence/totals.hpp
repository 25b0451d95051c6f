// What all unified buffers of the process have moved. Its lock is taken when bytes move, and not
// otherwise.

#pragma once

#include <mutex>

#include "tern/coherence/transfer.hpp"

namespace tern {

struct UnifiedTotals {
  [[nodiscard]] static UnifiedTotals& instance() noexcept;

  std::mutex mutex;
  UnifiedStatistics statistics;  // guarded by mutex
};

}  // namespace tern
