// A MemoryTool for tests that records which bytes are poisoned and which were freed.

#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <mutex>
#include <set>
#include <vector>

#include "core/memory_tool.hpp"

namespace tern::test {

/// Keeps one entry per byte, so use it for small memory. Thread-safe.
class FakeMemoryTool final : public MemoryTool {
 public:
  void poison(const void* address, std::size_t bytes) noexcept override {
    const std::lock_guard lock(mutex_);
    each(address, bytes, [&](std::uintptr_t at) { poisoned_.insert(at); });
  }
  void unpoison(const void* address, std::size_t bytes) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto first = reinterpret_cast<std::uintptr_t>(address);
    poisoned_.erase(poisoned_.lower_bound(first), poisoned_.lower_bound(first + bytes));
  }
  bool is_accessible(const void* address, std::size_t bytes) const noexcept override {
    const std::lock_guard lock(mutex_);
    return count_in(poisoned_, address, bytes) == 0;
  }
  bool is_freed(const void* address, std::size_t bytes) const noexcept override {
    const std::lock_guard lock(mutex_);
    return count_in(freed_, address, bytes) != 0;
  }
  void report(const void* address, std::size_t, bool) noexcept override {
    const std::lock_guard lock(mutex_);
    reports_.push_back(address);
  }

  /// Acts like free() under AddressSanitizer.
  void free(const void* address, std::size_t bytes) {
    poison(address, bytes);
    const std::lock_guard lock(mutex_);
    each(address, bytes, [&](std::uintptr_t at) { freed_.insert(at); });
  }
  [[nodiscard]] bool is_poisoned(const void* address, std::size_t bytes) const {
    const std::lock_guard lock(mutex_);
    return count_in(poisoned_, address, bytes) == bytes;
  }
  [[nodiscard]] std::size_t poisoned_bytes() const {
    const std::lock_guard lock(mutex_);
    return poisoned_.size();
  }
  [[nodiscard]] std::vector<const void*> reports() const {
    const std::lock_guard lock(mutex_);
    return reports_;
  }

 private:
  template <class Call>
  static void each(const void* address, std::size_t bytes, Call call) {
    const auto first = reinterpret_cast<std::uintptr_t>(address);
    for (std::size_t i = 0; i < bytes; ++i) call(first + i);
  }

  static std::size_t count_in(const std::set<std::uintptr_t>& set, const void* address,
                              std::size_t bytes) {
    const auto first = reinterpret_cast<std::uintptr_t>(address);
    return static_cast<std::size_t>(
        std::distance(set.lower_bound(first), set.lower_bound(first + bytes)));
  }

  mutable std::mutex mutex_;
  std::set<std::uintptr_t> poisoned_, freed_;
  std::vector<const void*> reports_;
};

/// Forwards to the tool that the tests run under, if any, but never poisons. For tests that plant
/// an error and check the report of the library.
class NeverPoisons final : public MemoryTool {
 public:
  [[nodiscard]] MemoryTool* if_needed() noexcept { return real_ != nullptr ? this : nullptr; }

  void poison(const void*, std::size_t) noexcept override {}
  void unpoison(const void* address, std::size_t bytes) noexcept override {
    real_->unpoison(address, bytes);
  }
  bool is_accessible(const void* address, std::size_t bytes) const noexcept override {
    return real_->is_accessible(address, bytes);
  }
  bool is_freed(const void* address, std::size_t bytes) const noexcept override {
    return real_->is_freed(address, bytes);
  }
  void report(const void* address, std::size_t bytes, bool is_written) noexcept override {
    real_->report(address, bytes, is_written);
  }

 private:
  MemoryTool* const real_ = memory_tool();
};

}  // namespace tern::test
