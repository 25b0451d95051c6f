// A lock for a few dozen instructions: one atomic step to take it, a store to give it back.
//
// Whoever finds it taken spins a little and then lets other threads run, because its holder may be
// one of them. Never held across a call that can wait. Not held across fork: whoever uses it asks
// first whether this is still its process.

#pragma once

#include <atomic>
#include <thread>

namespace tern::pool {

class SpinLock {
 public:
  void lock() noexcept {
    if (!is_taken_.exchange(true, std::memory_order_acquire)) return;
    wait();
  }
  void unlock() noexcept { is_taken_.store(false, std::memory_order_release); }

 private:
  [[gnu::noinline]] void wait() noexcept {
    constexpr int most_looks = 100;
    do {
      for (int looks = 0; is_taken_.load(std::memory_order_relaxed); ++looks) {
        if (looks >= most_looks) std::this_thread::yield();
      }
    } while (is_taken_.exchange(true, std::memory_order_acquire));
  }

  std::atomic<bool> is_taken_ = false;
};

}  // namespace tern::pool
