#include "memory/pool/counting_lock.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "support/thread.hpp"

namespace tern::pool {
namespace {

std::uint32_t waits_of(CountingLock& lock) {
  const std::lock_guard guard(lock);
  return lock.waits();
}

TEST(CountingLock, CountsNothingWithoutContention) {
  CountingLock lock;
  for (int i = 0; i < 100; ++i) {
    lock.lock();
    lock.unlock();
  }
  EXPECT_EQ(waits_of(lock), 0u);
}

TEST(CountingLock, CountsAThreadThatFindsItTakenOnce) {
  CountingLock lock;
  // A round counts nothing if the other thread is descheduled until the lock is free again.
  std::uint32_t rounds = 0;
  for (; rounds < 1000 && waits_of(lock) == 0; ++rounds) {
    std::atomic<bool> is_started = false;
    lock.lock();
    test::Thread other([&] {
      is_started = true;
      const std::lock_guard guard(lock);
    });
    while (!is_started) std::this_thread::yield();
    for (int i = 0; i < 100; ++i) std::this_thread::yield();
    lock.unlock();
    other.join();
  }
  EXPECT_EQ(waits_of(lock), 1u) << rounds << " rounds";
}

}  // namespace
}  // namespace tern::pool
