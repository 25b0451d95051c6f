#include "tern/detail/core/mutex.hpp"

#include <gtest/gtest.h>

#include <mutex>
#include <thread>
#include <vector>

#include "support/thread.hpp"

namespace tern {
namespace {

TEST(SpinLock, AllowsOneHolderAtATime) {
  SpinLock lock;
  std::uint64_t count = 0;
  std::vector<test::Thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int step = 0; step < 50'000; ++step) {
        const std::lock_guard guard(lock);
        ++count;
      }
    });
  }
  for (test::Thread& thread : threads) thread.join();
  EXPECT_EQ(count, 200'000u);
}

TEST(SpinLock, TriesWithoutAWait) {
  SpinLock lock;
  ASSERT_TRUE(lock.try_lock());
  EXPECT_FALSE(lock.try_lock());
  lock.unlock();
  EXPECT_TRUE(lock.try_lock());
  lock.unlock();
}

TEST(SpinLock, YieldsWhileItsHolderIsDescheduled) {
  SpinLock lock;
  bool is_in = false;  // guarded by lock
  lock.lock();
  test::Thread other([&] {
    const std::lock_guard guard(lock);
    is_in = true;
  });
  // Long enough that the other thread spins, gives way, and comes back to spin again.
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();
  EXPECT_FALSE(is_in);
  lock.unlock();
  other.join();
  EXPECT_TRUE(is_in);
}

}  // namespace
}  // namespace tern
