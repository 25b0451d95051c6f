// The device opens and describes itself.

#include <set>

#include "support/ladder.hpp"

namespace tern::test {
namespace {

class Opens : public Ladder {};
TERN_CLIMB(Opens);

TEST_P(Opens, WithFactsThatMakeSense) {
  const DeviceInfo& info = device.info();
  EXPECT_TRUE(device.is_open());
  EXPECT_FALSE(info.name.empty());
  EXPECT_FALSE(info.driver.empty());
  EXPECT_TRUE(info.spec.starts_with(info.backend));
  EXPECT_GT(info.processors, 0u);
  EXPECT_GE(info.total_bytes, 64 * mib);
  EXPECT_TRUE(is_power_of_two(info.alignment));
  EXPECT_GE(info.alignment, 64u);
  EXPECT_TRUE(is_power_of_two(info.max_alignment));
  EXPECT_GE(info.max_alignment, info.alignment);
  EXPECT_EQ(info.page_bytes != 0, can(Capability::virtual_memory));
}

TEST_P(Opens, AgainByItsCanonicalSpecAsTheSameDevice) {
  const Device again = open_device(device.spec());
  EXPECT_EQ(again, device);
  EXPECT_EQ(again.id(), device.id());
  EXPECT_EQ(again.place(), Place::device(device.id()));
}

TEST_P(Opens, WithMemoryBelowItsTotal) {
  const MemoryInfo memory = device.memory();
  EXPECT_GT(memory.free_bytes, 0u);
  EXPECT_LE(memory.free_bytes, memory.total_bytes);
  EXPECT_EQ(memory.total_bytes, device.info().total_bytes);
}

TEST_P(Opens, WithADefaultStreamOfNumberZero) {
  const StreamRef first = device.default_stream();
  EXPECT_EQ(first, device.default_stream());
  EXPECT_EQ(first.id().number(), 0u);
  EXPECT_EQ(first.device_id(), device.id());
  EXPECT_EQ(first.device(), device);
  EXPECT_EQ(first.name(), "default");
  EXPECT_NE(first.try_native()->value, 0u);
  EXPECT_TRUE(first.try_synchronize());
}

TEST_P(Opens, AndCompletesWhatWasSubmittedToAnyStream) {
  const Stream other(device);
  const Block block(device, 128);
  stream.fill(block.get(), 64, std::byte{1});
  other.fill(block.get() + 64, 64, std::byte{2});
  device.synchronize();
  EXPECT_TRUE(stream.is_idle());
  EXPECT_TRUE(other.is_idle());
  EXPECT_EQ(read(block.get() + 64, 1), Bytes{std::byte{2}});
}

TEST_P(Opens, AndIsItsOwnPeer) {
  const Result<bool> is_peer = device.try_enable_peer_access(device);
  ASSERT_TRUE(is_peer);
  EXPECT_TRUE(*is_peer);
}

}  // namespace
}  // namespace tern::test
