#include "buffer/deferred_frees.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/thread.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {
namespace {

/// Memory of the host that a stream of another backend uses, so that no stream of its own can wait.
class DeferredFreesTest : public testing::Test {
 protected:
  void use_and_drop(std::size_t bytes) {
    const StorageHandle storage = Storage::try_make(host, bytes, {.resource = memory}).value();
    Result<StorageUse> use =
        storage->try_use(stream, Access::discard, 0, bytes, {}, Storage::Streams::any_device);
    ASSERT_TRUE(use) << use.failure().text();
    use->end();
  }

  Device host = open_device("host"), device = sim::open({.policy = sim::Policy::lazy});
  ResourceHandle memory = std::make_shared<PoolResource>(host);
  Stream stream{device};
  std::uint64_t hold = sim::hold(stream);

  void TearDown() override {
    sim::resume(device, hold);
    device.synchronize();
    EXPECT_EQ(reclaim_deferred().count, 0u);
    EXPECT_EQ(memory->statistics().live_blocks, 0u);
  }
};

TEST_F(DeferredFreesTest, CountsKeptStorages) {
  use_and_drop(64);
  use_and_drop(100);
  EXPECT_TRUE(DeferredFrees::has_any());
  EXPECT_EQ(deferred_frees().count, 2u);
  EXPECT_EQ(deferred_frees().bytes, 164u);
}

TEST_F(DeferredFreesTest, KeepsStoragesInUseHoweverOftenItIsPolled) {
  use_and_drop(64);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(reclaim_deferred().count, 1u);
  EXPECT_EQ(memory->statistics().live_blocks, 1u);
}

TEST_F(DeferredFreesTest, NewStoragesReclaimOldOnesStepByStep) {
  for (int i = 0; i < 20; ++i) use_and_drop(64);
  ASSERT_EQ(deferred_frees().count, 20u);
  sim::resume(device, hold);
  stream.synchronize();
  std::vector<Buffer> fresh;
  while (DeferredFrees::has_any() && fresh.size() < 100)
    fresh.emplace_back(host, Shape{1}, DType::u8);
  EXPECT_LE(fresh.size(), 20u) << "each new one ends at least one";
  EXPECT_EQ(memory->statistics().live_blocks, 0u);
  hold = sim::hold(stream);
}

TEST_F(DeferredFreesTest, CallbacksThatCreateStoragesDoNotRecurse) {
  std::byte somewhere[8];
  int calls = 0, open = 0, max_open = 0;
  for (int i = 0; i < 100; ++i) {
    static_cast<void>(adopt(host, somewhere, 8,
                            {.on_release =
                                 [&] {
                                   ++calls;
                                   max_open = std::max(max_open, ++open);
                                   static_cast<void>(Buffer(host, Shape{1}, DType::u8));
                                   --open;
                                 },
                             .stream = stream}));
  }
  ASSERT_EQ(deferred_frees().count, 100u);
  sim::resume(device, hold);
  stream.synchronize();
  static_cast<void>(Buffer(host, Shape{1}, DType::u8));
  EXPECT_GE(calls, 1);
  EXPECT_EQ(reclaim_deferred().count, 0u);
  EXPECT_EQ(calls, 100);
  EXPECT_EQ(max_open, 1) << "each inside the one before, they would use up the stack";
  hold = sim::hold(stream);
}

TEST_F(DeferredFreesTest, ThreadsMayPollConcurrently) {
  for (int i = 0; i < 200; ++i) use_and_drop(64);
  sim::resume(device, hold);
  stream.synchronize();
  std::vector<test::Thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] { static_cast<void>(reclaim_deferred()); });
  }
  for (test::Thread& thread : threads) thread.join();
  EXPECT_EQ(reclaim_deferred().count, 0u);
  EXPECT_EQ(memory->statistics().frees, 200u);
  hold = sim::hold(stream);
}

}  // namespace
}  // namespace tern
