#include "tern/memory/guard_resource.hpp"

#include <gtest/gtest.h>

#include <cstring>

#include "memory/block_table.hpp"
#include "support/allocation_counter.hpp"
#include "support/thread.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/bytes.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/fault_resource.hpp"

namespace tern {
namespace {

class GuardResourceTest : public testing::Test {
 protected:
  [[nodiscard]] Block take(std::size_t bytes, CallSite site = CallSite::here()) {
    return resource.allocate({.bytes = bytes, .stream = stream, .tag = "weights", .site = site});
  }
  /// Writes a byte at an offset from the block, which may be beyond it.
  void poke(const Block& block, std::ptrdiff_t offset, StreamRef on) {
    on.fill(static_cast<std::byte*>(block.address) + offset, 1, std::byte{1});
  }
  [[nodiscard]] std::vector<std::byte> read(const Block& block, StreamRef on) {
    std::vector<std::byte> in(block.bytes);
    on.copy(in.data(), block.address, block.bytes);
    on.synchronize();
    return in;
  }
  void TearDown() override {
    for (const Finding& finding : sim::findings(device)) ADD_FAILURE() << finding.text();
  }

  Device device = sim::open({.policy = sim::Policy::lazy});
  Stream stream{device, {.name = "A"}};
  std::shared_ptr<FaultResource> upstream =
      std::make_shared<FaultResource>(std::make_shared<AsyncResource>(device));
  GuardResource resource{upstream};
  GuardResource holding{upstream, {.quarantine_bytes = 4096}};
};

TEST_F(GuardResourceTest, PutsABandBeforeAndAfterABlock) {
  const Block block = take(1000);
  EXPECT_EQ(block.bytes, 1000u);
  EXPECT_EQ(upstream->statistics().live_bytes, 1000u + 256 + 256);
  EXPECT_EQ(read(block, stream), std::vector<std::byte>(1000, std::byte{0xDD}));
  stream.fill(static_cast<std::byte*>(block.address), 1000, std::byte{7});  // all of it is ours
  EXPECT_TRUE(resource.try_check(block, stream));
  EXPECT_TRUE(resource.try_deallocate(block, stream));
  EXPECT_EQ(upstream->statistics().live_bytes, 0u);
  EXPECT_EQ(resource.hits(), 0u);
}

TEST_F(GuardResourceTest, NamesBlockAndLinesOfAnOverrunByOneByte) {
  for (const std::ptrdiff_t offset : {1000, 1255, -1, -256}) {
    const CallSite asked = CallSite::here();
    const Block block = take(1000, asked);
    poke(block, offset, stream);
    const CallSite freed = CallSite::here();
    const Result<void> refused = resource.try_deallocate(block, stream, freed);
    ASSERT_FALSE(refused) << offset;
    const Failure& failure = refused.failure();
    EXPECT_EQ(failure.code(), ErrorCode::violation);
    EXPECT_EQ(static_cast<std::int64_t>(*failure.number("offset")), offset);
    EXPECT_EQ(failure.number("address"), reinterpret_cast<std::uintptr_t>(block.address));
    EXPECT_EQ(failure.string("tag"), "weights");
    EXPECT_EQ(failure.string("allocated"), "guard_resource_test.cpp:" + std::to_string(asked.line));
    EXPECT_EQ(failure.string("freed"), "guard_resource_test.cpp:" + std::to_string(freed.line));
    EXPECT_EQ(failure.site().line, freed.line);
    // Refused once: it is live, and goes when it is freed again.
    EXPECT_EQ(state_of(block.generation), BlockState::live);
    EXPECT_EQ(resource.statistics().live_bytes, 1000u);
    EXPECT_TRUE(resource.try_deallocate(block, stream));
    ASSERT_TRUE(resource.take_hit());
    EXPECT_FALSE(resource.take_hit());
  }
  EXPECT_EQ(resource.hits(), 4u);
  EXPECT_EQ(upstream->statistics().live_bytes, 0u);
}

TEST_F(GuardResourceTest, ChecksOnDemand) {
  const Block block = take(100);
  EXPECT_TRUE(resource.try_check(block, stream));
  poke(block, 100, stream);
  EXPECT_EQ(resource.try_check(block, stream).failure().code(), ErrorCode::violation);
  resource.deallocate(block, stream);
  EXPECT_EQ(resource.failed_free_bytes(), 100u);
  EXPECT_EQ(resource.retry_failed_frees(), 1u);
  EXPECT_EQ(resource.try_check(block, stream).failure().code(), ErrorCode::use_after_free);
}

TEST_F(GuardResourceTest, PoisonsInTheOrderOfTheStream) {
  // What was submitted before the free reads its own bytes, whatever the delays.
  std::vector<std::byte> in(4096);
  const Block block = take(4096);
  stream.fill(static_cast<std::byte*>(block.address), 4096, std::byte{7});
  stream.copy(in.data(), block.address, 4096);
  EXPECT_TRUE(resource.try_deallocate(block, stream));
  stream.synchronize();
  EXPECT_EQ(in, std::vector<std::byte>(4096, std::byte{7}));
  // And fresh data is not poisoned late: a held stream delays the fill, and what follows it.
  const std::uint64_t hold = sim::hold(stream);
  const Block next = take(4096);
  stream.fill(static_cast<std::byte*>(next.address), 4096, std::byte{9});
  stream.copy(in.data(), next.address, 4096);
  sim::resume(device, hold);
  stream.synchronize();
  EXPECT_EQ(in, std::vector<std::byte>(4096, std::byte{9}));
  EXPECT_TRUE(resource.try_deallocate(next, stream));
}

TEST_F(GuardResourceTest, QuarantinesFreedBlocksInOrder) {
  std::vector<Block> blocks;
  for (int i = 0; i < 4; ++i) {
    blocks.push_back(holding.allocate({.bytes = 1024, .stream = stream}));  // 1536 with bands
  }
  for (const Block& block : blocks) EXPECT_TRUE(holding.try_deallocate(block, stream));
  EXPECT_EQ(holding.quarantined_bytes(), 3072u);
  EXPECT_EQ(upstream->statistics().live_bytes, 3072u);
  EXPECT_EQ(holding.statistics().live_bytes, 0u);
  EXPECT_EQ(state_of(blocks[1].generation), BlockState::freed);
  EXPECT_EQ(state_of(blocks[2].generation), BlockState::quarantined);
  EXPECT_EQ(holding.try_deallocate(blocks[2], stream).failure().code(), ErrorCode::use_after_free);
  EXPECT_EQ(read(blocks[3], stream), std::vector<std::byte>(1024, std::byte{0xDD}));
  EXPECT_EQ(holding.trim(2000), 1536u);
  EXPECT_EQ(state_of(blocks[2].generation), BlockState::freed);
  EXPECT_EQ(holding.trim(0), 1536u);
  EXPECT_EQ(upstream->statistics().live_bytes, 0u);
  // One that is larger than the quarantine does not clear it.
  EXPECT_TRUE(holding.try_deallocate(holding.allocate({.bytes = 8192, .stream = stream}), stream));
  EXPECT_EQ(upstream->statistics().live_bytes, 0u);
}

TEST_F(GuardResourceTest, TrimsOnlyWhatItsStreamHasPassed) {
  const Block block = holding.allocate({.bytes = 1024, .stream = stream});
  EXPECT_TRUE(holding.try_deallocate(block, stream));
  const std::uint64_t hold = sim::hold(stream);  // a mark covers what comes before it is asked for
  EXPECT_EQ(holding.trim(0), 0u);
  EXPECT_EQ(state_of(block.generation), BlockState::quarantined);
  sim::resume(device, hold);
  stream.synchronize();
  EXPECT_EQ(holding.trim(0), 1536u);
}

TEST_F(GuardResourceTest, FindsAUseAfterTheFree) {
  const Block block = holding.allocate({.bytes = 1024, .stream = stream, .tag = "weights"});
  const CallSite freed = CallSite::here();
  EXPECT_TRUE(holding.try_deallocate(block, stream, freed));
  poke(block, 10, stream);
  stream.synchronize();
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(
        holding.try_deallocate(holding.allocate({.bytes = 1024, .stream = stream}), stream));
  }
  const std::optional<Failure> late = holding.take_hit();
  ASSERT_TRUE(late);
  EXPECT_EQ(late->number("offset"), 10u);
  EXPECT_EQ(late->string("freed"), "guard_resource_test.cpp:" + std::to_string(freed.line));
  EXPECT_EQ(holding.hits(), 1u);
}

TEST_F(GuardResourceTest, KeepsBlocksItCouldNotWaitFor) {
  const Stream other(device);
  // Whichever wait of the free that is one too many is refused: poison may still be on its way.
  for (int wait = 1; wait <= 8; ++wait) {
    const Block first = holding.allocate({.bytes = 1024, .stream = stream});
    const Block second = holding.allocate({.bytes = 1024, .stream = other});
    const Block third = holding.allocate({.bytes = 1024, .stream = other});
    holding.deallocate(first, stream);
    holding.deallocate(second, other);
    sim::set_faults(device, "sync#" + std::to_string(wait) + "=fail");
    holding.deallocate(third, other);
    sim::set_faults(device, "");
    EXPECT_TRUE(sim::findings(device).empty()) << wait;
    holding.retry_failed_frees();
    device.synchronize();
    EXPECT_EQ(holding.statistics().live_bytes, 0u) << wait;
    holding.trim(0);
    EXPECT_EQ(holding.quarantined_bytes(), 0u) << wait;
    EXPECT_EQ(upstream->statistics().live_bytes, 0u) << wait;
  }
}

TEST_F(GuardResourceTest, FreesQuarantineAtItsEndEvenIfTheWaitFails) {
  for (const char* plan : {"sync#1=fail", "sync#1=fail, sync#2=fail"}) {
    {
      GuardResource brief(upstream, {.quarantine_bytes = mib});
      EXPECT_TRUE(brief.try_deallocate(brief.allocate({.bytes = 64, .stream = stream}), stream));
      sim::set_faults(device, plan);
    }
    sim::set_faults(device, "");
    EXPECT_EQ(upstream->statistics().live_bytes, 0u) << plan;
  }
}

TEST_F(GuardResourceTest, FreesQuarantineAtItsEnd) {
  {
    GuardResource brief(upstream, {.quarantine_bytes = mib});
    EXPECT_TRUE(brief.try_deallocate(brief.allocate({.bytes = 64, .stream = stream}), stream));
    EXPECT_GT(upstream->statistics().live_bytes, 0u);
  }
  EXPECT_EQ(upstream->statistics().live_bytes, 0u);
}

TEST_F(GuardResourceTest, LeaksNothingWhicheverUpstreamCallFails) {
  for (const char* what : {"fill", "copy", "allocate", "release", "sync", "record"}) {
    for (int n = 1; n <= 6; ++n) {
      for (const char* end : {"", "+"}) {
        sim::set_faults(device, std::string(what) + "#" + std::to_string(n) + end + "=fail");
        std::optional<Block> block;
        if (const Result<Block> given = resource.try_allocate({.bytes = 64, .stream = stream})) {
          block = *given;
          static_cast<void>(resource.try_deallocate(*block, stream));
        }
        sim::set_faults(device, "");
        if (block && state_of(block->generation) == BlockState::live) {
          EXPECT_TRUE(resource.try_deallocate(*block, stream)) << what << n << end;
        }
        resource.retry_failed_frees();
        upstream->retry_failed_frees();
        upstream->upstream()->retry_failed_frees();
        EXPECT_EQ(resource.statistics().live_bytes, 0u) << what << n << end;
        EXPECT_EQ(upstream->statistics().live_bytes, 0u) << what << n << end;
      }
    }
  }
  EXPECT_EQ(resource.hits(), 0u);
}

TEST_F(GuardResourceTest, RefusesCleanlyWithoutHostMemory) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP() << "the heap is somebody else's here";
  const Block block = take(64);
  const std::uint64_t asked = upstream->statistics().requests;
  const Result<Block> refused = [&] {
    const test::HeapExhausted exhausted;
    return resource.try_allocate({.bytes = 64, .stream = stream});
  }();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::out_of_memory);
  EXPECT_EQ(upstream->statistics().requests, asked);
  const Result<void> freed = [&] {
    const test::HeapExhausted exhausted;
    return resource.try_deallocate(block, stream);
  }();
  ASSERT_FALSE(freed);
  EXPECT_EQ(freed.failure().code(), ErrorCode::out_of_memory);
  EXPECT_EQ(state_of(block.generation), BlockState::live);
  EXPECT_TRUE(resource.try_deallocate(block, stream));
}

