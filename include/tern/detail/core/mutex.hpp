// Not part of the interface.
//
// Mutex is a std::mutex for members of public classes: <mutex> would bring all of the standard
// library's clocks into every program. Works with std::lock_guard and std::unique_lock.

#pragma once

#include <pthread.h>

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

}  // namespace tern
