// AsyncResource. tests/conformance/resource_test.cpp tests what every resource guarantees.

#include <gtest/gtest.h>

#include <cstddef>
#include <string>

#include "memory/block_table.hpp"
#include "support/cuda_bench.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/driver_resource.hpp"

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
  sim::resume(device, hold);
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

TEST(AsyncResource, RejectsRequestsForReuseOnly) {
  const Device device = sim::open({});
  const Stream stream(device);
  AsyncResource resource(device);
  const Result<Block> refused =
      resource.try_allocate({.bytes = 64, .stream = stream, .only_recycled = true});
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

// --- The driver's pool

/// Two devices of a driver of their own, so that the pool is a new one.
class DriverPool : public testing::Test {
 protected:
  Device open(int ordinal) {
    return Device(cuda::open_backend(driver, {.spec = "cuda:" + std::to_string(ordinal),
                                              .ordinal = ordinal,
                                              .staging = cuda::no_staging()})
                      .value());
  }

  sim::FakeDriver fake{cuda::PeerBench::with_access(true)};
  cuda::Driver driver = cuda::load_driver(cuda::fake_library());
  Device device = open(0), peer = open(1);
};

TEST_F(DriverPool, SettingsAreInForceAndShown) {
  AsyncResource resource(
      device, {.initial_bytes = 4096, .max_bytes = 1 << 20, .release_threshold_bytes = 1 << 16});
  DriverPoolInfo pool = resource.driver_pool();
  EXPECT_EQ(pool.max_bytes, std::size_t{1} << 20);
  EXPECT_EQ(pool.release_threshold_bytes, std::size_t{1} << 16);
  EXPECT_GE(pool.peak_reserved_bytes, 4096u) << "the initial size";
  const Stream stream(device);
  const Result<Block> refused = resource.try_allocate({.bytes = 2 << 20, .stream = stream});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::out_of_memory);
  resource.set_release_threshold(0);
  EXPECT_EQ(resource.driver_pool().release_threshold_bytes, 0u);
  const Block block = resource.allocate({.bytes = 8192, .stream = stream});
  EXPECT_EQ(resource.driver_pool().used_bytes, 8192u);
  resource.deallocate(block, stream);
  stream.synchronize();
  EXPECT_EQ(resource.driver_pool().peak_used_bytes, 8192u);
  resource.reset_peaks();
  EXPECT_EQ(resource.driver_pool().peak_used_bytes, 0u);
}

TEST_F(DriverPool, EachBadSettingIsNamed) {
  const std::size_t total = device.info().total_bytes;
  struct Case {
    AsyncOptions options;
    std::string name;
  };
  for (const Case& one :
       {Case{{.max_bytes = 0}, "max_bytes"}, Case{{.max_bytes = total + 1}, "max_bytes"},
        Case{{.initial_bytes = total + 1}, "initial_bytes"},
        Case{{.initial_bytes = 8192, .max_bytes = 4096}, "initial_bytes"},
        Case{{.initial_bytes = 8192, .release_threshold_bytes = 4096}, "release_threshold_bytes"},
        Case{{.peers = {device}}, "peers"}, Case{{.peers = {Device()}}, "peers"}}) {
    try {
      const AsyncResource resource(device, one.options);
      ADD_FAILURE() << one.name;
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.failure().string("name"), one.name);
      EXPECT_NE(error.failure().text().find(one.name), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(AsyncResource(device, {.peers = {sim::open({})}}), DeviceMismatch);
  // The maximum is fixed with the first allocation.
  AsyncResource used(device);
  used.deallocate(used.allocate({.bytes = 256}), {});
  EXPECT_THROW(AsyncResource(device, {.max_bytes = 4096}), InvalidArgument);
}

TEST_F(DriverPool, PeerAccessCanBeEnabledAndDisabled) {
  AsyncResource resource(device, {.peers = {peer}});
  EXPECT_EQ(fake.calls("cuMemPoolSetAccess"), 1u);
  resource.set_peer_access(peer, false);
  EXPECT_EQ(fake.calls("cuMemPoolSetAccess"), 2u);
  EXPECT_EQ(resource.try_set_peer_access(device, true).failure().code(),
            ErrorCode::invalid_argument);
  EXPECT_EQ(fake.calls("cuMemPoolSetAccess"), 2u);
}

TEST(DriverPoolElsewhere, ADeviceWithoutOneRefusesSettings) {
  const Device device = sim::open({});
  AsyncResource resource(device);
  EXPECT_EQ(resource.try_driver_pool().failure().code(), ErrorCode::unsupported);
  EXPECT_EQ(resource.try_set_release_threshold(1).failure().code(), ErrorCode::unsupported);
  EXPECT_EQ(resource.try_reset_peaks().failure().code(), ErrorCode::unsupported);
  EXPECT_EQ(resource.try_set_peer_access(sim::open({}), true).failure().code(),
            ErrorCode::unsupported);
  EXPECT_THROW(AsyncResource(device, {.release_threshold_bytes = 1}), Unsupported);
  EXPECT_THROW(AsyncResource(device, {.initial_bytes = 4096}), Unsupported);
}

}  // namespace
}  // namespace tern
