// The storages whose last handle is gone, and whose uses are not done.
//
// Most memory is given back in stream order, at once. What cannot be, because no stream can wait
// for the device that uses it, or because a foreign owner wants it only when everything is done,
// waits here, and a few are asked about whenever a storage is made, in turn: however many wait,
// making one costs the same. The list is immortal. Thread-safe.

#pragma once

#include <atomic>
#include <cstddef>

#include "tern/buffer/storage.hpp"

namespace tern {

class DeviceState;

class KeptStorages {
 public:
  static void keep(Storage* storage) noexcept;
  [[nodiscard]] static bool has_any() noexcept {
    return count_.load(std::memory_order_relaxed) != 0;
  }
  [[nodiscard]] static KeptStorageCount count() noexcept;
  /// Do so many wait that somebody should wait for their devices?
  [[nodiscard]] static bool is_crowded() noexcept {
    return count_.load(std::memory_order_relaxed) >= crowded_at_.load(std::memory_order_relaxed);
  }
  /// Somebody did: it is crowded again when `crowd` more wait than now.
  static void see_crowd() noexcept;
  static constexpr std::size_t crowd = 1024;

  /// Of one that escaped, and for which a wait for that device would do. None: there is none.
  [[nodiscard]] static Device device_behind_strangers() noexcept;
  /// Ends those that can be.
  static void poll() noexcept;
  /// More than one storage can have added since the last time, so the list shrinks if it can. Ends
  /// that make storages ask for no more of it.
  static void poll_some() noexcept;

 private:
  /// The oldest, no longer in the list.
  [[nodiscard]] static Storage* take(std::size_t most) noexcept;
  /// Nobody has a handle of the device any more: waits for it, if storages keep it open.
  static void let_go_of(DeviceState& device) noexcept;
  static void end(Storage* list) noexcept;

  static std::atomic<std::size_t> count_, crowded_at_;
};

}  // namespace tern
