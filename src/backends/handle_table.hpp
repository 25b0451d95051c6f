// A table of handles that are never reused, so that a stale handle is detected.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

namespace tern {

/// Values by handle, from 1 on. A lookup keeps the value alive. Thread-safe.
template <class Value>
class HandleTable {
 public:
  /// Returns 0 if the host has no memory.
  [[nodiscard]] std::uintptr_t add(Value value) noexcept {
    try {
      auto kept = std::make_shared<const Value>(std::move(value));
      const std::lock_guard lock(mutex_);
      values_.emplace(last_ + 1, std::move(kept));
      return ++last_;
    } catch (const std::bad_alloc&) {
      return 0;
    }
  }
  /// Returns null for a handle that was removed or never existed.
  [[nodiscard]] std::shared_ptr<const Value> find(std::uintptr_t handle) const noexcept {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find(handle);
    return found == values_.end() ? nullptr : found->second;
  }
  void remove(std::uintptr_t handle) noexcept {
    // Destroyed after the lock is released, because that may take long.
    std::shared_ptr<const Value> gone;
    const std::lock_guard lock(mutex_);
    const auto found = values_.find(handle);
    if (found == values_.end()) return;
    gone = std::move(found->second);
    values_.erase(found);
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::uintptr_t, std::shared_ptr<const Value>> values_;  // guarded by mutex_
  std::uintptr_t last_ = 0;                                        // guarded by mutex_
};

}  // namespace tern
