#include "buffer/kept_storages.hpp"

#include <mutex>

namespace tern {
namespace {

std::mutex mutex;
constinit Storage* first = nullptr;  // guarded by mutex

}  // namespace

constinit std::atomic<std::size_t> KeptStorages::count_ = 0;

void KeptStorages::keep(Storage* storage) noexcept {
  const std::lock_guard lock(mutex);
  storage->next_ = first;
  first = storage;
  count_.fetch_add(1, std::memory_order_relaxed);
}

KeptStorageCount KeptStorages::count() noexcept {
  const std::lock_guard lock(mutex);
  KeptStorageCount kept;
  for (const Storage* storage = first; storage != nullptr; storage = storage->next_) {
    ++kept.storages;
    kept.bytes += storage->bytes();
  }
  return kept;
}

void KeptStorages::poll() noexcept {
  Storage* list = nullptr;
  {
    const std::lock_guard lock(mutex);
    list = std::exchange(first, nullptr);
  }
  // Without the lock: an end may call a foreign owner, who may make storages and end them.
  while (list != nullptr) {
    Storage* const storage = std::exchange(list, list->next_);
    count_.fetch_sub(1, std::memory_order_relaxed);
    storage->next_ = nullptr;
    storage->end();
  }
}

KeptStorageCount kept_storages() noexcept { return KeptStorages::count(); }

KeptStorageCount poll_storages() noexcept {
  KeptStorages::poll();
  return KeptStorages::count();
}

}  // namespace tern
