// Memory behind a block that was cut from a larger cached one: nobody uses it, and a request that
// needs it gets it.

#include <gtest/gtest.h>

#include "support/gate.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {
namespace {

class PoolSlack : public testing::Test {
 protected:
  /// Leaves one page that no live block touches: an eighth of it is slack behind a block of one
  /// page, which is its neighbour. Everything else up to the limit is live.
  void fill_up(StreamRef stream) {
    const Block larger = pool.allocate({.bytes = 2 * mib + 256 * kib, .stream = stream});
    if (stream.id()) stream.fill(static_cast<std::byte*>(larger.address), larger.bytes, {});
    pool.deallocate(larger, stream);
    smaller = pool.allocate({.bytes = 2 * mib, .stream = stream});
    ASSERT_EQ(smaller.address, larger.address);
    ASSERT_EQ(pool.pool_statistics().cached_bytes, 256 * kib);
    rest = pool.allocate({.bytes = 124 * mib, .stream = stream});
  }
  void free_all(const Block& block, StreamRef stream) {
    for (const Block& one : {smaller, rest, block}) pool.deallocate(one, stream);
    EXPECT_TRUE(pool.check_invariants());
    device.synchronize();
    EXPECT_EQ(pool.trim(0), 128 * mib);
    EXPECT_EQ(pool.pool_statistics().held_bytes, 0u);
    EXPECT_TRUE(sim::findings(device).empty());
  }

  const Device device = sim::open({.policy = sim::Policy::lazy, .memory_bytes = 512 * mib});
  PoolResource pool{device, {.limit_bytes = 128 * mib, .thread_caches = true}};
  Block smaller, rest;
};

TEST_F(PoolSlack, IsPartOfAPageThatARequestNeeds) {
  fill_up({});
  const Result<Block> page = pool.try_allocate({.bytes = 2 * mib});
  ASSERT_TRUE(page) << page.failure().text();
  EXPECT_EQ(pool.pool_statistics().cached_bytes, 0u);
  EXPECT_TRUE(pool.check_invariants());
  free_all(*page, {});
}

TEST_F(PoolSlack, IsGivenToAnotherStreamWhenItsLastUseIsDone) {
  const Stream stream(device), other(device);
  fill_up(stream);
  test::Gate gate;
  gate.hold(stream);
  const Result<Block> early =
      pool.try_allocate({.bytes = 2 * mib, .stream = other, .wait = Wait::never});
  EXPECT_FALSE(early);
  gate.open();
  const Result<Block> page = pool.try_allocate({.bytes = 2 * mib, .stream = other});
  ASSERT_TRUE(page) << page.failure().text();
  other.fill(static_cast<std::byte*>(page->address), page->bytes, std::byte{1});
  other.synchronize();
  EXPECT_TRUE(pool.check_invariants());
  free_all(*page, {});
}

TEST_F(PoolSlack, IsReturnedToTheDriverByATrim) {
  fill_up({});
  EXPECT_EQ(pool.trim(0), 2 * mib);
  EXPECT_EQ(pool.pool_statistics().held_bytes, 126 * mib);
  const Block page = pool.allocate({.bytes = 2 * mib});
  free_all(page, {});
}

}  // namespace
}  // namespace tern
