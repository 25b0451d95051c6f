// A lock for short work on shared books: one atomic step to take it, a store to give it back.
//
// Whoever finds it taken looks again, less and less often, and then lets other threads run, because
// its holder may be one of them. Never held across a call that can wait. Not held across fork:
// whoever uses it asks first whether this is still its process.

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
  /// How often somebody found it taken. With the lock held.
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
      // Several have seen it free; who is too late begins again at the long pauses.
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
