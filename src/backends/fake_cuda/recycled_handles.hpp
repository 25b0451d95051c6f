// Handles that are reused immediately, like those of a driver: a handle that is used after the end
// of its object soon refers to another object.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tern::sim {

/// Values by handle. The handles of one table are `stride` apart, starting at its base, so those of
/// two tables never coincide. A lookup keeps the value alive. Thread-safe.
template <class Value>
class RecycledHandles {
 public:
  static constexpr std::uintptr_t stride = 0x40;

  explicit RecycledHandles(std::uintptr_t base) noexcept : base_(base) {}

  /// Returns the most recently removed handle, if there is one.
  [[nodiscard]] std::uintptr_t add(std::shared_ptr<Value> value) {
    const std::lock_guard lock(mutex_);
    free_.reserve(values_.size() + 1);
    if (free_.empty()) {
      values_.push_back(std::move(value));
      return base_ + (values_.size() - 1) * stride;
    }
    const std::size_t slot = free_.back();
    free_.pop_back();
    values_[slot] = std::move(value);
    return base_ + slot * stride;
  }
  /// Returns null for an invalid handle.
  [[nodiscard]] std::shared_ptr<Value> find(std::uintptr_t handle) const noexcept {
    const std::lock_guard lock(mutex_);
    return is_slot(handle) ? values_[(handle - base_) / stride] : nullptr;
  }
  /// Removes a handle and returns its value, or null for an invalid handle.
  std::shared_ptr<Value> remove(std::uintptr_t handle) noexcept {
    const std::lock_guard lock(mutex_);
    if (!is_slot(handle)) return nullptr;
    const std::size_t slot = (handle - base_) / stride;
    if (values_[slot]) free_.push_back(slot);
    return std::exchange(values_[slot], nullptr);
  }
  template <class Predicate>
  void remove_if(Predicate is_gone) {
    std::vector<std::shared_ptr<Value>> gone;  // destroyed without the lock
    const std::lock_guard lock(mutex_);
    for (std::size_t slot = 0; slot < values_.size(); ++slot) {
      if (!values_[slot] || !is_gone(*values_[slot])) continue;
      gone.push_back(std::exchange(values_[slot], nullptr));
      free_.push_back(slot);
    }
  }
  [[nodiscard]] std::size_t size() const noexcept {
    const std::lock_guard lock(mutex_);
    return values_.size() - free_.size();
  }

 private:
  [[nodiscard]] bool is_slot(std::uintptr_t handle) const noexcept {
    return handle >= base_ && (handle - base_) % stride == 0 &&
           (handle - base_) / stride < values_.size();
  }

  const std::uintptr_t base_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Value>> values_;  // guarded by mutex_; null: free
  std::vector<std::size_t> free_;               // guarded by mutex_; used from the back
};

}  // namespace tern::sim
