#include "tern/memory/arena_resource.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "support/thorough.hpp"
#include "support/thread.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/bytes.hpp"
#include "tern/core/error.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/fault_resource.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {
namespace {

class ArenaResourceTest : public testing::Test {
 protected:
  ~ArenaResourceTest() override {
    EXPECT_TRUE(sim::findings(device).empty()) << sim::findings(device)[0].text();
  }

  Device device = sim::open(
      {.policy = sim::Policy::lazy, .mode = sim::Mode::collect, .memory_bytes = 256 * mib});
  Stream stream{device}, other{device};
  std::shared_ptr<PoolResource> pool = std::make_shared<PoolResource>(device);
  BudgetHandle budget = Budget::make("graphs", BudgetLimit::bytes(64 * mib));
  std::shared_ptr<Resource> limited = std::make_shared<BudgetResource>(pool, budget);
};

TEST_F(ArenaResourceTest, ReusesInTheSameStreamOnly) {
  ArenaResource arena(limited);
  const Block first = arena.allocate({.bytes = 4 * mib, .stream = stream});
  arena.deallocate(first, stream);
  const Block elsewhere = arena.allocate({.bytes = 4 * mib, .stream = other});
  EXPECT_NE(elsewhere.address, first.address);
  const Block again = arena.allocate({.bytes = 4 * mib, .stream = stream});
  EXPECT_EQ(again.address, first.address);
  EXPECT_EQ(arena.statistics().live_bytes, 8 * mib);
  arena.deallocate(again, stream);
  arena.deallocate(elsewhere, other);
  EXPECT_EQ(arena.statistics().live_bytes, 0u);
}

TEST_F(ArenaResourceTest, HoldsItsMemoryUntilItEnds) {
  {
    ArenaResource arena(limited, {.bytes = 8 * mib, .tag = Tag("graph")});
    EXPECT_EQ(budget->used_bytes(), 8 * mib);
    const Block block = arena.allocate({.bytes = 3 * mib, .stream = stream});
    arena.deallocate(block, stream);
    EXPECT_EQ(arena.trim(0), 0u);
    EXPECT_EQ(arena.held_bytes(), 8 * mib);
    EXPECT_EQ(budget->used_bytes(Tag("graph")), 8 * mib);
  }
  EXPECT_EQ(budget->drain(), 0u);
  EXPECT_EQ(budget->charged_bytes(), 0u);
}

/// A launch of the graph may still run on any stream.
TEST_F(ArenaResourceTest, WaitsForTheDeviceBeforeItFreesItsMemory) {
  auto arena = std::make_unique<ArenaResource>(limited);
  const Block block = arena->allocate({.bytes = 4 * mib, .stream = stream});
  other.wait(stream.mark());
  other.fill(static_cast<std::byte*>(block.address), block.bytes, std::byte{1});
  arena->deallocate(block, stream);
  EXPECT_FALSE(other.is_idle());
  arena.reset();
  EXPECT_TRUE(other.is_idle());
  const Block next = pool->allocate({.bytes = 4 * mib, .stream = stream});
  stream.fill(static_cast<std::byte*>(next.address), next.bytes, std::byte{2});
  pool->deallocate(next, stream);
}

TEST_F(ArenaResourceTest, SmallBlocksShareAChunk) {
  ArenaResource arena(limited);
  std::vector<Block> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(arena.allocate({.bytes = 1000, .stream = stream}));
  EXPECT_EQ(arena.held_bytes(), 2 * mib);
  EXPECT_EQ(arena.needed_bytes(), 100 * 1024u);
  for (const Block& block : blocks) arena.deallocate(block, stream);
}

TEST_F(ArenaResourceTest, FailsWithNumbersIfItMayNotGrow) {
  ArenaResource arena(limited, {.bytes = 1 * mib, .may_grow = false});
  const Result<Block> refused = arena.try_allocate({.bytes = 2 * mib, .stream = stream});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::out_of_memory);
  EXPECT_EQ(refused.failure().number("requested"), 2 * mib);
  EXPECT_EQ(refused.failure().number("held"), 1 * mib);
  EXPECT_EQ(arena.statistics().refusals, 1u);
  EXPECT_EQ(arena.allocate({.bytes = 0}).address, nullptr);
}

TEST_F(ArenaResourceTest, PassesOnARefusalOfItsUpstream) {
  ArenaResource arena(limited);
  const Result<Block> refused = arena.try_allocate({.bytes = 65 * mib, .stream = stream});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::out_of_budget);
  EXPECT_EQ(arena.held_bytes(), 0u);
  EXPECT_EQ(budget->charged_bytes(), 0u);
}

TEST_F(ArenaResourceTest, RefusesBadOptions) {
  EXPECT_THROW(ArenaResource(nullptr), InvalidArgument);
  EXPECT_THROW(ArenaResource(pool, {.bytes = 1, .rehearse = true}), InvalidArgument);
  EXPECT_THROW(ArenaResource(pool, {.may_grow = false, .rehearse = true}), InvalidArgument);
  EXPECT_THROW(ArenaResource(pool, {.bytes = SIZE_MAX}), SizeOverflow);
}

