// Corners of a pool that programs rarely reach: slots used again, refusals remembered, calls that
// come while the driver is asked, and pages that the driver does not let go.

#include <gtest/gtest.h>

#include <vector>

#include "support/fake_backend.hpp"
#include "support/gate.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/bytes.hpp"
#include "tern/core/error.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {
namespace {

using test::Call;

TEST(PoolEdges, RemembersARefusalForItsAlignmentOnly) {
  const Device device = sim::open({.memory_bytes = 64 * mib});
  PoolResource pool(device, {.limit_bytes = 4 * mib});
  const Block first = pool.allocate({.bytes = 512 * kib});
  const Block hole = pool.allocate({.bytes = 1 * mib});
  const Block last = pool.allocate({.bytes = 2 * mib + 512 * kib});
  pool.deallocate(hole, {});
  // What is free is 1 MiB in one piece, half a MiB behind the beginning of a page.
  EXPECT_FALSE(pool.try_allocate({.bytes = 1 * mib, .alignment = 1 * mib}));
  const Result<Block> plain = pool.try_allocate({.bytes = 1 * mib});
  ASSERT_TRUE(plain) << plain.failure().text();
  EXPECT_EQ(plain->address, hole.address);
  for (const Block& block : {first, *plain, last}) pool.deallocate(block, {});
}

}  // namespace
}  // namespace tern
