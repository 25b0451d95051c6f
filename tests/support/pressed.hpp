// What tests of memory pressure share: a simulated device with a budget for unified buffers.

#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "support/budgets.hpp"
#include "support/unified.hpp"
#include "tern/coherence/pressure.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern::test {

/// A test buffer has 1 KiB, so a limit is a number of buffers.
inline constexpr std::size_t pressed_ints = 256;
inline constexpr std::size_t pressed_bytes = 1024;

inline PressureStatistics operator-(PressureStatistics a, const PressureStatistics& b) {
  for (std::size_t i = 0; i < eviction_kinds; ++i) {
    a.device[i].copies -= b.device[i].copies;
    a.device[i].bytes -= b.device[i].bytes;
    a.host[i].copies -= b.host[i].copies;
    a.host[i].bytes -= b.host[i].bytes;
  }
  a.written_back_bytes -= b.written_back_bytes;
  a.spilled_bytes -= b.spilled_bytes;
  a.unspilled_bytes -= b.unspilled_bytes;
  a.failed_evictions -= b.failed_evictions;
  a.refused_requests -= b.refused_requests;
  a.waited_requests -= b.waited_requests;
  return a;
}

class Pressed : public Unified {
 protected:
  /// Makes a budget that holds this many buffers on the device.
  explicit Pressed(std::size_t buffers = 3) : budget(limited(buffers * pressed_bytes)) {}

  [[nodiscard]] UnifiedOptions options(const char* tag = "u") const {
    return {.device = device, .tag = tag, .resources = {resource}};
  }
  [[nodiscard]] UnifiedBuffer<int> pressed(const char* tag = "u", std::size_t buffers = 1) const {
    return UnifiedBuffer<int>(Shape{buffers * pressed_ints}, options(tag));
  }
  /// Makes a buffer that is up to date on the host and on the device.
  [[nodiscard]] UnifiedBuffer<int> clean(const char* tag = "clean") const {
    UnifiedBuffer<int> made = pressed(tag);
    made.copy_from(counting(pressed_ints));
    made.prefetch(s);
    return made;
  }
  /// Makes a buffer that is up to date only on the device.
  [[nodiscard]] UnifiedBuffer<int> dirty(int value = 7, const char* tag = "dirty") const {
    UnifiedBuffer<int> made = pressed(tag);
    write_on_device(made, s, value);
    return made;
  }
  /// Makes a buffer with a stale copy on the device; the host is up to date.
  [[nodiscard]] UnifiedBuffer<int> stale(int value = 5, const char* tag = "stale") const {
    UnifiedBuffer<int> made = dirty(1, tag);
    std::ranges::fill(made.discard_host(), value);
    return made;
  }
  /// Opens and closes a read lease on the device.
  void use(const UnifiedBuffer<int>& buffer) const {
    const DeviceLease<const int> lease = buffer.read_device(s);
  }
  [[nodiscard]] bool is_there(const UnifiedBuffer<int>& buffer) const {
    return buffer.has_copy(device.place());
  }
  [[nodiscard]] PressureStatistics since() const { return pressure_totals() - before; }

  const BudgetHandle budget;
  const ResourceHandle pool = std::make_shared<PoolResource>(device);
  const ResourceHandle resource = std::make_shared<BudgetResource>(pool, budget);
  const PressureStatistics before = pressure_totals();
};

}  // namespace tern::test
