// What every wrapper forwards to its upstream, tested with a wrapper that adds little.

#include "tern/detail/memory/wrapping_resource.hpp"

#include <gtest/gtest.h>

#include "tern/backends/sim.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/fault_resource.hpp"

namespace tern {
namespace {

TEST(WrappingResource, ForwardsToTheUpstream) {
  const Device device = sim::open({});
  const ResourceHandle direct = std::make_shared<DirectResource>(device, MemoryKind::pinned);
  FaultResource once(direct);
  EXPECT_STREQ(once.name(), "fault(direct)");
  EXPECT_EQ(once.device(), device);
  EXPECT_EQ(once.upstream(), direct);
  EXPECT_TRUE(once.traits().is_host_accessible);
  EXPECT_EQ(once.traits().max_alignment, direct->traits().max_alignment);
  EXPECT_EQ(once.trim(0), 0u);
  FaultResource twice(std::make_shared<FaultResource>(direct));
  EXPECT_STREQ(twice.name(), "fault(fault(direct))");
}

TEST(WrappingResource, CountsWhatPassedThroughItself) {
  const ResourceHandle direct = std::make_shared<DirectResource>(sim::open({}));
  FaultResource a(direct), b(direct);
  const Block one = a.allocate({.bytes = 1024});
  const Block two = b.allocate({.bytes = 64});
  EXPECT_EQ(a.statistics().live_bytes, 1024u);
  EXPECT_EQ(b.statistics().live_bytes, 64u);
  EXPECT_EQ(a.statistics().reserved_bytes, 1088u);
  a.deallocate(one, {});
  b.deallocate(two, {});
  EXPECT_EQ(a.statistics().live_bytes, 0u);
  EXPECT_EQ(a.statistics().frees, 1u);
}

TEST(WrappingResource, SeesFailedFreesOfItsUpstreamOnce) {
  const Device device = sim::open({});
  const ResourceHandle direct = std::make_shared<DirectResource>(device);
  FaultResource outer(direct);
  const Block a = outer.allocate({.bytes = 4096});
  const Block b = direct->allocate({.bytes = 64});
  sim::set_faults(device, "release#1+=fail");
  outer.deallocate(a, {});
  direct->deallocate(b, {});
  EXPECT_EQ(outer.statistics().failed_frees, 2u);
  EXPECT_EQ(outer.statistics().failed_free_bytes, 4160u);
  EXPECT_EQ(direct->statistics().failed_frees, 1u);
  sim::set_faults(device, "");
  EXPECT_EQ(outer.retry_failed_frees(), 1u);
  EXPECT_EQ(direct->retry_failed_frees(), 1u);
  EXPECT_TRUE(sim::leaks(device).empty());
}

TEST(WrappingResource, KeepsItsUpstreamAlive) {
  ResourceHandle direct = std::make_shared<DirectResource>(sim::open({}));
  const std::weak_ptr<Resource> watched = direct;
  auto outer = std::make_shared<FaultResource>(direct);
  direct = nullptr;
  outer->deallocate(outer->allocate({.bytes = 64}), {});
  EXPECT_FALSE(watched.expired());
  outer = nullptr;
  EXPECT_TRUE(watched.expired());
}

TEST(WrappingResource, NeedsAnUpstream) { EXPECT_THROW(FaultResource(nullptr), InvalidArgument); }

}  // namespace
}  // namespace tern
