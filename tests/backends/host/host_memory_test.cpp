#include "backends/host/host_memory.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <vector>

#include "backends/host/machine.hpp"
#include "support/allocation_counter.hpp"
#include "support/forked_child.hpp"
#include "support/thread.hpp"
#include "tern/core/bytes.hpp"

namespace tern::host {
namespace {

class HostMemoryTest : public testing::Test {
 protected:
  HostMemory memory{{}, 1 * gib};
};

TEST_F(HostMemoryTest, KnowsItsBlocks) {
  EXPECT_EQ(memory.live_blocks(), 0u);
  void* small = *memory.allocate(MemoryKind::device, 100, 64);
  void* large = *memory.allocate(MemoryKind::managed, 5 * mib, 64);
  EXPECT_EQ(memory.live_blocks(), 2u);
  auto* last = static_cast<std::byte*>(large) + 5 * mib - 1;
  EXPECT_EQ(memory.find(last)->base, large);
  EXPECT_EQ(memory.find(last)->kind, MemoryKind::managed);
  EXPECT_EQ(memory.find(last)->bytes, 5 * mib);
  EXPECT_FALSE(memory.find(last + 1));
  EXPECT_TRUE(memory.release(small));
  EXPECT_TRUE(memory.release(large));
  EXPECT_EQ(memory.live_blocks(), 0u);
}

TEST_F(HostMemoryTest, KeepsABlockUntilItsReleaseIsFinished) {
  void* address = *memory.allocate(MemoryKind::device, 100, 64);
  ASSERT_TRUE(memory.begin_release(address));
  EXPECT_EQ(memory.live_blocks(), 1u);
  EXPECT_FALSE(memory.find(address));
  EXPECT_EQ(memory.begin_release(address).failure().code(), ErrorCode::use_after_free);
  EXPECT_EQ(memory.release(address).failure().code(), ErrorCode::use_after_free);
  std::memset(address, 1, 100);
  memory.finish_release(address);
  EXPECT_EQ(memory.live_blocks(), 0u);
  memory.finish_release(address);  // of nothing: nothing
}

TEST_F(HostMemoryTest, TakesAReleaseBack) {
  void* address = *memory.allocate(MemoryKind::device, 100, 64);
  ASSERT_TRUE(memory.begin_release(address));
  memory.cancel_release(address);
  EXPECT_TRUE(memory.find(address));
  EXPECT_TRUE(memory.release(address));
  memory.cancel_release(address);
}

TEST_F(HostMemoryTest, RefusesMoreThanItsTotalWithNumbers) {
  const Result<void*> refused = memory.allocate(MemoryKind::device, 1 * gib + 1, 64);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::out_of_memory);
  EXPECT_EQ(refused.failure().number("requested"), 1 * gib + 1);
  EXPECT_EQ(refused.failure().number("total"), 1 * gib);
  EXPECT_TRUE(refused.failure().number("free"));
}

TEST_F(HostMemoryTest, LosesNothingWhenItsBooksCannotGrow) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP();
  bool is_refused = true;
  for (const std::size_t bytes : {100u, 5u << 20}) {
    const test::HeapExhausted exhausted;
    const Result<void*> address = memory.allocate(MemoryKind::device, bytes, 64);
    is_refused = is_refused && !address && address.failure().code() == ErrorCode::out_of_memory;
  }
  EXPECT_TRUE(is_refused);
  EXPECT_EQ(memory.live_blocks(), 0u);
}

TEST_F(HostMemoryTest, PinsOrSaysWhyItCannot) {
  const Result<void*> address = memory.allocate(MemoryKind::pinned, 4096, 4096);
  if (!address) {
    EXPECT_EQ(address.failure().code(), ErrorCode::out_of_memory);
    EXPECT_TRUE(address.failure().number("limit"));
    return;
  }
  EXPECT_EQ(memory.find(*address)->kind, MemoryKind::pinned);
  EXPECT_TRUE(memory.release(*address));
}

TEST_F(HostMemoryTest, GivesBackWhatWasNotReleasedWhenItEnds) {
  // LeakSanitizer is the judge.
  static_cast<void>(memory.allocate(MemoryKind::device, 100, 64));
  static_cast<void>(memory.allocate(MemoryKind::device, 5 * mib, 64));
}

TEST_F(HostMemoryTest, ServesNormalPagesToo) {
  HostMemory normal({.pages = Pages::normal, .numa_node = {}}, 1 * gib);
  void* address = *normal.allocate(MemoryKind::device, 5 * mib, 64);
  std::memset(address, 1, 5 * mib);
  EXPECT_TRUE(normal.release(address));
}

TEST_F(HostMemoryTest, IsUsedBySeveralThreads) {
  std::vector<test::Thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 300; ++k) {
        const std::size_t bytes = k % 50 == 0 ? 4 * mib : 100;
        void* address = *memory.allocate(MemoryKind::device, bytes, 64);
        std::memset(address, k, 100);
        ASSERT_EQ(memory.find(address)->base, address);
        ASSERT_TRUE(memory.release(address));
      }
    });
  }
  for (test::Thread& thread : threads) thread.join();
  EXPECT_EQ(memory.live_blocks(), 0u);
}

TEST_F(HostMemoryTest, WorksInChildrenForkedWhileOthersAllocate) {
  if (!test::children_can_allocate) GTEST_SKIP() << "the sanitizer's allocator is not fork-safe";
  std::atomic<bool> is_over = false;
  test::Thread busy([&] {
    while (!is_over) {
      void* address = *memory.allocate(MemoryKind::device, 100, 64);
      ASSERT_TRUE(memory.release(address));
    }
  });
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(test::in_a_forked_child([&] {
                const Result<void*> address = memory.allocate(MemoryKind::device, 100, 64);
                return address && memory.release(*address);
              }),
              0);
  }
  is_over = true;
  busy.join();
}

}  // namespace
}  // namespace tern::host
