#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "buffer/deferred_frees.hpp"
#include "buffer/export_batch.hpp"
#include "support/thread.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/array.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {
namespace {

class ExportTest : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(exported_memory().count, 0u);
    EXPECT_EQ(exported_memory().bytes, 0u);
    EXPECT_EQ(reclaim_exported().count, 0u);
  }
  Array<float> make(std::size_t count) {
    return Array<float>::uninitialized(pool, count, {.stream = stream});
  }

  Device device = sim::open({});
  ResourceHandle pool = std::make_shared<PoolResource>(device);
  Stream stream{device};
};

TEST_F(ExportTest, KeepsTheStorageAndIsCounted) {
  Array<float> array = make(100);
  const std::uintptr_t address = array.address();
  Export one = Export::try_begin(array.storage()).value();
  Export two = Export::try_begin(array.storage()).value();
  EXPECT_EQ(exported_memory().count, 2u);
  EXPECT_EQ(exported_memory().bytes, 400u) << "one storage, however many hold it";
  array = {};
  EXPECT_GE(pool->statistics().live_bytes, 400u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(one.storage()->first_byte()), address);
  one.end();
  EXPECT_EQ(exported_memory().bytes, 400u);
  two = Export();
  EXPECT_EQ(exported_memory().count, 0u);
}

TEST_F(ExportTest, ABatchCountsItsExportsWhenItEnds) {
  Array<float> one = make(100), two = make(50);
  {
    ExportBatch batch;
    for (const int i : {1, 2}) {
      EXPECT_TRUE(batch.try_begin(*one.storage(), CallSite::here())) << i;
      EXPECT_TRUE(batch.try_begin(*two.storage(), CallSite::here())) << i;
    }
    EXPECT_EQ(exported_memory().count, 0u);
  }
  EXPECT_EQ(exported_memory().count, 4u);
  EXPECT_EQ(exported_memory().bytes, 600u);
  {
    ExportBatch batch;
    for (const int i : {1, 2}) {
      static_cast<void>(i);
      batch.end(*one.storage());
    }
    batch.end(*two.storage());
  }
  EXPECT_EQ(exported_memory().count, 1u);
  EXPECT_EQ(exported_memory().bytes, 200u);
  ExportBatch().end(*two.storage());
  EXPECT_EQ(exported_memory().count, 0u);
  // It keeps nothing alive, and is behind strangers all the same.
  const std::uintptr_t address = one.address();
  one = {};
  EXPECT_NE(make(100).address(), address);
  EXPECT_GE(deferred_frees().count, 1u);
  two = {};
  reclaim_exported();
}

TEST_F(ExportTest, MemoryIsReusedOnlyAfterADeviceWideWait) {
  Array<float> array = make(100);
  const std::uintptr_t address = array.address();
  Export held = Export::try_begin(array.storage()).value();
  held.end();
  array = {};
  EXPECT_EQ(deferred_frees().count, 1u);
  // On the same stream too: strangers have their own.
  EXPECT_NE(make(100).address(), address);
  EXPECT_EQ(reclaim_deferred().count, 1u);
  device.synchronize();
  EXPECT_EQ(reclaim_deferred().count, 0u);
  std::vector<std::uintptr_t> addresses;
  std::vector<Array<float>> arrays;
  for (int i = 0; i < 4; ++i) arrays.push_back(make(100));
  for (const Array<float>& other : arrays) addresses.push_back(other.address());
  EXPECT_NE(std::ranges::find(addresses, address), addresses.end());
}

TEST_F(ExportTest, AWaitThatBeganBeforeTheEndOfTheExportDoesNotCount) {
  Array<float> array = make(100);
  Export held = Export::try_begin(array.storage()).value();
  device.synchronize();
  held.end();
  array = {};
  EXPECT_EQ(reclaim_deferred().count, 1u);
  EXPECT_EQ(reclaim_exported().count, 0u);
}

TEST_F(ExportTest, MemoryWithHandlesWaitsOnlyAtItsEnd) {
  Array<float> array = make(100);
  Export::try_begin(array.storage()).value().end();
  const std::vector<float> values(100, 2.0f);
  array.copy_from(std::span<const float>(values));
  EXPECT_EQ(array.to_vector(), values);
  EXPECT_EQ(deferred_frees().count, 0u);
  array = {};
  EXPECT_EQ(deferred_frees().count, 1u);
}

TEST_F(ExportTest, IsReclaimedWhenMemoryRunsOut) {
  const BudgetHandle budget = Budget::make("all", BudgetLimit::bytes(64 << 10));
  const auto limited = std::make_shared<BudgetResource>(pool, budget);
  Array<std::byte> array = Array<std::byte>::uninitialized(limited, 40 << 10, {.stream = stream});
  Export::try_begin(array.storage()).value().end();
  array = {};
  EXPECT_EQ(deferred_frees().count, 1u);
  const Result<Array<std::byte>> next =
      Array<std::byte>::try_uninitialized(limited, 40 << 10, {.stream = stream});
  EXPECT_TRUE(next) << next.failure().text();
  EXPECT_EQ(deferred_frees().count, 0u);
  // And nothing is waited for where that would not help.
  EXPECT_FALSE(Array<std::byte>::try_uninitialized(limited, 40 << 10, {.stream = stream}));
}

