#include "tern/memory/owned_block.hpp"

#include <gtest/gtest.h>

#include <utility>

#include "tern/backends/sim.hpp"
#include "tern/memory/driver_resource.hpp"

namespace tern {
namespace {

static_assert(!std::is_copy_constructible_v<OwnedBlock> && !std::is_copy_assignable_v<OwnedBlock>);
static_assert(std::is_nothrow_move_constructible_v<OwnedBlock>);

class OwnedBlockTest : public testing::Test {
 protected:
  [[nodiscard]] OwnedBlock take(std::size_t bytes) {
    return OwnedBlock(resource, {.bytes = bytes, .stream = stream, .tag = "weights"});
  }
  [[nodiscard]] std::size_t live() const { return resource->statistics().live_bytes; }

  Device device = sim::open({.policy = sim::Policy::lazy});
  Stream stream{device, {.name = "copy"}};
  ResourceHandle resource = std::make_shared<AsyncResource>(device);
};

TEST_F(OwnedBlockTest, FreesEachByteOnce) {
  {
    const OwnedBlock a = take(1000);
    OwnedBlock b = take(2000);
    EXPECT_EQ(live(), 3000u);
    OwnedBlock c = std::move(b);
    EXPECT_EQ(live(), 3000u);
    EXPECT_EQ(c.bytes(), 2000u);
  }
  EXPECT_EQ(live(), 0u);
  EXPECT_EQ(resource->statistics().frees, 2u);
  EXPECT_EQ(resource->failed_frees(), 0u);
  stream.synchronize();
  EXPECT_TRUE(sim::leaks(device).empty());
}

TEST_F(OwnedBlockTest, IsEmptyAfterAMove) {
  OwnedBlock from = take(1000);
  const OwnedBlock to = std::move(from);
  EXPECT_FALSE(from);
  EXPECT_EQ(from.try_block().failure().code(), ErrorCode::not_allocated);
  EXPECT_THROW(static_cast<void>(from.address()), NotAllocated);
  EXPECT_THROW(static_cast<void>(from.bytes()), NotAllocated);
  EXPECT_THROW(static_cast<void>(from.release()), NotAllocated);
  const CallSite here = CallSite::here();
  const Result<void> freed = from.try_free(here);
  ASSERT_FALSE(freed);
  EXPECT_EQ(freed.failure().code(), ErrorCode::not_allocated);
  EXPECT_EQ(freed.failure().site().line, here.line);
  EXPECT_EQ(from.state(), BlockState::freed);
  EXPECT_EQ(from.text(), "no block");
  EXPECT_TRUE(to);
}

TEST_F(OwnedBlockTest, AssignmentFreesTheOldBlock) {
  OwnedBlock one = take(1000);
  one = take(64);
  EXPECT_EQ(live(), 64u);
  OwnedBlock& same = one;
  one = std::move(same);
  EXPECT_TRUE(one);
  EXPECT_EQ(live(), 64u);
  one = OwnedBlock();
  EXPECT_EQ(live(), 0u);
}

TEST_F(OwnedBlockTest, ReleasesItsBlock) {
  OwnedBlock owner = take(1000);
  const Block block = owner.release();
  EXPECT_FALSE(owner);
  owner = {};
  EXPECT_EQ(live(), 1000u);
  { const OwnedBlock again = OwnedBlock::adopt(resource, block, stream); }
  EXPECT_EQ(live(), 0u);
}

TEST_F(OwnedBlockTest, DescribesItsBlock) {
  OwnedBlock owner = take(1536);
  const Block block = owner.block();
  const std::string text = owner.text();
  char address[32] = {};
  std::snprintf(address, sizeof address, "%#zx",
                static_cast<std::size_t>(reinterpret_cast<std::uintptr_t>(block.address)));
  EXPECT_EQ(text, "1.5 KiB at " + std::string(address) + " on '" + std::string(device.spec()) +
                      "', stream 'copy', tag 'weights', generation " +
                      std::to_string(block.generation.count()) + " of place " +
                      std::to_string(block.generation.slot()) + ", live");
  // Somebody else frees it: the owner knows by the generation.
  const std::uint64_t hold = sim::hold(stream);
  ASSERT_TRUE(resource->try_deallocate(block, stream));
  EXPECT_TRUE(owner.text().ends_with(", retired")) << owner.text();
  sim::resume(device, hold);
  stream.synchronize();
  EXPECT_TRUE(owner.text().ends_with(", freed")) << owner.text();
  static_cast<void>(owner.release());
}

TEST_F(OwnedBlockTest, FreesInTheOrderOfItsStream) {
  std::vector<std::byte> in(4096);
  {
    const OwnedBlock block = take(4096);
    stream.fill(static_cast<std::byte*>(block.address()), 4096, std::byte{7});
    stream.copy(in.data(), block.address(), 4096);
  }
  const Stream other(device);
  const OwnedBlock next(resource, {.bytes = 4096, .stream = other});
  other.fill(static_cast<std::byte*>(next.address()), 4096, std::byte{9});
  stream.synchronize();
  EXPECT_EQ(in.back(), std::byte{7});
  EXPECT_TRUE(sim::findings(device).empty());
}

TEST_F(OwnedBlockTest, FreesOnTheLastSetStream) {
  const Stream other(device, {.name = "other"});
  OwnedBlock block = take(4096);
  other.wait(stream.mark());
  other.fill(static_cast<std::byte*>(block.address()), 4096, std::byte{9});
  block.set_stream(other);
  EXPECT_EQ(block.stream(), other);
  block = {};
  EXPECT_TRUE(sim::findings(device).empty());
}

TEST_F(OwnedBlockTest, KeepsTheResourceAlive) {
  std::weak_ptr<Resource> watched = resource;
  OwnedBlock block = take(64);
  resource = nullptr;
  EXPECT_FALSE(watched.expired());
  block = {};
  EXPECT_TRUE(watched.expired());
  EXPECT_TRUE(sim::leaks(device).empty());
}

TEST_F(OwnedBlockTest, KeepsABlockThatCouldNotBeFreed) {
  OwnedBlock block = take(4096);
  sim::set_faults(device, "release#1=fail");
  ASSERT_FALSE(block.try_free());
  EXPECT_TRUE(block);
  EXPECT_EQ(block.state(), BlockState::live);
  EXPECT_TRUE(block.try_free());
  EXPECT_FALSE(block);
  EXPECT_EQ(resource->failed_frees(), 0u);
}

TEST_F(OwnedBlockTest, OwnsBlocksOfNoBytes) {
  OwnedBlock empty = take(0);
  EXPECT_TRUE(empty);
  EXPECT_EQ(empty.address(), nullptr);
  EXPECT_TRUE(empty.try_free());
  EXPECT_FALSE(empty);
}

TEST_F(OwnedBlockTest, FailsLikeItsResource) {
  sim::set_faults(device, "allocate#1=oom");
  EXPECT_EQ(OwnedBlock::try_allocate(resource, {.bytes = 64}).failure().code(),
            ErrorCode::out_of_memory);
  EXPECT_THROW(OwnedBlock(nullptr, {.bytes = 64}), InvalidArgument);
  EXPECT_EQ(live(), 0u);
}

}  // namespace
}  // namespace tern
