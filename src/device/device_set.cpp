#include <algorithm>
#include <atomic>
#include <optional>
#include <span>
#include <vector>

#include "tern/device/device.hpp"

namespace tern {

DeviceSet::DeviceSet(std::vector<Device> devices) : devices_(std::move(devices)) {
  const auto refuse = [](const char* why) {
    raise(Failure(ErrorCode::invalid_argument, "the devices do not form a set: {why}.")
              .with("name", "devices")
              .with("why", why));
  };
  if (devices_.empty()) refuse("the list is empty. Pass at least one device");
  for (auto device = devices_.begin(); device != devices_.end(); ++device) {
    if (!device->is_open()) refuse("one of them is not open. Open each with open_device()");
    if (std::find(devices_.begin(), device, *device) != device) {
      refuse("one device appears twice. Pass each device once");
    }
  }
}

std::span<const Device> DeviceSet::devices() const noexcept { return devices_; }

const Device& DeviceSet::next() noexcept {
  return devices_[turn_.fetch_add(1, std::memory_order_relaxed) % devices_.size()];
}

Result<Device> DeviceSet::try_max_free() const noexcept {
  const Device* best = nullptr;
  std::size_t best_bytes = 0;
  std::optional<Failure> refusal;
  for (const Device& device : devices_) {
    const Result<MemoryInfo> memory = device.try_memory();
    if (!memory) {
      refusal = memory.failure();
    } else if (best == nullptr || memory->free_bytes > best_bytes) {
      best = &device;
      best_bytes = memory->free_bytes;
    }
  }
  if (best == nullptr) return *refusal;
  return *best;
}

Result<void> DeviceSet::try_synchronize(CallSite site) const noexcept {
  Result<void> outcome;
  for (const Device& device : devices_) {
    Result<void> synchronized = device.try_synchronize(site);
    if (outcome && !synchronized) outcome = synchronized;
  }
  return outcome;
}

}  // namespace tern
