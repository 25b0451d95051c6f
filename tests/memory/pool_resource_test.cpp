// What a pool promises beyond every resource: reuse by the stream, waits between streams, pages put
// together, limits that hold.

#include "tern/memory/pool_resource.hpp"

#include <gtest/gtest.h>

#include <random>
#include <thread>
#include <vector>

#include "memory/block_table.hpp"
#include "memory/pool/size_class.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/stream.hpp"

namespace tern {
namespace {

class Pool : public testing::Test {
 protected:
  void TearDown() override {
    for (const Finding& finding : sim::findings(device)) ADD_FAILURE() << finding.text();
  }
  /// Uses all of the block, so that the checker has something to judge.
  static void use(StreamRef stream, const Block& block) {
    stream.fill(static_cast<std::byte*>(block.address), block.bytes, std::byte{7});
  }

  Device device = sim::open({.policy = sim::Policy::lazy, .memory_bytes = 256 * mib});
  Stream a{device, {.name = "A"}};
  Stream b{device, {.name = "B"}};
};

TEST_F(Pool, ReusesAStreamsOwnBlockWithoutADriverCall) {
  PoolResource pool(device);
  const Block first = pool.allocate({.bytes = 1000, .stream = a});
  use(a, first);
  pool.deallocate(first, a);
  const PoolStatistics before = pool.pool_statistics();
  const Block second = pool.allocate({.bytes = 900, .stream = a});
  use(a, second);
  const PoolStatistics after = pool.pool_statistics();
  EXPECT_EQ(second.address, first.address);
  EXPECT_NE(second.generation, first.generation);
  EXPECT_EQ(after.cache_hits, before.cache_hits + 1);
  EXPECT_EQ(after.driver_calls(), before.driver_calls());
  pool.deallocate(second, a);
  EXPECT_TRUE(pool.check_invariants());
}

TEST_F(Pool, DoesNotGiveInFlightBlocksToAnotherStream) {
  PoolResource pool(device);
  const Block first = pool.allocate({.bytes = 8 * mib, .stream = a});
  use(a, first);
  pool.deallocate(first, a);
  const Block second = pool.allocate({.bytes = 8 * mib, .stream = b});
  use(b, second);
  EXPECT_NE(second.address, first.address);
  pool.deallocate(second, b);
}

TEST_F(Pool, PrefersATighterRangeOfItsOwnStreamToALargerOneOfAnyStream) {
  PoolResource pool(device, {.initial_bytes = 128 * mib});
  std::vector<Block> freed, kept;
  for (int i = 0; i < 2; ++i) {
    freed.push_back(pool.allocate({.bytes = 5 * mib, .stream = a}));
    kept.push_back(pool.allocate({.bytes = 2 * mib, .stream = a}));
  }
  for (const Block& block : freed) use(a, block);
  // The cache of the stream has room for one of the blocks and keeps the second.
  for (const Block& block : freed) pool.deallocate(block, a);
  const Block tight = pool.allocate({.bytes = 5 * mib - 1024, .stream = a});
  EXPECT_EQ(tight.address, freed[0].address);
  EXPECT_EQ(pool.pool_statistics().own_in_flight_hits, 1u);
  pool.deallocate(tight, a);
  for (const Block& block : kept) pool.deallocate(block, a);
}

TEST_F(Pool, RecordsFewEventsForLargeBlocksWhileItHoldsMuch) {
  const Device large = sim::open({.memory_bytes = 16 * gib, .check = false});
  const Stream stream{large}, other{large};
  const auto seals = [&](std::size_t initial_bytes, bool is_shared) {
    PoolResource pool(large, {.initial_bytes = initial_bytes});
    std::vector<Block> blocks;
    if (is_shared) pool.deallocate(pool.allocate({.bytes = 1000, .stream = other}), other);
    for (int i = 0; i < 32; ++i) {
      blocks.push_back(pool.allocate({.bytes = 40 * mib, .stream = stream}));
    }
    for (const Block& block : blocks) pool.deallocate(block, stream);
    return pool.pool_statistics().seals;
  };
  EXPECT_GE(seals(1300 * mib, true), 28u) << "each of the blocks that the cache does not keep";
  EXPECT_LE(seals(14 * gib, true), 16u) << "one in 56 MiB";
  EXPECT_LE(seals(4 * gib, false), 1u) << "one in 1 GiB, because the stream is alone";
}

TEST_F(Pool, AsksTheStreamsWhenItRecordsAMark) {
  const Device idle = sim::open({.policy = sim::Policy::eager, .memory_bytes = 512 * mib});
  const Stream stream{idle};
  PoolResource pool(idle);
  std::vector<Block> blocks;
  for (int i = 0; i < 70; ++i) {
    blocks.push_back(pool.allocate({.bytes = 4 * mib, .stream = stream}));
  }
  for (const Block& block : blocks) pool.deallocate(block, stream);
  // No request has looked for memory since then.
  EXPECT_GE(pool.pool_statistics().available_bytes, 200 * mib);
}

TEST_F(Pool, CachesKeepASmallPartOfAPoolWithoutALimit) {
  const Device large = sim::open({.memory_bytes = 8 * gib, .check = false});
  const Stream stream{large};
  const auto cached = [&](const PoolOptions& options) {
    PoolResource pool(large, options);
    std::vector<Block> blocks;
    for (int i = 0; i < 24; ++i) {
      blocks.push_back(pool.allocate({.bytes = 1 * mib, .stream = stream}));
      blocks.push_back(pool.allocate({.bytes = 40 * mib, .stream = stream}));
    }
    for (const Block& block : blocks) pool.deallocate(block, stream);
    return pool.pool_statistics().cached_bytes;
  };
  // At least 12 MiB of each kind, or 1/256 and 1/128. No larger block fits.
  EXPECT_LE(cached({.initial_bytes = 2 * gib}), 12 * mib);
  EXPECT_GE(cached({.initial_bytes = 2 * gib}), 8 * mib);
  EXPECT_GE(cached({.limit_bytes = 4 * gib, .initial_bytes = 2 * gib}), 100 * mib);
}

TEST_F(Pool, StealsWithAWaitOnTheDevice) {
  PoolResource pool(device, {.limit_bytes = 8 * mib});
  const Block first = pool.allocate({.bytes = 8 * mib, .stream = a});
  use(a, first);
  pool.deallocate(first, a);
  const Block second = pool.allocate({.bytes = 8 * mib, .stream = b, .wait = Wait::never});
  use(b, second);
  EXPECT_EQ(second.address, first.address);
  EXPECT_EQ(pool.pool_statistics().steals, 1u);
  pool.deallocate(second, b);
  EXPECT_TRUE(pool.check_invariants());
}

TEST_F(Pool, RemapsFreePages) {
  PoolResource pool(device, {.limit_bytes = 128 * mib});
  std::vector<Block> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(pool.allocate({.bytes = 16 * mib, .stream = a}));
  for (std::size_t i = 0; i < 8; i += 2) pool.deallocate(blocks[i], a);
  a.synchronize();
  const Block large = pool.allocate({.bytes = 64 * mib, .stream = a});
  use(a, large);
  EXPECT_EQ(pool.pool_statistics().held_bytes, 128 * mib);
  EXPECT_GE(pool.pool_statistics().pages_moved, 24u);
  EXPECT_TRUE(pool.check_invariants());
  pool.deallocate(large, a);
  for (std::size_t i = 1; i < 8; i += 2) pool.deallocate(blocks[i], a);
  a.synchronize();
  EXPECT_EQ(pool.trim(0), 128 * mib);
  EXPECT_TRUE(pool.check_invariants());
}

TEST_F(Pool, ExplainsAFailure) {
  PoolResource pool(device, {.limit_bytes = 64 * mib});
  const Block most = pool.allocate({.bytes = 48 * mib, .stream = a});
  const Result<Block> refused = pool.try_allocate({.bytes = 32 * mib, .stream = a});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::out_of_memory);
  EXPECT_NE(refused.failure().text().find("48.0 MiB of 64.0 MiB are in use"), std::string::npos)
      << refused.failure().text();
  pool.deallocate(most, a);
}

TEST_F(Pool, SurvivesARandomProgram) {
  std::mt19937_64 random(1);
  PoolResource pool(device, {.limit_bytes = 64 * mib});
  std::vector<Stream> streams;
  for (int i = 0; i < 4; ++i) streams.emplace_back(device);
  struct Live {
    Block block;
    std::size_t stream;
  };
  std::vector<Live> live;
  for (int step = 0; step < 20'000; ++step) {
    const std::uint64_t dice = random() % 100;
    if (dice < 50) {
      const std::size_t bytes = 1 + random() % (std::size_t{1} << (random() % 25));
      const std::size_t s = random() % streams.size();
      const Result<Block> block = pool.try_allocate({.bytes = bytes, .stream = streams[s]});
      if (!block) continue;
      use(streams[s], *block);
      live.push_back({*block, s});
    } else if (dice < 98 && !live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      Live one = live.back();
      live.pop_back();
      if (random() % 8 == 0) {
        const std::size_t other = random() % streams.size();
        streams[other].wait(streams[one.stream].mark());
        one.stream = other;
        use(streams[other], one.block);
      }
      ASSERT_TRUE(pool.try_deallocate(one.block, streams[one.stream]));
    } else if (dice == 98) {
      streams[random() % streams.size()].synchronize();
    } else if (random() % 20 == 0) {
      pool.trim(random() % (64 * mib));
    }
    if (step % 64 == 0) {
      ASSERT_TRUE(pool.check_invariants()) << step;
    }
  }
  for (const Live& one : live) pool.deallocate(one.block, streams[one.stream]);
  EXPECT_EQ(pool.statistics().live_bytes, 0u);
  EXPECT_TRUE(pool.check_invariants());
  const PoolStatistics s = pool.pool_statistics();
  std::printf("cache %lu own %lu quiet %lu steal %lu grown %lu remap %lu waits %lu moved %lu\n",
              s.cache_hits, s.own_in_flight_hits, s.available_hits, s.steals, s.grown_hits,
              s.remapped_hits, s.host_waits, s.pages_moved);
}

TEST(PoolRefusal, SaysWhatTheDeviceHasAndWhatTheDriverSaid) {
  const Device device = sim::open({.memory_bytes = 64 * mib});
  PoolResource pool(device);
  const Block most = pool.allocate({.bytes = 48 * mib});
  const Failure full = pool.try_allocate({.bytes = 32 * mib}).failure();
  EXPECT_EQ(full.code(), ErrorCode::out_of_memory);
  EXPECT_EQ(full.number("requested"), 32 * mib);
  EXPECT_EQ(full.number("free"), 16 * mib);
  EXPECT_EQ(full.number("total"), 64 * mib);
  EXPECT_EQ(full.number("code"), 2u);
  EXPECT_NE(full.text().find("16.0 MiB of 64.0 MiB free"), std::string::npos) << full.text();
  pool.deallocate(most, {});
}

TEST(PoolRefusal, SaysWhatTheLimitLeavesWhereThatRefuses) {
  const Device device = sim::open({.memory_bytes = 64 * mib});
  PoolResource pool(device, {.limit_bytes = 8 * mib});
  const Block most = pool.allocate({.bytes = 6 * mib});
  const Failure full = pool.try_allocate({.bytes = 4 * mib}).failure();
  EXPECT_EQ(full.number("free"), 2 * mib);
  EXPECT_EQ(full.number("total"), 8 * mib);
  EXPECT_FALSE(full.number("code"));
  pool.deallocate(most, {});
}

TEST(PoolRefusal, HasTheCallAndCodeOfAnInjectedFault) {
  const Device device = sim::open({.memory_bytes = 64 * mib, .faults = "allocate#1+=oom"});
  PoolResource pool(device);
  const Failure full = pool.try_allocate({.bytes = 4 * mib}).failure();
  EXPECT_EQ(full.number("code"), 2u);
  EXPECT_EQ(full.string("call"), "create_pages");
  EXPECT_EQ(full.number("free"), 64 * mib);
  EXPECT_EQ(full.number("total"), 64 * mib);
}

}  // namespace
}  // namespace tern