TEST_F(ArenaResourceTest, RefusesASecondFree) {
  ArenaResource arena(limited);
  const Block block = arena.allocate({.bytes = 100, .stream = stream});
  arena.deallocate(block, stream);
  const Result<void> twice = arena.try_deallocate(block, stream);
  ASSERT_FALSE(twice);
  EXPECT_EQ(twice.failure().code(), ErrorCode::use_after_free);
  EXPECT_EQ(arena.statistics().live_bytes, 0u);
}

/// The same calls, once in a rehearsal and once in an arena of exactly the size that it returned.
TEST_F(ArenaResourceTest, ARehearsalReturnsTheExactSize) {
  const int programs = test::is_thorough ? 200 : 30;
  for (int seed = 0; seed < programs; ++seed) {
    const auto run = [&](ArenaResource& arena) {
      std::mt19937_64 random(static_cast<std::uint64_t>(seed));
      std::vector<std::pair<Block, StreamRef>> live;
      for (int i = 0; i < 200; ++i) {
        const StreamRef on = random() % 3 == 0 ? StreamRef(other) : StreamRef(stream);
        if (live.empty() || random() % 2 == 0) {
          const Result<Block> made =
              arena.try_allocate({.bytes = 1 + random() % 60'000, .stream = on});
          if (!made) return false;
          live.emplace_back(*made, on);
        } else {
          std::swap(live[random() % live.size()], live.back());
          arena.deallocate(live.back().first, live.back().second);
          live.pop_back();
        }
      }
      for (const auto& [block, on] : live) arena.deallocate(block, on);
      return true;
    };
    ArenaResource rehearsal(limited, {.rehearse = true});
    ASSERT_TRUE(run(rehearsal));
    EXPECT_EQ(rehearsal.held_bytes(), 0u) << "a rehearsal keeps nothing";
    const std::size_t bytes = rehearsal.needed_bytes();
    ArenaResource arena(limited, {.bytes = bytes, .may_grow = false});
    EXPECT_TRUE(run(arena)) << "seed " << seed;
    EXPECT_EQ(arena.needed_bytes(), bytes);
    ArenaResource short_one(limited, {.bytes = bytes - 256, .may_grow = false});
    EXPECT_FALSE(run(short_one)) << "seed " << seed;
  }
}

TEST_F(ArenaResourceTest, LosesNothingWhenItsUpstreamFails) {
  const auto faulty = std::make_shared<FaultResource>(limited);
  for (std::uint64_t nth = 1; nth < 12; ++nth) {
    for (const bool rehearse : {false, true}) {
      faulty->set_rules({{.nth = nth}, {.for_frees = true, .nth = nth}});
      ArenaResource arena(faulty, {.rehearse = rehearse});
      std::vector<Block> live;
      for (int i = 0; i < 10; ++i) {
        const Result<Block> made = arena.try_allocate({.bytes = 3 * mib, .stream = stream});
        if (made) live.push_back(*made);
      }
      for (const Block& block : live) {
        if (!arena.try_deallocate(block, stream)) arena.deallocate(block, stream);
      }
      EXPECT_EQ(arena.statistics().live_bytes, 0u);
    }
    faulty->set_rules({});
    faulty->retry_failed_frees();
    stream.synchronize();
    budget->drain();
    EXPECT_EQ(budget->charged_bytes(), 0u) << nth;
  }
}

TEST_F(ArenaResourceTest, BlocksThatOutliveTheArenaAreNoBlocksOfItsSuccessor) {
  std::optional<ArenaResource> arena(std::in_place, limited);
  const Block block = arena->allocate({.bytes = 1000, .stream = stream});
  arena.emplace(limited);  // at the same address
  const Result<void> late = arena->try_deallocate(block, stream);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.failure().code(), ErrorCode::use_after_free);
  EXPECT_EQ(arena->statistics().live_bytes, 0u);
}

TEST_F(ArenaResourceTest, RetiredBlocksAreNotUsedAgain) {
  ArenaResource arena(limited), rehearsal(limited, {.rehearse = true});
  for (ArenaResource* const one : {&arena, &rehearsal}) {
    const Block block = one->allocate({.bytes = 1000, .stream = stream});
    EXPECT_TRUE(one->try_retire(block));
    EXPECT_FALSE(one->try_retire(block));
    one->deallocate(one->allocate({.bytes = 1000, .stream = stream}), stream);
    EXPECT_EQ(one->needed_bytes(), 2048u);
  }
  EXPECT_EQ(arena.statistics().live_bytes, 0u);
  EXPECT_EQ(rehearsal.held_bytes(), 0u);
}

TEST_F(ArenaResourceTest, ServesThreads) {
  ArenaResource arena(limited);
  std::vector<test::Thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937_64 random(static_cast<std::uint64_t>(i));
      for (int round = 0; round < 500; ++round) {
        const StreamRef on = i % 2 == 0 ? StreamRef(stream) : StreamRef(other);
        const Block block = arena.allocate({.bytes = 1 + random() % 9000, .stream = on});
        arena.deallocate(block, on);
      }
    });
  }
  threads.clear();
  EXPECT_EQ(arena.statistics().live_bytes, 0u);
  EXPECT_EQ(arena.statistics().requests, 2000u);
}

}  // namespace
}  // namespace tern
