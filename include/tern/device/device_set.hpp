// A DeviceSet is several devices to choose from: in turn, or by free memory.
//
// It holds its devices open. next() is thread-safe and fair; the set itself does not change.

#pragma once

#include <atomic>
#include <cstddef>
#include <span>
#include <vector>

#include "tern/core/call_site.hpp"
#include "tern/core/export.hpp"
#include "tern/core/result.hpp"
#include "tern/device/device.hpp"

namespace tern {

class TERN_EXPORT DeviceSet {
 public:
  /// Throws InvalidArgument for an empty list, one that is not open, or a device given twice.
  explicit DeviceSet(std::vector<Device> devices);

  [[nodiscard]] std::span<const Device> devices() const noexcept { return devices_; }

  /// Round robin: 0, 1, ..., n-1, 0, ...
  [[nodiscard]] const Device& next() noexcept;
  /// The device with the most free memory now; of several, the first. Fails if none can be asked.
  [[nodiscard]] Result<Device> try_most_free() const noexcept;
  [[nodiscard]] Device most_free(CallSite site = CallSite::here()) const {
    return try_most_free().value(site);
  }

  /// Completes the work of all devices, and returns the first failure after trying each.
  Result<void> try_synchronize() const noexcept;
  void synchronize(CallSite site = CallSite::here()) const { try_synchronize().value(site); }

 private:
  std::vector<Device> devices_;
  std::atomic<std::size_t> turn_ = 0;
};

}  // namespace tern