TEST_F(ExportTest, DeferredFreesAreBoundedWithoutDeviceWaits) {
  std::size_t most = 0;
  for (int i = 0; i < 5000; ++i) {
    Array<float> array = make(4);
    Export::try_begin(array.storage()).value().end();
    array = {};
    most = std::max(most, deferred_frees().count);
  }
  EXPECT_GT(most, 1u) << "nothing was kept, so nothing was tested";
  EXPECT_LE(most, DeferredFrees::reclaim_interval);
}

TEST_F(ExportTest, ContinuesIfTheDeviceCannotBeWaitedFor) {
  sim::set_faults(device, "sync#1+=fail");
  for (std::size_t i = 0; i < DeferredFrees::reclaim_interval + 100; ++i) {
    Array<float> array = make(4);
    Result<Export> escape = Export::try_begin(array.storage());
    ASSERT_TRUE(escape) << escape.failure().text();
  }
  EXPECT_GT(deferred_frees().count, DeferredFrees::reclaim_interval);
  sim::set_faults(device, "");
  for (std::size_t i = 0; i < DeferredFrees::reclaim_interval; ++i) {
    Array<float> array = make(4);
    Export::try_begin(array.storage()).value().end();
  }
  EXPECT_LE(deferred_frees().count, DeferredFrees::reclaim_interval);
}

TEST_F(ExportTest, HostMemoryIsFreedImmediately) {
  const Device host = open_device("host");
  Array<float> array = Array<float>::uninitialized(host, 100);
  Export::try_begin(array.storage()).value().end();
  array = {};
  EXPECT_EQ(deferred_frees().count, 0u);
}

TEST_F(ExportTest, EndsOnAnyThreadOnce) {
  Array<float> array = make(100);
  constexpr int threads = 8, each = 1000;
  std::vector<test::Thread> running;
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([&] {
      for (int n = 0; n < each; ++n) {
        Export held = Export::try_begin(array.storage()).value();
        Export moved = std::move(held);
        moved.end();
        moved.end();
      }
    });
  }
  for (test::Thread& thread : running) thread.join();
  EXPECT_EQ(array.storage()->shares(), 1u);
}

TEST_F(ExportTest, CountsExportedBytesEvenIfTheArrayGrows) {
  Array<float> array = make(25);
  Export held = Export::try_begin(array.storage()).value();
  array.resize(50, stream);
  ASSERT_EQ(held.storage(), array.storage()) << "there was room where it is";
  EXPECT_EQ(exported_memory().bytes, 100u);
  Export later = Export::try_begin(array.storage()).value();
  held.end();
  EXPECT_EQ(exported_memory().bytes, 100u);
  later.end();
  EXPECT_EQ(exported_memory().bytes, 0u);
  held = Export::try_begin(array.storage()).value();
  EXPECT_EQ(exported_memory().bytes, 200u);
}

TEST_F(ExportTest, CannotBeReleasedBeforeADeviceWideWait) {
  const auto exported = [&] {
    Buffer buffer(device, Shape{100}, DType::f32, {.resource = pool, .stream = stream});
    buffer.ensure_allocated();
    Export::try_begin(buffer.storage()).value().end();
    return buffer;
  };
  Buffer buffer = exported();
  const Result<Released> refused = try_release(std::move(buffer), stream);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::access_conflict);
  ASSERT_TRUE(buffer) << "it stays with the caller";
  device.synchronize();
  EXPECT_TRUE(try_release(std::move(buffer), stream));
  // Where the host waits anyway, it waits for strangers too.
  EXPECT_TRUE(try_release(exported(), {}));
  EXPECT_EQ(deferred_frees().count, 0u);
}

TEST_F(ExportTest, RejectsAnEmptyBuffer) {
  EXPECT_EQ(Export::try_begin({}).failure().code(), ErrorCode::not_allocated);
}

TEST_F(ExportTest, EndedExportsAreFreedWithTheLastHandleOfTheDevice) {
  for (int i = 0; i < 10; ++i) {
    const Device other = sim::open({});
    const Stream work(other);
    Array<float> array = Array<float>::uninitialized(other, 100);
    array.fill(1.0f, work);
    Export held = Export::try_begin(array.storage()).value();
    array = {};
    held.end();
    EXPECT_EQ(deferred_frees().count, 1u);
  }
  EXPECT_EQ(deferred_frees().count, 0u);
}

TEST_F(ExportTest, AnExportThatAnAdoptionHoldsIsFreedWithTheLastHandleOfTheDevice) {
  {
    const Device other = sim::open({.policy = sim::Policy::lazy});
    const Stream work(other);
    Buffer last(other, Shape{100}, DType::f32);
    last.fill(1.0f, work);
    auto held = std::make_shared<Export>(Export::try_begin(last.storage()).value());
    void* const address = reinterpret_cast<void*>(last.address());
    last = adopt(other, address, Shape{100}, DType::f32,
                 {.on_release = [held] { held->end(); }, .stream = work});
    Buffer copy_of_it(other, Shape{100}, DType::f32);
    copy(copy_of_it, last, work);
    last = {};
    EXPECT_EQ(deferred_frees().count, 1u) << "the copy is pending";
  }
  EXPECT_EQ(deferred_frees().count, 0u);
  EXPECT_EQ(exported_memory().count, 0u);
}

TEST_F(ExportTest, KeepsItsDeviceUntilItIsReclaimed) {
  Export held;
  {
    const Device other = sim::open({});
    const Array<float> array = Array<float>::uninitialized(other, 100);
    held = Export::try_begin(array.storage()).value();
  }
  held.end();
  EXPECT_EQ(deferred_frees().count, 1u);
  EXPECT_EQ(reclaim_exported().count, 0u);
}

}  // namespace
}  // namespace tern
