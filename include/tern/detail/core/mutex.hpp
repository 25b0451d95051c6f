// Not part of the interface.
//
// The locks for members of public classes. Both work with std::lock_guard and std::unique_lock.
//
// Mutex is a std::mutex: <mutex> would bring all of the standard library's clocks into every
// program.
//
// SpinLock is a lock for a few instructions: one atomic exchange to lock, one store to unlock.
// Every use of every buffer takes one twice, and it costs half as much as a mutex. A thread that
// finds the lock taken polls it with growing pauses and then yields, because the holder may need
// the processor. Never hold it across a call that can wait. A forked child may find the lock taken
// forever: code that a child can reach, such as the pool, first checks that it is still in the same
// process.

#pragma once

#include <pthread.h>

#include <atomic>

#include "tern/detail/core/visibility.hpp"

namespace tern {

class Mutex {
 public:
  constexpr Mutex() noexcept = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  // A mutex of this kind fails only where the program is wrong already.
  void lock() noexcept { pthread_mutex_lock(&native_); }
  [[nodiscard]] bool try_lock() noexcept { return pthread_mutex_trylock(&native_) == 0; }
  void unlock() noexcept { pthread_mutex_unlock(&native_); }

 private:
  pthread_mutex_t native_ = PTHREAD_MUTEX_INITIALIZER;
};

class SpinLock {
 public:
  void lock() noexcept {
    if (!try_lock()) [[unlikely]]
      lock_contended();
  }
  [[nodiscard]] bool try_lock() noexcept {
    return !is_taken_.exchange(true, std::memory_order_acquire);
  }
  void unlock() noexcept { is_taken_.store(false, std::memory_order_release); }

 private:
  TERN_EXPORT void lock_contended() noexcept;

  std::atomic<bool> is_taken_ = false;
};

}  // namespace tern
