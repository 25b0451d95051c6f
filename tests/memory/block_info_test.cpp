#include <gtest/gtest.h>

#include "support/gate.hpp"
#include "tern/backends/sim.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/guard_resource.hpp"
#include "tern/memory/owned_block.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {
namespace {

class BlockInfoTest : public testing::Test {
 protected:
  const Device device = sim::open({});
  const Stream stream{device};
  const std::shared_ptr<PoolResource> pool = std::make_shared<PoolResource>(device);
};

TEST_F(BlockInfoTest, KnowsAllOfALiveBlock) {
  const Block block =
      pool->allocate({.bytes = 1000, .alignment = 4096, .stream = stream, .tag = "weights"});
  const BlockInfo info = try_block_info(block.generation).value();
  EXPECT_EQ(info.address, block.address);
  EXPECT_EQ(info.bytes, 1024u);
  EXPECT_GE(info.alignment, 4096u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(info.address) % info.alignment, 0u);
  EXPECT_EQ(info.device, device.id());
  EXPECT_EQ(info.resource, pool.get());
  EXPECT_EQ(info.stream, stream.id());
  EXPECT_EQ(info.tag, Tag("weights"));
  EXPECT_EQ(info.state, BlockState::live);
  pool->deallocate(block, stream);
}

TEST_F(BlockInfoTest, SeesTheFourStates) {
  GuardResource guard(pool, {.quarantine_bytes = 1 << 20});
  const Block held_back = guard.allocate({.bytes = 100, .stream = stream});
  const Block block = pool->allocate({.bytes = 100, .stream = stream});
  EXPECT_EQ(block_state(block.generation), BlockState::live);
  guard.deallocate(held_back, stream);
  EXPECT_EQ(block_state(held_back.generation), BlockState::quarantined);
  test::Gate gate;
  gate.hold(stream);
  stream.fill(static_cast<std::byte*>(block.address), 1, std::byte{1});
  pool->deallocate(block, stream);
  EXPECT_EQ(block_state(block.generation), BlockState::retired);
  EXPECT_EQ(try_block_info(block.generation)->state, BlockState::retired);
  gate.open();
  stream.synchronize();
  EXPECT_EQ(block_state(block.generation), BlockState::freed);
  guard.trim(0);
  EXPECT_EQ(block_state(held_back.generation), BlockState::freed);
}

TEST_F(BlockInfoTest, HasAWordForEachState) {
  EXPECT_EQ(name(BlockState::live), "live");
  EXPECT_EQ(name(BlockState::retired), "retired");
  EXPECT_EQ(name(BlockState::quarantined), "quarantined");
  EXPECT_EQ(name(BlockState::freed), "freed");
}

TEST_F(BlockInfoTest, RejectsAnUnknownGeneration) {
  EXPECT_EQ(try_block_info({}).failure().code(), ErrorCode::use_after_free);
  EXPECT_EQ(block_state({}), BlockState::freed);
}

}  // namespace
}  // namespace tern
