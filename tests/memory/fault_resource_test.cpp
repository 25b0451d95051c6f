#include "tern/memory/fault_resource.hpp"

#include <gtest/gtest.h>

#include "support/allocation_counter.hpp"
#include "support/thread.hpp"
#include "tern/backends/sim.hpp"
#include "tern/memory/driver_resource.hpp"

namespace tern {
namespace {

class FaultResourceTest : public testing::Test {
 protected:
  /// "..x" for two requests that work and one that does not.
  [[nodiscard]] std::string run(int requests, std::size_t bytes = 64, Tag tag = {}) {
    std::string picture;
    for (int i = 0; i < requests; ++i) {
      const Result<Block> block = resource.try_allocate({.bytes = bytes, .tag = tag});
      picture += block ? '.' : 'x';
      if (!block) continue;
      EXPECT_TRUE(resource.try_deallocate(*block, {}));
    }
    EXPECT_EQ(upstream->statistics().live_bytes, 0u);
    EXPECT_EQ(resource.statistics().live_bytes, 0u);
    return picture;
  }

  Device device = sim::open({});
  ResourceHandle upstream = std::make_shared<DirectResource>(device);
  FaultResource resource{upstream};
};

TEST_F(FaultResourceTest, FailsTheNthRequestOnce) {
  resource.set_rules({{.nth = 3}});
  EXPECT_EQ(run(6), "..x...");
  EXPECT_EQ(resource.failed_requests(), 1u);
  EXPECT_EQ(upstream->statistics().requests, 5u);
  resource.set_rules({{.nth = 1}});  // counts from the beginning
  EXPECT_EQ(run(2), "x.");
}

TEST_F(FaultResourceTest, FailsEveryNthRequest) {
  resource.set_rules({{.every = 2}});
  EXPECT_EQ(run(6), ".x.x.x");
  resource.set_rules({{.every = 1}});
  EXPECT_EQ(run(3), "xxx");
  resource.set_rules({});
  EXPECT_EQ(run(3), "...");
}

TEST_F(FaultResourceTest, FailsByTag) {
  resource.set_rules({{.tag = Tag("sort.tmp")}});
  EXPECT_EQ(run(2, 64, "weights"), "..");
  EXPECT_EQ(run(2, 64, "sort.tmp"), "xx");
  resource.set_rules({{.tag = Tag("sort.tmp"), .nth = 2}});
  EXPECT_EQ(run(2, 64, "sort.tmp"), ".x");
}

TEST_F(FaultResourceTest, FailsBySize) {
  resource.set_rules({{.min_bytes = 100, .max_bytes = 200}});
  EXPECT_EQ(run(1, 99), ".");
  EXPECT_EQ(run(1, 100), "x");
  EXPECT_EQ(run(1, 200), "x");
  EXPECT_EQ(run(1, 201), ".");
}

TEST_F(FaultResourceTest, FailsTheSameWithTheSameSeed) {
  resource.set_rules({{.rate = 0.5, .seed = 7}});
  const std::string first = run(64);
  resource.set_rules({{.rate = 0.5, .seed = 7}});
  EXPECT_EQ(run(64), first);
  resource.set_rules({{.rate = 0.5, .seed = 8}});
  EXPECT_NE(run(64), first);
  const auto failures = std::count(first.begin(), first.end(), 'x');
  EXPECT_GT(failures, 16);
  EXPECT_LT(failures, 48);
  resource.set_rules({{.rate = 1}});
  EXPECT_EQ(run(4), "xxxx");
}

TEST_F(FaultResourceTest, FailsAfterTheUpstreamHasAllocated) {
  resource.set_rules({{.after_upstream = true, .nth = 2}});
  EXPECT_EQ(run(3), ".x.");
  EXPECT_EQ(upstream->statistics().requests, 3u);
  EXPECT_EQ(upstream->statistics().frees, 3u);
  EXPECT_EQ(resource.statistics().frees, 2u);
  EXPECT_EQ(resource.statistics().refusals, 1u);
  EXPECT_TRUE(sim::leaks(device).empty());
  // A failure of the upstream's own is told as such.
  resource.set_rules({{.after_upstream = true, .code = ErrorCode::driver}});
  sim::set_faults(device, "allocate#1=oom");
  EXPECT_EQ(resource.try_allocate({.bytes = 64}).failure().code(), ErrorCode::out_of_memory);
  EXPECT_EQ(resource.failed_requests(), 1u);
}

TEST_F(FaultResourceTest, NamesTheRuleThatHit) {
  resource.set_rules({{.nth = 9}, {.tag = Tag("weights"), .code = ErrorCode::device_lost}});
  const CallSite here = CallSite::here();
  const Result<Block> refused =
      resource.try_allocate({.bytes = 1536, .tag = "weights", .site = here});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::device_lost);
  EXPECT_EQ(refused.failure().site().line, here.line);
  EXPECT_EQ(refused.failure().text(),
            "fault rule 2 rejected an allocation of 1.5 KiB with tag 'weights' at its call 1. "
            "Remove the rule to allow it.");
}

TEST_F(FaultResourceTest, CountsCallsForEveryRule) {
  resource.set_rules({{.nth = 1}, {.nth = 2}});
  EXPECT_EQ(run(3), "xx.");
}

TEST_F(FaultResourceTest, FailsByTheFirstRuleThatHits) {
  resource.set_rules({{.nth = 1}, {.nth = 1, .code = ErrorCode::driver}});
  const Result<Block> refused = resource.try_allocate({.bytes = 64});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::out_of_memory);
  EXPECT_EQ(refused.failure().number("rule"), 1u);
}

