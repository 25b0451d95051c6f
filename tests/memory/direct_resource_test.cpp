// DirectResource. tests/conformance/resource_test.cpp tests what every resource guarantees.

#include <gtest/gtest.h>

#include "support/temporary_folder.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/trace/recorder.hpp"
#include "trace/memory_trace.hpp"

namespace tern {
namespace {

TEST(DirectResource, AsksTheDriverOncePerRequestAndOncePerFree) {
  const Device device = sim::open({});
  DirectResource resource(device);
  sim::set_faults(device, "");
  std::vector<Block> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(resource.allocate({.bytes = 100}));
  EXPECT_EQ(sim::calls(device, "allocate"), 10u);
  for (const Block& block : blocks) resource.deallocate(block, {});
  EXPECT_EQ(sim::calls(device, "release"), 10u);
  EXPECT_EQ(resource.failed_frees(), 0u);
}

TEST(DirectResource, GivesTheKindOfMemoryItWasMadeFor) {
  const Device device = sim::open({});
  for (const MemoryKind kind : {MemoryKind::device, MemoryKind::pinned, MemoryKind::managed}) {
    DirectResource resource(device, kind);
    EXPECT_EQ(resource.kind(), kind);
    EXPECT_EQ(resource.traits().is_host_accessible, kind != MemoryKind::device);
    EXPECT_FALSE(resource.traits().is_stream_ordered);
    const Block block = resource.allocate({.bytes = 100, .tag = "weights"});
    EXPECT_EQ(device.pointer_info(block.address).kind, kind);
    resource.deallocate(block, {});
  }
  EXPECT_TRUE(DirectResource(open_device("host")).traits().is_host_accessible);
}

TEST(DirectResource, HasItsKindOfMemoryInARecording) {
  const test::TemporaryFolder folder;
  const Device device = sim::open({});
  trace::start(folder / "run.trace");
  DirectResource pinned(device, MemoryKind::pinned);
  pinned.deallocate(pinned.allocate({.bytes = 100}), {});
  trace::stop();
  const trace::MemoryTrace recorded = trace::MemoryTrace::try_read(folder / "run.trace").value();
  ASSERT_FALSE(recorded.events.empty());
  for (const trace::MemoryEvent& event : recorded.events) {
    if (event.kind != trace::EventKind::allocate) continue;
    const auto* const name = recorded.find(trace::DefinitionKind::resource, event.resource);
    ASSERT_NE(name, nullptr);
    EXPECT_EQ(static_cast<MemoryKind>(name->detail), MemoryKind::pinned);
    return;
  }
  ADD_FAILURE() << "no allocation was recorded";
}

TEST(DirectResource, RefusesWhatIsNoDeviceOrNoKind) {
  EXPECT_THROW(DirectResource{Device()}, InvalidArgument);
  EXPECT_THROW(DirectResource(sim::open({}), MemoryKind::host), InvalidArgument);
  EXPECT_THROW(DirectResource(sim::open({}), MemoryKind::mapped), InvalidArgument);
}

TEST(DirectResource, HasNoMemoryToReuse) {
  const Device device = sim::open({});
  const Stream stream(device);
  DirectResource resource(device);
  const Result<Block> refused =
      resource.try_allocate({.bytes = 64, .stream = stream, .only_recycled = true});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::out_of_memory);
}

TEST(DirectResource, CountsItsPeak) {
  DirectResource resource(open_device("host"));
  const Block a = resource.allocate({.bytes = 1024});
  const Block b = resource.allocate({.bytes = 2048});
  resource.deallocate(a, {});
  EXPECT_EQ(resource.statistics().peak_live_bytes, 3072u);
  EXPECT_EQ(resource.statistics().live_bytes, 2048u);
  EXPECT_EQ(resource.statistics().reserved_bytes, 2048u);
  resource.deallocate(b, {});
  EXPECT_EQ(resource.statistics().peak_live_bytes, 3072u);
}

TEST(DirectResource, FreesMemoryOfALostDevice) {
  const Device device = sim::open({});
  const Stream stream(device);
  DirectResource resource(device);
  const Block block = resource.allocate({.bytes = 64, .stream = stream});
  sim::set_faults(device, "fill#1=lost");
  EXPECT_FALSE(stream.try_fill(static_cast<std::byte*>(block.address), 64, std::byte{1}));
  EXPECT_TRUE(resource.try_deallocate(block, stream));
  EXPECT_EQ(resource.statistics().live_bytes, 0u);
}

}  // namespace
}  // namespace tern
