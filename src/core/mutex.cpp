#include "tern/detail/core/mutex.hpp"

#include <thread>

namespace tern {
namespace {

void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb");
#endif
}

}  // namespace

void SpinLock::lock_contended() noexcept {
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
  } while (!try_lock());
}

}  // namespace tern
