// The common base of driver resources, with a driver made for the test.
// tests/conformance/resource_test.cpp tests what every resource guarantees.

#include "tern/memory/driver_resource.hpp"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "support/allocation_counter.hpp"
#include "tern/backends/sim.hpp"

namespace tern {
namespace {

class MadeUpResource final : public DriverResource {
 public:
  using DriverResource::Order;
  MadeUpResource(Device device, Order order)
      : DriverResource(std::move(device), order, "no {requested} again.") {}

  [[nodiscard]] const char* name() const noexcept override { return "made up"; }

  std::uintptr_t taken = 0;
  int put_back_calls = 0;
  StreamId last_stream = {};
  std::size_t last_given_bytes = 0, last_given_alignment = 0;
  bool does_give_fail = false;

 private:
  [[nodiscard]] Result<void*> take(const Request&, StreamRef stream) noexcept override {
    last_stream = stream.id();
    return reinterpret_cast<void*>(++taken << 8);
  }
  void put_back(const Piece& piece, StreamRef stream, const CallSite&) noexcept override {
    EXPECT_EQ(piece.address, reinterpret_cast<void*>(taken << 8));
    last_stream = stream.id();
    ++put_back_calls;
  }
  [[nodiscard]] Result<Mark> give(const Piece& piece, StreamRef stream,
                                  const CallSite&) noexcept override {
    last_stream = stream.id();
    last_given_bytes = piece.bytes;
    last_given_alignment = piece.alignment;
    if (does_give_fail) return Failure(ErrorCode::driver);
    return Mark{};
  }
};

TEST(DriverResource, NamesTheDefaultStreamWhereTheDriverHasTheOrderOfStreams) {
  const Device device = sim::open({});
  MadeUpResource ordered(device, MadeUpResource::Order::stream);
  const Block a = ordered.allocate({.bytes = 64});
  EXPECT_EQ(ordered.last_stream, device.default_stream().id());
  ordered.last_stream = {};
  EXPECT_TRUE(ordered.try_deallocate(a, {}));
  EXPECT_EQ(ordered.last_stream, device.default_stream().id());

  MadeUpResource by_host(device, MadeUpResource::Order::host);
  const Block b = by_host.allocate({.bytes = 64});
  EXPECT_FALSE(by_host.last_stream);
  EXPECT_TRUE(by_host.try_deallocate(b, {}));
  EXPECT_FALSE(by_host.last_stream);
}

TEST(DriverResource, RepeatsTheFreeWithTheSameArguments) {
  MadeUpResource resource(sim::open({}), MadeUpResource::Order::host);
  const Block plain = resource.allocate({.bytes = 100});
  const Block aligned = resource.allocate({.bytes = 64, .alignment = 1024});
  EXPECT_EQ(resource.statistics().reserved_bytes, 164u);
  EXPECT_TRUE(resource.try_deallocate(aligned, {}));
  EXPECT_EQ(resource.last_given_bytes, 64u);
  EXPECT_EQ(resource.last_given_alignment, 1024u);
  EXPECT_TRUE(resource.try_deallocate(plain, {}));
  EXPECT_EQ(resource.last_given_bytes, 100u);
  EXPECT_EQ(resource.last_given_alignment, 0u);
}

TEST(DriverResource, KeepsABlockLiveIfTheDriverFailsToFreeIt) {
  MadeUpResource resource(sim::open({}), MadeUpResource::Order::host);
  const Block block = resource.allocate({.bytes = 64});
  resource.does_give_fail = true;
  const CallSite here = CallSite::here();
  const Result<void> freed = resource.try_deallocate(block, {}, here);
  ASSERT_FALSE(freed);
  EXPECT_EQ(freed.failure().code(), ErrorCode::driver);
  EXPECT_EQ(freed.failure().site().line, here.line);
  EXPECT_EQ(resource.statistics().live_bytes, 64u);
  resource.does_give_fail = false;
  EXPECT_TRUE(resource.try_deallocate(block, {}));
  EXPECT_EQ(resource.statistics().live_bytes, 0u);
}

TEST(DriverResource, RejectsRequestsForReuseOnlyByName) {
  MadeUpResource resource(sim::open({}), MadeUpResource::Order::host);
  const Result<Block> refused = resource.try_allocate({.bytes = 64, .only_recycled = true});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().text(), "no 64 B again.");
  EXPECT_EQ(resource.taken, 0u);
  EXPECT_EQ(resource.statistics().refusals, 1u);
}

TEST(DriverResource, FreesMemoryItCannotTrack) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP() << "needs our operator new";
  MadeUpResource resource(sim::open({}), MadeUpResource::Order::host);
  std::vector<Block> blocks;
  blocks.reserve(1 << 20);
  blocks.push_back(resource.allocate({.bytes = 64}));  // the first of a process sets the table up
  Result<Block> refused = Block{};
  {
    const test::HeapExhausted none;
    while (blocks.size() < blocks.capacity()) {
      refused = resource.try_allocate({.bytes = 64});
      if (!refused) break;
      blocks.push_back(*refused);
    }
  }
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::out_of_memory);
  EXPECT_EQ(resource.put_back_calls, 1);
  EXPECT_EQ(resource.statistics().live_blocks, blocks.size());
  EXPECT_EQ(resource.statistics().refusals, 1u);
  for (const Block& block : blocks) EXPECT_TRUE(resource.try_deallocate(block, {}));
}

TEST(DriverResource, NeedsADevice) {
  EXPECT_THROW(MadeUpResource(Device(), MadeUpResource::Order::host), InvalidArgument);
}

}  // namespace
}  // namespace tern
