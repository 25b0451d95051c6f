#include "tern/coherence/pressure.hpp"

#include "coherence/pressure_totals.hpp"

namespace tern {

std::string_view name(Eviction kind) noexcept {
  switch (kind) {
    case Eviction::stale:
      return "stale";
    case Eviction::clean:
      return "clean";
    case Eviction::dirty:
      return "dirty";
  }
  return "unknown";
}

PressureTotals& PressureTotals::instance() noexcept {
  static PressureTotals totals;
  return totals;
}

PressureStatistics pressure_totals() noexcept {
  PressureTotals& totals = PressureTotals::instance();
  const std::lock_guard lock(totals.mutex);
  return totals.statistics;
}

}  // namespace tern
