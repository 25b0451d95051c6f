#include "tern/memory/pressure_resource.hpp"

#include <gtest/gtest.h>

#include "support/allocation_counter.hpp"
#include "support/thread.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/bytes.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/fault_resource.hpp"
#include "tern/memory/owned_block.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {
namespace {

/// Hands everything on to a resource that lives longer.
class NotOwning final : public WrappingResource {
 public:
  explicit NotOwning(Resource& other)
      : WrappingResource("lent", ResourceHandle(ResourceHandle(), &other)) {}
};

class PressureResourceTest : public testing::Test {
 protected:
  /// A handler that says it freed so much, and writes down that it was called.
  [[nodiscard]] PressureHandler handler(char name, std::size_t frees) {
    return [this, name, frees](const Pressure& pressure) {
      calls += name;
      last = pressure;
      return frees;
    };
  }
  [[nodiscard]] Result<Block> take(Wait wait = Wait::never) {
    return resource.try_allocate({.bytes = 64, .tag = "weights", .wait = wait});
  }
  void fail_always() { upstream->set_rules({{}}); }

  Device device = sim::open({});
  std::shared_ptr<FaultResource> upstream =
      std::make_shared<FaultResource>(std::make_shared<DirectResource>(device));
  PressureResource resource{upstream};
  std::string calls;
  Pressure last;
};

TEST_F(PressureResourceTest, CallsNoHandlerIfThereIsMemory) {
  resource.add_handler(handler('a', 1));
  ASSERT_TRUE(resource.try_deallocate(*take(), {}));
  EXPECT_EQ(calls, "");
  EXPECT_EQ(resource.pressed_requests(), 0u);
  EXPECT_EQ(upstream->statistics().requests, 1u);
}

TEST_F(PressureResourceTest, TriesAgainAfterEachHandlerThatFreedSomething) {
  resource.add_handler(handler('a', 0));
  resource.add_handler(handler('b', 100));
  resource.add_handler(handler('c', 100));
  upstream->fail_next(1);
  const Result<Block> block = take();
  ASSERT_TRUE(block);
  EXPECT_EQ(calls, "ab");
  EXPECT_EQ(last.need_bytes, 64u);
  EXPECT_EQ(last.device, device.id());
  EXPECT_EQ(last.tag, Tag("weights"));
  EXPECT_EQ(resource.rescued_requests(), 1u);
  EXPECT_EQ(resource.statistics().refusals, 0u);
  EXPECT_EQ(resource.statistics().requests, 1u);
  EXPECT_TRUE(resource.try_deallocate(*block, {}));
}

TEST_F(PressureResourceTest, GivesUpAfterThreeRounds) {
  resource.add_handler(handler('a', 100));
  resource.add_handler(handler('b', 50));
  fail_always();
  const CallSite here = CallSite::here();
  const Result<Block> refused =
      resource.try_allocate({.bytes = 64, .site = here, .wait = Wait::never});
  ASSERT_FALSE(refused);
  EXPECT_EQ(calls, "ababab");
  EXPECT_EQ(refused.failure().code(), ErrorCode::out_of_memory);
  EXPECT_EQ(refused.failure().site().line, here.line);
  EXPECT_EQ(refused.failure().number("rounds"), 3u);
  EXPECT_EQ(refused.failure().number("freed"), 450u);
  EXPECT_EQ(refused.failure().number("requested"), 64u);
  EXPECT_EQ(upstream->statistics().requests, 7u);
  EXPECT_EQ(resource.statistics().refusals, 1u);
}

TEST_F(PressureResourceTest, EndsWhenARoundFreesNothing) {
  resource.add_handler(handler('a', 0));
  fail_always();
  EXPECT_EQ(take().failure().number("rounds"), 1u);
  EXPECT_EQ(calls, "a");
  EXPECT_EQ(upstream->statistics().requests, 1u);
}

TEST_F(PressureResourceTest, ListsTheFirstAndTheLastError) {
  resource.add_handler(handler('a', 100));
  upstream->set_rules({{.nth = 1}, {.code = ErrorCode::out_of_budget}});
  const Result<Block> refused = take();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::out_of_budget);
  EXPECT_NE(refused.failure().string("first_error")->find("fault rule 1 rejected"),
            std::string::npos)
      << refused.failure().text();
  EXPECT_NE(refused.failure().string("last_error")->find("fault rule 2 rejected"),
            std::string::npos)
      << refused.failure().text();
}

