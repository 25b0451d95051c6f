// The handles of the driver that a pool without a limit holds: few, large, and left in place.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/few_addresses.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {
namespace {

class PoolHandles : public testing::Test {
 protected:
  void SetUp() override {
    if (test::has_few_addresses) GTEST_SKIP() << "the sanitizer leaves too few addresses";
  }
  [[nodiscard]] static Device open() {
    return sim::open({.memory_bytes = 8 * gib, .check = false});
  }
  static std::vector<Block> take(PoolResource& pool, std::size_t bytes, std::size_t count) {
    std::vector<Block> blocks;
    for (std::size_t i = 0; i < count; ++i) blocks.push_back(pool.allocate({.bytes = bytes}));
    return blocks;
  }
  static void give(PoolResource& pool, std::vector<Block>& blocks) {
    for (const Block& block : blocks) pool.deallocate(block, {});
    blocks.clear();
  }
};

TEST_F(PoolHandles, InitialMemoryTakesFewCalls) {
  const Device device = open();
  const PoolResource pool(device, {.initial_bytes = 4 * gib});
  // 16 handles of 256 MiB: created and mapped, opened together, in one or more reservations.
  EXPECT_EQ(pool.pool_statistics().held_bytes, 4 * gib);
  EXPECT_LE(pool.pool_statistics().page_calls, 40u);
}

TEST_F(PoolHandles, GrowthTakesCallsForHandlesAndNotForPages) {
  const Device device = open();
  PoolResource pool(device, {.auto_trim = false});
  std::vector<Block> blocks = take(pool, 20 * mib, 200);
  const PoolStatistics now = pool.pool_statistics();
  EXPECT_LE(now.page_calls, 600u);
  EXPECT_EQ(now.pages_moved, 0u);
  // At most 1.06 times the memory in use.
  EXPECT_LE(now.held_bytes, 4000 * mib + 4000 * mib / 16);
  give(pool, blocks);
}

TEST_F(PoolHandles, TheSecondPassOfAProgramMakesNoCalls) {
  const Device device = open();
  PoolResource pool(device, {.auto_trim = false});
  std::uint64_t calls = 0;
  for (int pass = 0; pass < 3; ++pass) {
    // Every second block is freed, then blocks of another size are needed.
    std::vector<Block> blocks = take(pool, 24 * mib, 40), kept, more;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (i % 2 == 0) {
        pool.deallocate(blocks[i], {});
      } else {
        kept.push_back(blocks[i]);
      }
    }
    more = take(pool, 40 * mib, 10);
    give(pool, kept);
    give(pool, more);
    if (pass > 0) {
      EXPECT_EQ(pool.pool_statistics().page_calls, calls) << pass;
    }
    calls = pool.pool_statistics().page_calls;
  }
  EXPECT_EQ(pool.pool_statistics().pages_moved, 0u);
  EXPECT_GT(pool.pool_statistics().aliases, 0u);
  // 960 MiB are live at the peak. Without aliases the pool holds 1,280 MiB.
  EXPECT_LE(pool.pool_statistics().peak_held_bytes, 1152 * mib);
}

TEST_F(PoolHandles, BeyondTheGoalGrowthIsExact) {
  const Device device = open();
  PoolResource pool(device, {.auto_trim = false});
  // Too small for aliases.
  std::vector<Block> blocks = take(pool, 10 * mib, 480), kept;
  const std::size_t goal = 4800 * mib + 4800 * mib / 16;  // 1/16 above the peak
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i % 2 == 0) {
      pool.deallocate(blocks[i], {});
    } else {
      kept.push_back(blocks[i]);
    }
  }
  for (int i = 0; i < 60; ++i) {
    const std::size_t before = pool.pool_statistics().held_bytes;
    kept.push_back(pool.allocate({.bytes = 12 * mib}));  // larger than the free ranges
    EXPECT_LE(pool.pool_statistics().held_bytes, std::max(before, goal) + 12 * mib) << i;
  }
  EXPECT_GT(pool.pool_statistics().held_bytes, goal) << "the goal was never reached";
  give(pool, kept);
}

TEST_F(PoolHandles, CachedBlocksServeOtherStreamsBeforeThePoolGrowsBeyondTheGoal) {
  const Device device = open();
  const Stream stream(device);
  // Only with this option a cache keeps much of a pool of this size.
  PoolResource pool(device, {.auto_trim = false, .thread_caches = true});
  std::vector<Block> blocks;
  for (int i = 0; i < 40; ++i) {
    blocks.push_back(pool.allocate({.bytes = 15 * mib, .stream = stream}));
  }
  for (const Block& block : blocks) pool.deallocate(block, stream);
  device.synchronize();
  ASSERT_GE(pool.pool_statistics().cached_bytes, 64 * mib);
  // As many blocks without a stream, which cannot take blocks from the stream's cache.
  blocks = take(pool, 15 * mib, 40);
  EXPECT_LE(pool.pool_statistics().held_bytes, 600 * mib + 600 * mib / 16);
  give(pool, blocks);
}

TEST_F(PoolHandles, AreMovedIfTheDriverHasNoMore) {
  const Device device = sim::open({.memory_bytes = 1 * gib, .check = false});
  PoolResource pool(device, {.auto_trim = false});
  // Handles of 32 MiB, every second one free.
  std::vector<Block> blocks = take(pool, 32 * mib, 30);
  std::vector<Block> kept;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i % 2 == 0) {
      pool.deallocate(blocks[i], {});
    } else {
      kept.push_back(blocks[i]);
    }
  }
  pool.trim(SIZE_MAX);
  // An alias begins at any page.
  const Block large = pool.allocate({.bytes = 400 * mib, .alignment = 4 * mib});
  EXPECT_GT(pool.pool_statistics().pages_moved, 0u);
  EXPECT_LE(pool.pool_statistics().held_bytes, 1 * gib);
  pool.deallocate(large, {});
  give(pool, kept);
  EXPECT_TRUE(pool.check_invariants());
}

TEST_F(PoolHandles, TrimReleasesWholeHandles) {
  const Device device = open();
  PoolResource pool(device, {.auto_trim = false});
  std::vector<Block> blocks = take(pool, 64 * mib, 16);
  const Block small = pool.allocate({.bytes = 1 * mib});
  give(pool, blocks);
  pool.trim(0);
  // The handle with the small block stays.
  EXPECT_GE(pool.pool_statistics().held_bytes, 2 * mib);
  EXPECT_LE(pool.pool_statistics().held_bytes, 256 * mib);
  pool.deallocate(small, {});
  pool.trim(0);
  EXPECT_EQ(pool.pool_statistics().held_bytes, 0u);
  EXPECT_TRUE(pool.check_invariants());
}

TEST_F(PoolHandles, StayPagesUnderALimit) {
  const Device device = open();
  PoolResource pool(device, {.limit_bytes = 1 * gib, .auto_trim = false});
  std::vector<Block> blocks = take(pool, 32 * mib, 32);
  for (std::size_t i = 0; i < blocks.size(); i += 2) pool.deallocate(blocks[i], {});
  pool.trim(SIZE_MAX);
  // Half of the memory is free, in pieces of 32 MiB.
  const Block large = pool.allocate({.bytes = 512 * mib});
  EXPECT_LE(pool.pool_statistics().held_bytes, 1 * gib);
  pool.deallocate(large, {});
  for (std::size_t i = 1; i < blocks.size(); i += 2) pool.deallocate(blocks[i], {});
}

}  // namespace
}  // namespace tern