TEST_F(GuardResourceTest, GuardsMemoryOfTheHostDirectly) {
  const Device host = open_device("host");
  GuardResource guard(std::make_shared<DirectResource>(host));
  const Block block = guard.allocate({.bytes = 100});
  auto* bytes = static_cast<unsigned char*>(block.address);
  EXPECT_EQ(bytes[0], 0xDD);
  EXPECT_EQ(bytes[99], 0xDD);
  bytes[100] = 1;
  EXPECT_EQ(static_cast<std::int64_t>(*guard.try_deallocate(block, {}).failure().number("offset")),
            100);
  EXPECT_TRUE(guard.try_deallocate(block, {}));
}

TEST_F(GuardResourceTest, ServesManyThreadsWithQuarantine) {
  const Device host = open_device("host");
  auto direct = std::make_shared<DirectResource>(host);
  {
    GuardResource guard(direct, {.quarantine_bytes = 64 * kib});
    std::vector<test::Thread> workers;
    for (int t = 0; t < 8; ++t) {
      workers.emplace_back([&] {
        for (int i = 0; i < 100; ++i) guard.deallocate(guard.allocate({.bytes = 1000}), {});
      });
    }
    for (test::Thread& worker : workers) worker.join();
    EXPECT_EQ(guard.statistics().live_bytes, 0u);
    EXPECT_LE(guard.quarantined_bytes(), 64 * kib);
    EXPECT_EQ(guard.hits(), 0u);
    EXPECT_EQ(guard.failed_frees(), 0u);
  }
  EXPECT_EQ(direct->statistics().live_bytes, 0u);
}

}  // namespace
}  // namespace tern
