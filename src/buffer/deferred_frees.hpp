// The list of storages whose last handle is gone but whose memory cannot be freed yet.
//
// Most memory is freed in stream order, immediately. A storage is kept if no stream can wait for
// the device that uses it, if a foreign owner wants the memory back only after all uses, or if
// exported memory needs a device-wide wait. Whenever a storage is made, a few kept ones are polled
// in turn, so the cost does not depend on the length of the list. The list is never destroyed.
// Thread-safe. Frees that were tried and failed are not here: their Resource keeps and retries them
// (memory/resource.cpp).

#pragma once

#include <atomic>
#include <cstddef>

#include "tern/buffer/foreign.hpp"
#include "tern/detail/buffer/storage.hpp"

namespace tern {

class DeviceState;

class DeferredFrees {
 public:
  /// Adds a storage to the list.
  static void keep(Storage* storage) noexcept;
  /// Returns whether the list is not empty. One load.
  [[nodiscard]] static bool has_any() noexcept {
    return count_.load(std::memory_order_relaxed) != 0;
  }
  [[nodiscard]] static MemoryCount count() noexcept;
  /// Returns whether the list has reached its threshold, so that the caller should wait for the
  /// devices of its storages.
  [[nodiscard]] static bool should_reclaim() noexcept {
    return count_.load(std::memory_order_relaxed) >= reclaim_at_.load(std::memory_order_relaxed);
  }
  /// Call after that wait. Sets the threshold to the current length plus reclaim_interval.
  static void reset_reclaim_threshold() noexcept;
  static constexpr std::size_t reclaim_interval = 1024;

  /// Returns the device of a kept storage that was exported and needs a device-wide wait, or no
  /// device.
  [[nodiscard]] static Device device_of_exported() noexcept;
  /// Frees all kept storages that can be freed.
  static void poll() noexcept;
  /// Polls a few storages. That is more than a new storage can add, so the list shrinks if uses
  /// complete. Does nothing if called from within itself.
  static void poll_some() noexcept;

 private:
  /// Removes up to `most` storages from the list, oldest first, and returns them.
  [[nodiscard]] static Storage* take(std::size_t most) noexcept;
  /// Called when the program has no handle of the device any more: if kept storages keep the device
  /// open, waits for the device and frees them.
  static void reclaim_for(DeviceState& device) noexcept;
  static void end(Storage* list) noexcept;

  static std::atomic<std::size_t> count_, reclaim_at_;
};

}  // namespace tern
