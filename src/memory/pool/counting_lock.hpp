// A CountingLock is a SpinLock that counts how often a thread found it taken.

#pragma once

#include <cstdint>

#include "tern/detail/core/mutex.hpp"

namespace tern::pool {

class CountingLock {
 public:
  void lock() noexcept {
    if (!lock_.try_lock()) [[unlikely]]
      lock_contended();
  }
  void unlock() noexcept { lock_.unlock(); }
  /// Number of times a thread found the lock taken. Call with the lock held.
  [[nodiscard]] std::uint32_t waits() const noexcept { return waits_; }

 private:
  [[gnu::noinline]] void lock_contended() noexcept {
    lock_.lock();
    ++waits_;
  }

  SpinLock lock_;
  std::uint32_t waits_ = 0;  // guarded by the lock itself
};

}  // namespace tern::pool
