// What pressure has done in the whole process. Its lock is taken when a copy goes, and not
// otherwise.

#pragma once

#include <mutex>

#include "tern/coherence/pressure.hpp"

namespace tern {

struct PressureTotals {
  [[nodiscard]] static PressureTotals& instance() noexcept;

  std::mutex mutex;
  PressureStatistics statistics;  // guarded by mutex
};

}  // namespace tern
