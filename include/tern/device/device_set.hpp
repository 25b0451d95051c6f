// A DeviceSet holds several devices and chooses one: in turn, or by free memory.
//
//   DeviceSet devices({open_device("cuda:0"), open_device("cuda:1")});
//   const Device& device = devices.next();
//
// The set keeps its devices open and never changes. All functions are safe from any thread.

#pragma once

#include <atomic>
#include <cstddef>
#include <span>
#include <vector>

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/core/visibility.hpp"
#include "tern/device/device.hpp"

namespace tern {

class TERN_EXPORT DeviceSet {
 public:
  /// Throws InvalidArgument if the list is empty, contains a device that is not open, or contains a
  /// device twice.
  explicit DeviceSet(std::vector<Device> devices);

  /// Returns the devices in the order given to the constructor.
  [[nodiscard]] std::span<const Device> devices() const noexcept { return devices_; }

  /// Returns the devices round robin: 0, 1, ..., n-1, 0, ... All threads share one counter.
  [[nodiscard]] const Device& next() noexcept;
  /// Returns the device with the most free memory now; of equal devices, the first. Skips devices
  /// that cannot report their memory, and fails with the last of their failures if none can.
  [[nodiscard]] Result<Device> try_most_free() const noexcept;
  [[nodiscard]] Device max_free(CallSite site = CallSite::here()) const {
    return try_most_free().value(site);
  }

  /// Waits for all work on all devices. If a device fails, continues with the others and then
  /// returns the first failure.
  Result<void> try_synchronize() const noexcept;
  void synchronize(CallSite site = CallSite::here()) const { try_synchronize().value(site); }

 private:
  std::vector<Device> devices_;
  std::atomic<std::size_t> turn_ = 0;
};

}  // namespace tern
