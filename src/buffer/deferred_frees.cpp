#include "buffer/deferred_frees.hpp"

#include <pthread.h>

#include <limits>
#include <mutex>
#include <utility>

#include "buffer/storage_cold_state.hpp"
#include "device/device_state.hpp"

namespace tern {
namespace {

/// Kept storages that are polled when a storage is made.
constexpr std::size_t asked_at_once = 4;

std::mutex mutex;
// Guarded by mutex. Oldest first, so that all storages are polled in turn.
constinit Storage* first = nullptr;
constinit Storage* last = nullptr;

}  // namespace

constinit std::atomic<std::size_t> DeferredFrees::count_ = 0,
                                   DeferredFrees::reclaim_at_ = reclaim_interval;

void DeferredFrees::reset_reclaim_threshold() noexcept {
  reclaim_at_.store(count_.load(std::memory_order_relaxed) + reclaim_interval,
                    std::memory_order_relaxed);
}

void DeferredFrees::keep(Storage* storage) noexcept {
  // The forking thread holds the lock, so the child never finds it locked by a thread that does not
  // exist there.
  static const int registered =
      pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, [] { mutex.unlock(); });
  static_cast<void>(registered);
  DeviceState::on_last_handle_of_device([](DeviceState& device) noexcept { reclaim_for(device); });
  // A kept storage does not hold a handle of the program. If it did, the last handle would not end
  // before the storage does, and the storage would not be freed with the last handle.
  Device handle;
  if (!storage->resource_ && storage->foreign_.device.is_open()) {
    Device& own = storage->foreign_.device;
    handle = std::exchange(own, DeviceState::of(own)->inner_handle());
  }
  // Declared after the handle, so the lock is released when the handle ends.
  const std::lock_guard lock(mutex);
  storage->next_ = nullptr;
  (last != nullptr ? last->next_ : first) = storage;
  last = storage;
  count_.fetch_add(1, std::memory_order_relaxed);
}

MemoryCount DeferredFrees::count() noexcept {
  const std::lock_guard lock(mutex);
  MemoryCount kept;
  for (const Storage* storage = first; storage != nullptr; storage = storage->next_) {
    ++kept.count;
    kept.bytes += storage->bytes();
  }
  return kept;
}

Device DeferredFrees::device_of_exported() noexcept {
  const std::lock_guard lock(mutex);
  for (const Storage* storage = first; storage != nullptr; storage = storage->next_) {
    if (!storage->are_exports_done()) return storage->device();
  }
  return {};
}

void DeferredFrees::reclaim_for(DeviceState& device) noexcept {
  const auto keeps_any = [&device](bool only_exported) {
    const std::lock_guard lock(mutex);
    for (const Storage* storage = first; storage != nullptr; storage = storage->next_) {
      if (DeviceState::of(storage->device()).get() == &device &&
          !(only_exported && storage->are_exports_done())) {
        return true;
      }
    }
    return false;
  };
  // Freeing a storage may run a release callback that ends other exports. Those need another wait,
  // so repeat.
  for (bool is_first = true; keeps_any(!is_first); is_first = false) {
    // No other code can wait for the device any more.
    const Result<void> waited = device.synchronize(CallSite::here());
    poll();
    if (!waited) return;
  }
}

Storage* DeferredFrees::take(std::size_t most) noexcept {
  const std::lock_guard lock(mutex);
  Storage* const taken = first;
  Storage* end = nullptr;
  std::size_t count = 0;
  for (; first != nullptr && count < most; ++count) {
    end = first;
    first = first->next_;
  }
  if (end != nullptr) end->next_ = nullptr;
  if (first == nullptr) last = nullptr;
  count_.fetch_sub(count, std::memory_order_relaxed);
  return taken;
}

void DeferredFrees::end(Storage* list) noexcept {
  // Without the lock: ending a storage may call a foreign owner, which may make and end storages.
  while (list != nullptr) std::exchange(list, list->next_)->end();
}

void DeferredFrees::poll() noexcept { end(take(std::numeric_limits<std::size_t>::max())); }

void DeferredFrees::poll_some() noexcept {
  // A foreign owner that makes storages would poll again from within, and so on.
  static constinit thread_local bool is_polling = false;
  if (std::exchange(is_polling, true)) return;
  end(take(asked_at_once));
  is_polling = false;
}

MemoryCount deferred_frees() noexcept { return DeferredFrees::count(); }

MemoryCount reclaim_deferred() noexcept {
  DeferredFrees::poll();
  return DeferredFrees::count();
}

}  // namespace tern
