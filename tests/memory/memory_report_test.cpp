#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <vector>

#include "support/thread.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/event.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/guard_resource.hpp"
#include "tern/memory/pool_resource.hpp"
#include "tern/memory/tracking_resource.hpp"

namespace tern {
namespace {

std::size_t sum_of(const MemoryReport& report) {
  return std::accumulate(report.tags.begin(), report.tags.end(), std::size_t{0},
                         [](std::size_t sum, const auto& one) { return sum + one.live_bytes; });
}

TEST(MemoryReport, ListsUsageByTag) {
  const Device device = sim::open({});
  const auto pool = std::make_shared<PoolResource>(device);
  TrackingResource outer(pool);
  const Block large = outer.allocate({.bytes = 4096, .tag = "large"});
  const Block one = outer.allocate({.bytes = 256, .tag = "small"});
  const Block other = outer.allocate({.bytes = 256, .tag = "small"});
  outer.deallocate(outer.allocate({.bytes = 512}), {});
  const MemoryReport report = memory_report(outer);
  EXPECT_EQ(report.resource, "tracking(pool)");
  EXPECT_EQ(report.statistics.live_bytes, 4608u);
  EXPECT_EQ(report.statistics.peak_live_bytes, 5120u);
  ASSERT_EQ(report.tags.size(), 2u);
  EXPECT_EQ(report.tags[0].tag, Tag("large"));
  EXPECT_EQ(report.tags[1].live_bytes, 512u);
  EXPECT_EQ(report.tags[1].live_blocks, 2u);
  EXPECT_EQ(report.tagged_bytes, 4608u);
  EXPECT_EQ(sum_of(report), report.tagged_bytes);
  for (const Block& block : {large, one, other}) outer.deallocate(block, {});
}

TEST(MemoryReport, ListsGuardedBlocksOnce) {
  const Device device = sim::open({});
  GuardResource guard(std::make_shared<PoolResource>(device));
  const Block block = guard.allocate({.bytes = 100, .tag = "guarded"});
  EXPECT_EQ(memory_report(guard).tagged_bytes, 100u);
  guard.deallocate(block, {});
}

TEST(MemoryReport, HasHitRateAndFragmentation) {
  const Device device = sim::open({});
  PoolResource pool(device);
  const Block first = pool.allocate({.bytes = 1 * mib});
  EXPECT_EQ(pool.statistics().hit_rate(), 0);
  EXPECT_EQ(pool.statistics().fragmentation(), 0);
  const Block second = pool.allocate({.bytes = 512 * kib});
  const Block last = pool.allocate({.bytes = 512 * kib});
  EXPECT_DOUBLE_EQ(pool.statistics().hit_rate(), 2.0 / 3);
  pool.deallocate(second, {});
  EXPECT_EQ(pool.trim(SIZE_MAX), 0u);
  EXPECT_EQ(pool.statistics().free_bytes, 512 * kib);
  EXPECT_EQ(pool.statistics().largest_free_bytes, 512 * kib);
  pool.deallocate(first, {});
  pool.deallocate(last, {});
}

TEST(MemoryReport, CountsEventsWaitsAndLaunches) {
  const Device device = sim::open({});
  const PoolResource pool(device);
  const DeviceActivity before = memory_report(pool).activity;
  const Stream one(device), other(device);
  Event event(device);
  one.record(event);
  other.wait(event);
  other.wait(one.mark());
  other.synchronize();
  device.synchronize();
  const DeviceActivity after = memory_report(pool).activity;
  EXPECT_EQ(after.events, before.events + 2);
  EXPECT_EQ(after.stream_waits, before.stream_waits + 2);
  EXPECT_EQ(after.host_waits, before.host_waits + 2);
  EXPECT_EQ(after.launches, before.launches);
}

TEST(MemoryReport, AddsUpOnEightThreads) {
  const Device device = sim::open({.check = false});
  PoolResource pool(device);
  std::atomic<bool> is_over = false;
  std::vector<test::Thread> threads;
  const char* const names[] = {"a", "b", "c", "d", "e", "f", "g", "h"};
  for (const char* name : names) {
    threads.emplace_back([&, name] {
      const Stream stream(device);
      std::vector<Block> blocks;
      for (std::size_t i = 0; !is_over; ++i) {
        blocks.push_back(pool.allocate({.bytes = 1 + i % 5000, .stream = stream, .tag = name}));
        if (blocks.size() < 16) continue;
        for (const Block& block : blocks) pool.deallocate(block, stream);
        blocks.clear();
      }
      for (const Block& block : blocks) pool.deallocate(block, stream);
    });
  }
  for (int i = 0; i < 200; ++i) {
    const MemoryReport report = memory_report(pool);
    EXPECT_EQ(sum_of(report), report.tagged_bytes);
    EXPECT_LE(report.tags.size(), std::size(names));
  }
  is_over = true;
  for (test::Thread& thread : threads) thread.join();
  EXPECT_EQ(memory_report(pool).tagged_bytes, 0u);
  EXPECT_EQ(pool.statistics().live_bytes, 0u);
}

TEST(MemoryReport, IsText) {
  const Device device = sim::open({});
  PoolResource pool(device);
  const Block block = pool.allocate({.bytes = 4096, .tag = "weights"});
  EXPECT_EQ(memory_report(pool).text(),
            "pool on 'sim:0': 4.0 KiB used in 1 blocks, peak 4.0 KiB, 0 B pending, 2.0 MiB held\n"
            "hit rate 0.0 %, fragmentation 0.0 %, 1 requests, 0 refused, 0 frees failed\n"
            "0 launches, 0 events, 0 stream waits, 0 host waits\n"
            "  4.0 KiB in 1 blocks with tag 'weights'");
  pool.deallocate(block, {});
}

}  // namespace
}  // namespace tern
