// The storages whose last handle is gone, and whose uses are not done.
//
// Most memory is given back in stream order, at once. What cannot be, because no stream can wait
// for the device that uses it, or because a foreign owner wants it only when everything is done,
// waits here, and is asked about whenever a storage is made. The list is immortal. Thread-safe.

#pragma once

#include <atomic>
#include <cstddef>

#include "tern/buffer/storage.hpp"

namespace tern {

class KeptStorages {
 public:
  static void keep(Storage* storage) noexcept;
  [[nodiscard]] static bool has_any() noexcept {
    return count_.load(std::memory_order_relaxed) != 0;
  }
  [[nodiscard]] static KeptStorageCount count() noexcept;
  static void poll() noexcept;

 private:
  static std::atomic<std::size_t> count_;
};

}  // namespace tern
