// Progress is a counter that one thread advances and others wait for.
//
// Advancing costs two atomic operations while nobody waits. Thread-safe. All waiters must have
// returned before the object is destroyed.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace tern::host {

class Progress {
 public:
  [[nodiscard]] std::uint64_t value() const noexcept {
    return value_.load(std::memory_order_acquire);
  }

  /// Call from one thread at a time.
  void advance() noexcept {
    value_.fetch_add(1, std::memory_order_seq_cst);
    // Sequentially consistent on both sides: either this load sees the waiter, or the waiter's
    // check sees the new value. The lock makes sure that a waiter seen is asleep or yet to check.
    if (waiters_.load(std::memory_order_seq_cst) == 0) return;
    { const std::lock_guard lock(mutex_); }
    advanced_.notify_all();
  }

  void wait_for(std::uint64_t target) noexcept {
    if (value() >= target) return;
    std::unique_lock lock(mutex_);
    waiters_.fetch_add(1, std::memory_order_seq_cst);
    advanced_.wait(lock, [&] { return value_.load(std::memory_order_seq_cst) >= target; });
    waiters_.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  std::atomic<std::uint64_t> value_ = 0;
  std::atomic<std::uint32_t> waiters_ = 0;
  std::mutex mutex_;
  std::condition_variable advanced_;
};

}  // namespace tern::host