TEST_F(PressureResourceTest, MarksATruncatedError) {
  const Device small = sim::open({.memory_bytes = 64 * mib});
  PressureResource pressed(
      std::make_shared<PoolResource>(small, PoolOptions{.limit_bytes = 8 * mib}));
  const Block half = pressed.allocate({.bytes = 4 * mib});
  const Result<Block> refused = pressed.try_allocate({.bytes = 5 * mib, .tag = "sort"});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().text(),
            "5.0 MiB with tag 'sort' could not be allocated, although the pressure handlers freed "
            "0 B (rounds: 1). Before and after: a pool on 'sim:0' cannot allocate 5.0 MiB: 4.0 MiB "
            "of 8.0 MiB are in use. ... Free something, add a handler, or ask for less.");
  pressed.deallocate(half, {});
}

TEST_F(PressureResourceTest, PassesOtherFailuresThrough) {
  resource.add_handler(handler('a', 100));
  upstream->set_rules({{.code = ErrorCode::driver}});
  EXPECT_EQ(take().failure().code(), ErrorCode::driver);
  EXPECT_EQ(calls, "");
  // Also behind a shortage.
  upstream->set_rules({{.nth = 1}, {.code = ErrorCode::device_lost}});
  EXPECT_EQ(take().failure().code(), ErrorCode::device_lost);
  EXPECT_EQ(calls, "a");
}

TEST_F(PressureResourceTest, TriesFailedFreesAgainFirst) {
  resource.add_handler(handler('a', 100));
  const Block block = *take();
  upstream->set_rules({{.for_frees = true, .nth = 1}});
  resource.deallocate(block, {});
  EXPECT_EQ(resource.statistics().live_bytes, 64u);
  upstream->fail_next();
  const Result<Block> next = take();
  ASSERT_TRUE(next);
  EXPECT_EQ(calls, "");
  EXPECT_EQ(resource.statistics().live_bytes, 64u);
  EXPECT_TRUE(resource.try_deallocate(*next, {}));
}

TEST_F(PressureResourceTest, SynchronizesLastIfTheRequestMayWait) {
  upstream->fail_next();
  EXPECT_FALSE(take(Wait::never));
  sim::set_faults(device, "");
  upstream->fail_next();
  const Result<Block> block = take(Wait::forever);
  ASSERT_TRUE(block);
  EXPECT_GT(sim::calls(device, "sync"), 0u);
  EXPECT_TRUE(resource.try_deallocate(*block, {}));
}

TEST_F(PressureResourceTest, SurvivesHandlersThatThrowOrAllocate) {
  resource.add_handler([](const Pressure&) -> std::size_t { throw 1; });
  resource.add_handler([&](const Pressure&) -> std::size_t {
    calls += 'n';
    EXPECT_FALSE(take());  // no help for helpers
    return 1;
  });
  upstream->fail_next(2);
  const Result<Block> block = take();
  ASSERT_TRUE(block);
  EXPECT_EQ(calls, "n");
  EXPECT_EQ(resource.thrown_by_handlers(), 1u);
  EXPECT_EQ(resource.pressed_requests(), 1u);
  EXPECT_TRUE(resource.try_deallocate(*block, {}));
}

TEST_F(PressureResourceTest, CallsHandlersWithoutALock) {
  std::uint64_t own = 0;
  own = resource.add_handler([&](const Pressure&) -> std::size_t {
    EXPECT_TRUE(resource.remove_handler(own));
    resource.add_handler(handler('b', 0));
    return 0;
  });
  fail_always();
  EXPECT_FALSE(take());
  EXPECT_EQ(calls, "");  // added for the next time
  EXPECT_FALSE(take());
  EXPECT_EQ(calls, "b");
  EXPECT_FALSE(resource.remove_handler(own));
  EXPECT_THROW(resource.add_handler(nullptr), InvalidArgument);
}

TEST_F(PressureResourceTest, FreesMemoryUntilTheRequestFits) {
  // A cache that gives up one block per call makes room on a device that is full.
  const Device small = sim::open({.memory_bytes = 8 * mib});
  PressureResource own(std::make_shared<DirectResource>(small));
  std::vector<Block> cache;
  while (const Result<Block> block = own.try_allocate({.bytes = 2 * mib, .wait = Wait::never})) {
    cache.push_back(*block);
  }
  ASSERT_GE(cache.size(), 2u);
  own.add_handler([&](const Pressure&) -> std::size_t {
    if (cache.empty()) return 0;
    own.deallocate(cache.back(), {});
    cache.pop_back();
    return 2 * mib;
  });
  const Result<Block> block = own.try_allocate({.bytes = 2 * mib});
  ASSERT_TRUE(block);
  own.deallocate(*block, {});
  for (const Block& one : cache) own.deallocate(one, {});
  EXPECT_EQ(own.statistics().live_bytes, 0u);
}

