// What every resource promises is tested in tests/conformance/resource_test.cpp; here is the rest.

#include "tern/memory/async_resource.hpp"

#include <gtest/gtest.h>

#include "memory/block_table.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/device/stream.hpp"

namespace tern {
namespace {

TEST(AsyncResource, NeitherWaitsToAllocateNorToFree) {
  const Device device = sim::open({.policy = sim::Policy::lazy});
  const Stream stream(device);
  AsyncResource resource(device);
  const std::uint64_t hold = sim::hold(stream);
  const Block block = resource.allocate({.bytes = 4096, .stream = stream});
  stream.fill(static_cast<std::byte*>(block.address), 4096, std::byte{1});
  ASSERT_TRUE(resource.try_deallocate(block, stream));
  EXPECT_EQ(state_of(block.generation), BlockState::retired);
  EXPECT_EQ(resource.statistics().live_bytes, 0u);
  sim::let_go(device, hold);
  stream.synchronize();
  EXPECT_EQ(state_of(block.generation), BlockState::freed);
}

TEST(AsyncResource, SaysThatItIsStreamOrdered) {
  const AsyncResource resource(sim::open({}));
  EXPECT_TRUE(resource.traits().is_stream_ordered);
  EXPECT_TRUE(resource.traits().frees_without_waiting);
}

TEST(AsyncResource, NeedsADeviceThatAllocatesInStreamOrder) {
  EXPECT_THROW(AsyncResource{Device()}, InvalidArgument);
  const Device host = open_device("host");
  if (host.can(Capability::stream_ordered_memory)) {
    EXPECT_NO_THROW(AsyncResource{host});
  } else {
    EXPECT_THROW(AsyncResource{host}, Unsupported);
  }
}

TEST(AsyncResource, CannotPromiseToUseMemoryAgain) {
  const Device device = sim::open({});
  const Stream stream(device);
  AsyncResource resource(device);
  const Result<Block> refused =
      resource.try_allocate({.bytes = 64, .stream = stream, .source = Source::recycled});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::out_of_memory);
}

TEST(AsyncResource, IsReadyForTheHostIfNoStreamWasNamed) {
  const Device device = sim::open({.policy = sim::Policy::lazy});
  const Stream stream(device);
  AsyncResource resource(device);
  const Block block = resource.allocate({.bytes = 4096});
  // No wait: the checker would say if one was needed.
  stream.fill(static_cast<std::byte*>(block.address), 4096, std::byte{1});
  stream.synchronize();
  ASSERT_TRUE(resource.try_deallocate(block, {}));
  EXPECT_TRUE(sim::findings(device).empty());
}

}  // namespace
}  // namespace tern
