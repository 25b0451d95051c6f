#include "tern/coherence/pressure.hpp"

#include "coherence/totals.hpp"

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

PressureStatistics pressure_totals() noexcept { return PressureTotals::instance().now(); }

}  // namespace tern