TEST_F(PressureResourceTest, UsesNoHeapToRefuse) {
  fail_always();
  static_cast<void>(
      take());  // the first of all calls makes tables that live as long as the process
  const test::AllocationCounter counter;
  const bool is_refused = !take();
  EXPECT_EQ(counter.count(), 0u);
  EXPECT_TRUE(is_refused);
}

TEST_F(PressureResourceTest, HelpsManyThreads) {
  resource.add_handler([](const Pressure&) -> std::size_t { return 1; });
  upstream->set_rules({{.every = 3}});
  std::vector<test::Thread> workers;
  for (int t = 0; t < 8; ++t) {
    workers.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        if (const Result<Block> block = take()) resource.deallocate(*block, {});
      }
    });
  }
  for (test::Thread& worker : workers) worker.join();
  EXPECT_EQ(resource.statistics().live_bytes, 0u);
  EXPECT_GT(resource.rescued_requests(), 0u);
  EXPECT_EQ(resource.failed_frees(), 0u);
}

/// What a request at the limit of a budget may do, and what handlers are told.
class PressureOfABudget : public testing::TestWithParam<Overflow> {
 protected:
  const Device device = sim::open({.policy = sim::Policy::lazy});
  const Stream stream{device};
  const BudgetHandle budget =
      Budget::make("small", BudgetLimit::bytes(1024), {.overflow = GetParam()});
  PressureResource resource{
      std::make_shared<BudgetResource>(std::make_shared<PoolResource>(device), budget)};
};

TEST_P(PressureOfABudget, CallsHandlersAsFarAsThePolicyAllows) {
  OwnedBlock cached(std::make_shared<NotOwning>(resource), {.bytes = 1024});
  std::vector<Overflow> told;
  resource.add_handler([&](const Pressure& pressure) -> std::size_t {
    told.push_back(pressure.reach);
    cached = {};
    return 1024;
  });
  const Result<Block> block = resource.try_allocate({.bytes = 512});
  const bool may_evict = GetParam() >= Overflow::evict;
  EXPECT_EQ(bool(block), may_evict);
  EXPECT_EQ(told, may_evict ? std::vector{GetParam()} : std::vector<Overflow>{});
  if (block) {
    resource.deallocate(*block, {});
  } else {
    EXPECT_EQ(block.failure().code(), ErrorCode::out_of_budget);
  }
}

TEST_P(PressureOfABudget, WaitsForFreesUnlessThePolicyIsToFail) {
  const Stream other(device);
  const Block freed = resource.allocate({.bytes = 1024, .stream = other});
  other.fill(static_cast<std::byte*>(freed.address), 1024, std::byte{1});
  resource.deallocate(freed, other);
  const Result<Block> block = resource.try_allocate({.bytes = 1024, .stream = stream});
  EXPECT_EQ(bool(block), GetParam() != Overflow::fail);
  if (block) resource.deallocate(*block, stream);
}

TEST_P(PressureOfABudget, CallsHandlersForAFullDeviceUnderEveryPolicy) {
  auto faulty = std::make_shared<FaultResource>(std::make_shared<PoolResource>(device));
  PressureResource pressed(std::make_shared<BudgetResource>(faulty, budget));
  std::vector<Overflow> told;
  pressed.add_handler([&](const Pressure& pressure) -> std::size_t {
    told.push_back(pressure.reach);
    return 1;
  });
  faulty->fail_next(1);
  const Result<Block> block = pressed.try_allocate({.bytes = 512, .wait = Wait::never});
  ASSERT_TRUE(block) << block.failure().text();
  EXPECT_EQ(told, std::vector{Overflow::spill});
  pressed.deallocate(*block, {});
}

INSTANTIATE_TEST_SUITE_P(Policies, PressureOfABudget,
                         testing::Values(Overflow::fail, Overflow::wait, Overflow::evict,
                                         Overflow::spill),
                         [](const auto& one) { return std::string(name(one.param)); });

}  // namespace
}  // namespace tern
