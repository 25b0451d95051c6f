#include "memory/pool/block_poisoning.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "support/fake_memory_tool.hpp"
#include "support/gate.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {
namespace {

using test::FakeMemoryTool;

/// On the host device, whose memory everybody can touch.
class BlockPoisoningTest : public testing::TestWithParam<MemoryKind> {
 protected:
  FakeMemoryTool tool;
  const ScopedMemoryTool scoped{&tool};
  const Device device = open_device("host");
  const PoolOptions options{.kind = GetParam()};
};

TEST_P(BlockPoisoningTest, ABlockIsPoisonedFromItsFreeUntilItsReuse) {
  {
    PoolResource pool(device, options);
    const Block block = pool.allocate({.bytes = 1000});
    EXPECT_TRUE(tool.is_accessible(block.address, block.bytes));
    pool.deallocate(block, {});
    EXPECT_TRUE(tool.is_poisoned(block.address, block.bytes));
    const Block again = pool.allocate({.bytes = 1000});
    EXPECT_EQ(again.address, block.address);
    EXPECT_TRUE(tool.is_accessible(again.address, again.bytes));
    pool.deallocate(again, {});
    EXPECT_GT(tool.poisoned_bytes(), 0u);
    pool.trim(0);
    EXPECT_EQ(tool.poisoned_bytes(), 0u);  // the driver has it back
    const Block last = pool.allocate({.bytes = 5000});
    pool.deallocate(last, {});
  }
  EXPECT_EQ(tool.poisoned_bytes(), 0u);
}

TEST_P(BlockPoisoningTest, ABlockInFlightIsNotPoisoned) {
  const Stream stream(device);
  PoolResource pool(device, options);
  test::Gate gate;
  const Block block = pool.allocate({.bytes = 1000, .stream = stream});
  gate.hold(stream);
  pool.deallocate(block, stream);
  EXPECT_TRUE(tool.is_accessible(block.address, block.bytes));
  gate.open();
  stream.synchronize();
  pool.poll();
  const Block next = pool.allocate({.bytes = 1000, .stream = stream});
  EXPECT_TRUE(tool.is_accessible(next.address, next.bytes));
  pool.deallocate(next, stream);
  EXPECT_TRUE(tool.is_poisoned(next.address, next.bytes));  // its stream is done
}

TEST_P(BlockPoisoningTest, LiveBlocksAreAccessible) {
  const Stream streams[] = {Stream(device), Stream(device)};
  PoolResource pool(device, options);
  std::vector<std::pair<Block, StreamRef>> live;
  std::uint32_t random = 1;
  for (int i = 0; i < 400; ++i) {
    random = random * 1664525u + 1013904223u;
    const std::uint32_t draw = random >> 16;
    if (live.size() > 10 || (!live.empty() && draw % 3 == 0)) {
      const auto chosen = live.begin() + static_cast<std::ptrdiff_t>(draw % live.size());
      pool.deallocate(chosen->first, chosen->second);
      live.erase(chosen);
    } else {
      const StreamRef stream = draw % 5 == 0 ? StreamRef() : StreamRef(streams[draw % 2]);
      live.emplace_back(pool.allocate({.bytes = 1 + draw % 3000, .stream = stream}), stream);
    }
    if (i % 40 == 0) pool.trim(0);
    for (const auto& [block, stream] : live) {
      ASSERT_TRUE(tool.is_accessible(block.address, block.bytes)) << "step " << i;
    }
  }
  for (const auto& [block, stream] : live) pool.deallocate(block, stream);
}

INSTANTIATE_TEST_SUITE_P(Kinds, BlockPoisoningTest,
                         testing::Values(MemoryKind::device, MemoryKind::managed),
                         [](const auto& test) { return std::string(name(test.param)); });

TEST(BlockPoisoning, IgnoreDeviceMemory) {
  FakeMemoryTool tool;
  const ScopedMemoryTool scoped(&tool);
  PoolResource pool(open_device("sim"));
  pool.deallocate(pool.allocate({.bytes = 1000}), {});
  EXPECT_EQ(tool.poisoned_bytes(), 0u);
}

}  // namespace
}  // namespace tern
