// A SpinLock is a lock for a few instructions: one atomic exchange to lock, one store to unlock.
//
// A thread that finds the lock taken polls it with growing pauses and then yields, because the
// holder may need the processor. Never hold the lock across a call that can wait, nor across a
// fork: users first check that they are still in the same process.

#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace tern::pool {

class SpinLock {
 public:
  void lock() noexcept {
    if (!is_taken_.exchange(true, std::memory_order_acquire)) return;
    wait();
  }
  void unlock() noexcept { is_taken_.store(false, std::memory_order_release); }
  /// Number of times a thread found the lock taken. Call with the lock held.
  [[nodiscard]] std::uint32_t waits() const noexcept { return waits_; }

 private:
  [[gnu::noinline]] void wait() noexcept {
    constexpr unsigned longest_pause = 64;
    unsigned pauses = 4;
    do {
      while (is_taken_.load(std::memory_order_relaxed)) {
        if (pauses > longest_pause) {
          std::this_thread::yield();
          continue;
        }
        for (unsigned i = 0; i < pauses; ++i) pause();
        pauses *= 2;
      }
      // Several threads may have seen the lock free; those that lose the exchange continue to wait.
    } while (is_taken_.exchange(true, std::memory_order_acquire));
    ++waits_;
  }
  static void pause() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");
#endif
  }

  std::atomic<bool> is_taken_ = false;
  std::uint32_t waits_ = 0;  // guarded by the lock itself
};

}  // namespace tern::pool