TEST_F(FaultResourceTest, FailsTheNextCalls) {
  resource.fail_next();
  EXPECT_EQ(run(2), "x.");
  resource.fail_next(2);
  EXPECT_EQ(run(3), "xx.");
}

TEST_F(FaultResourceTest, FailsFreesAndKeepsTheBlock) {
  resource.set_rules({{.for_frees = true, .nth = 1}});
  const Block block = resource.allocate({.bytes = 4096, .tag = "weights"});
  resource.deallocate(block, {});
  EXPECT_EQ(resource.refused_frees(), 1u);
  EXPECT_EQ(resource.statistics().live_bytes, 4096u);
  EXPECT_EQ(resource.statistics().failed_frees, 1u);
  EXPECT_EQ(resource.statistics().failed_free_bytes, 4096u);
  EXPECT_EQ(resource.take_free_failure()->code(), ErrorCode::driver);
  EXPECT_EQ(resource.retry_failed_frees(), 1u);
  EXPECT_EQ(resource.statistics().live_bytes, 0u);
  EXPECT_EQ(resource.statistics().failed_free_bytes, 0u);
}

TEST_F(FaultResourceTest, FailsFreesByTagAndNeverCountsMistakes) {
  resource.set_rules({{.for_frees = true, .tag = Tag("weights"), .nth = 1}});
  const Block other = resource.allocate({.bytes = 64});
  EXPECT_TRUE(resource.try_deallocate(other, {}));
  const Block block = resource.allocate({.bytes = 64, .tag = "weights"});
  Block wrong = block;
  wrong.address = static_cast<std::byte*>(block.address) + 1;
  EXPECT_EQ(resource.try_deallocate(wrong, {}).failure().code(), ErrorCode::out_of_bounds);
  EXPECT_EQ(resource.try_deallocate(other, {}).failure().code(), ErrorCode::use_after_free);
  EXPECT_EQ(resource.try_deallocate(block, {}).failure().code(), ErrorCode::driver);
  EXPECT_TRUE(resource.try_deallocate(block, {}));
}

TEST_F(FaultResourceTest, RejectsInvalidRules) {
  resource.set_rules({{.every = 2}});
  EXPECT_THROW(resource.set_rules({{.rate = 1.5}}), InvalidArgument);
  EXPECT_THROW(resource.set_rules({{.rate = -0.5}}), InvalidArgument);
  EXPECT_THROW(resource.set_rules({{.min_bytes = 2, .max_bytes = 1}}), InvalidArgument);
  EXPECT_THROW(resource.set_rules({{.for_frees = true, .after_upstream = true}}), InvalidArgument);
  EXPECT_EQ(run(2), ".x");  // the old ones stay
}

TEST_F(FaultResourceTest, IgnoresRequestsOfZeroBytes) {
  resource.set_rules({{}});
  EXPECT_TRUE(resource.try_allocate({.bytes = 0}));
  EXPECT_EQ(resource.failed_requests(), 0u);
}

TEST_F(FaultResourceTest, FailsTheSameNumberForAnyThreads) {
  resource.set_rules({{.every = 4}});
  std::vector<test::Thread> workers;
  for (int t = 0; t < 8; ++t) {
    workers.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        const Result<Block> block = resource.try_allocate({.bytes = 64});
        if (!block) continue;
        EXPECT_TRUE(resource.try_deallocate(*block, {}));
      }
    });
  }
  for (test::Thread& worker : workers) worker.join();
  EXPECT_EQ(resource.failed_requests(), 200u);
  EXPECT_EQ(resource.statistics().refusals, 200u);
  EXPECT_EQ(resource.statistics().live_bytes, 0u);
}

TEST_F(FaultResourceTest, UsesNoHeapToRefuse) {
  resource.set_rules({{.every = 1}});
  bool is_refused = false;
  const test::AllocationCounter counter;
  is_refused = !resource.try_allocate({.bytes = 64});
  EXPECT_EQ(counter.count(), 0u);
  EXPECT_TRUE(is_refused);
}

}  // namespace
}  // namespace tern
