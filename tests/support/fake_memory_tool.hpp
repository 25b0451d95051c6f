// A tool that remembers what is closed and what was freed, instead of watching a program.

#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <mutex>
#include <set>
#include <vector>

#include "core/memory_tool.hpp"

namespace tern::test {

/// Byte for byte, so for little memory. Thread-safe.
class FakeMemoryTool final : public MemoryTool {
 public:
  void close(const void* address, std::size_t bytes) noexcept override {
    const std::lock_guard lock(mutex_);
    each(address, bytes, [&](std::uintptr_t at) { closed_.insert(at); });
  }
  void open(const void* address, std::size_t bytes) noexcept override {
    const std::lock_guard lock(mutex_);
    const auto first = reinterpret_cast<std::uintptr_t>(address);
    closed_.erase(closed_.lower_bound(first), closed_.lower_bound(first + bytes));
  }
  bool is_open(const void* address, std::size_t bytes) const noexcept override {
    const std::lock_guard lock(mutex_);
    return count_in(closed_, address, bytes) == 0;
  }
  bool is_freed(const void* address, std::size_t bytes) const noexcept override {
    const std::lock_guard lock(mutex_);
    return count_in(freed_, address, bytes) != 0;
  }
  void report(const void* address, std::size_t, bool) noexcept override {
    const std::lock_guard lock(mutex_);
    reports_.push_back(address);
  }

  /// What free() does under AddressSanitizer.
  void free(const void* address, std::size_t bytes) {
    close(address, bytes);
    const std::lock_guard lock(mutex_);
    each(address, bytes, [&](std::uintptr_t at) { freed_.insert(at); });
  }
  [[nodiscard]] bool is_closed(const void* address, std::size_t bytes) const {
    const std::lock_guard lock(mutex_);
    return count_in(closed_, address, bytes) == bytes;
  }
  [[nodiscard]] std::size_t closed_bytes() const {
    const std::lock_guard lock(mutex_);
    return closed_.size();
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
  std::set<std::uintptr_t> closed_, freed_;
  std::vector<const void*> reports_;
};

/// The tool that the tests run under, if any, which closes nothing: for tests that plant a mistake
/// and want to see what the library says of it.
class NeverCloses final : public MemoryTool {
 public:
  [[nodiscard]] MemoryTool* if_needed() noexcept { return real_ != nullptr ? this : nullptr; }

  void close(const void*, std::size_t) noexcept override {}
  void open(const void* address, std::size_t bytes) noexcept override {
    real_->open(address, bytes);
  }
  bool is_open(const void* address, std::size_t bytes) const noexcept override {
    return real_->is_open(address, bytes);
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
