#include "coherence/asked_eviction.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/pressed.hpp"
#include "tern/buffer/growing_array.hpp"
#include "tern/memory/shared_budget.hpp"

namespace tern {
namespace {

using test::pressed_bytes;

class AskedEviction : public test::Pressed {
 protected:
  AskedEviction() : Pressed(8) {}
};

TEST_F(AskedEviction, EvictsStaleThenCleanThenDirtyCopies) {
  const UnifiedBuffer<int> written = dirty(), both = clean(), old = stale();
  s.synchronize();
  EXPECT_EQ(evict_for_others(*budget, 1, Overflow::spill), pressed_bytes);
  EXPECT_FALSE(is_there(old));
  EXPECT_EQ(evict_for_others(*budget, pressed_bytes, Overflow::spill), pressed_bytes);
  EXPECT_FALSE(is_there(both));
  EXPECT_EQ(evict_for_others(*budget, 100 * pressed_bytes, Overflow::spill), pressed_bytes);
  EXPECT_FALSE(is_there(written));
  EXPECT_EQ(evict_for_others(*budget, 1, Overflow::spill), 0u);
  EXPECT_EQ(written.read_host()[0], 7);
  EXPECT_EQ(both.read_host()[1], 2);
  EXPECT_EQ(old.read_host()[0], 5);
}

TEST_F(AskedEviction, KeepsDirtyCopiesWithoutTheRightToWriteThemBack) {
  const UnifiedBuffer<int> written = dirty(), both = clean();
  s.synchronize();
  EXPECT_EQ(evict_for_others(*budget, 100 * pressed_bytes, Overflow::evict), pressed_bytes);
  EXPECT_TRUE(is_there(written));
  EXPECT_FALSE(is_there(both));
}

TEST_F(AskedEviction, ObeysTheBudgetOfACopy) {
  const BudgetHandle strict = test::limited(8 * pressed_bytes, "strict", {}, Overflow::wait);
  const ResourceHandle other = std::make_shared<BudgetResource>(pool, strict);
  UnifiedBuffer<int> both(Shape{test::pressed_ints}, {.device = device, .resources = {other}});
  both.copy_from(test::counting(test::pressed_ints));
  both.prefetch(s);
  s.synchronize();
  EXPECT_EQ(evict_for_others(*strict, SIZE_MAX, Overflow::spill), 0u);
  EXPECT_TRUE(is_there(both));
}

TEST_F(AskedEviction, LetsAGrowingArrayOfTheBudgetGrow) {
  const std::size_t page = device.info().page_bytes;
  const BudgetHandle tight = test::limited(2 * page);
  UnifiedBuffer<int> both(
      Shape{page / sizeof(int)},
      {.device = device, .resources = {std::make_shared<BudgetResource>(pool, tight)}});
  both.copy_from(test::counting(page / sizeof(int)));
  both.prefetch(s);
  auto array = GrowingArray<int>::make(device, {.budget = tight});
  test::refused(array.try_resize(page, s), ErrorCode::out_of_budget);  // too large for the budget
  EXPECT_TRUE(is_there(both));
  array.resize(2 * page / sizeof(int), s);
  EXPECT_FALSE(is_there(both));
  EXPECT_EQ(tight->charged_bytes(), 2 * page);
  EXPECT_EQ(both.read_host()[1], 2);
}

TEST_F(AskedEviction, SparesLeasedCopiesAndThoseOfOtherBudgets) {
  const UnifiedBuffer<int> leased = clean(), other = clean();
  const DeviceLease<const int> lease = leased.read_device(s);
  EXPECT_EQ(evict_for_others(*test::limited(1), SIZE_MAX, Overflow::spill), 0u);
  EXPECT_EQ(evict_for_others(*budget, SIZE_MAX, Overflow::spill), pressed_bytes);
  EXPECT_TRUE(is_there(leased));
  EXPECT_FALSE(is_there(other));
}

TEST_F(AskedEviction, AnAskedTenantEvictsCopiesAndTrimsItsPool) {
  const std::string name = "tern-asked-" + std::to_string(getpid());
  const SharedBudgetHandle a =
      SharedBudget::join(name, {.tenant = "a", .limit = BudgetLimit::bytes(8 * pressed_bytes)});
  const SharedBudgetHandle b = SharedBudget::join(name, {.tenant = "b"});
  const auto own_pool = std::make_shared<PoolResource>(device);
  const ResourceHandle own = std::make_shared<BudgetResource>(
      own_pool, Budget::make("root", BudgetLimit::unlimited(), {.shared = a}));
  const UnifiedOptions in_own = {.device = device, .resources = {own}};
  std::vector<UnifiedBuffer<int>> clean_ones, dirty_ones;
  for (int i = 0; i < 6; ++i) {
    UnifiedBuffer<int> made(Shape{test::pressed_ints}, in_own);
    made.copy_from(test::counting(test::pressed_ints));
    made.prefetch(s);
    clean_ones.push_back(std::move(made));
  }
  for (int i = 0; i < 2; ++i) {
    UnifiedBuffer<int> made(Shape{test::pressed_ints}, in_own);
    test::write_on_device(made, s, 9);
    dirty_ones.push_back(std::move(made));
  }
  s.synchronize();
  const BudgetHandle root_b = Budget::make("b", BudgetLimit::unlimited(), {.shared = b});
  EXPECT_FALSE(root_b->try_charge(4 * pressed_bytes));
  const std::size_t held = own_pool->statistics().reserved_bytes;
  EXPECT_GT(held, 0u);

  b->ask("a", 4 * pressed_bytes);
  const SharedAnswer first = a->answer_requests();
  EXPECT_EQ(first.evicted_bytes, 4 * pressed_bytes);
  EXPECT_EQ(since().on_device(Eviction::clean).copies, 4u);
  EXPECT_EQ(b->charged_bytes(), 4 * pressed_bytes);
  EXPECT_TRUE(root_b->try_charge(4 * pressed_bytes));

  // An answer within an allocation evicts what is clean, and writes nothing back.
  b->ask("a", 100 * pressed_bytes);
  own->deallocate(own->allocate({.bytes = 1, .wait = Wait::never}), {});
  EXPECT_EQ(since().on_device(Eviction::clean).copies, 6u);
  EXPECT_EQ(since().on_device(Eviction::dirty).copies, 0u);

  b->ask("a", 100 * pressed_bytes);
  const SharedAnswer last = a->answer_requests();
  EXPECT_EQ(last.evicted_bytes, 2 * pressed_bytes);
  EXPECT_EQ(since().on_device(Eviction::dirty).copies, 2u);
  const SharedTenant told = b->state().tenants.at(0);
  EXPECT_EQ(told.name, "a");
  EXPECT_EQ(told.answers, 3u);
  EXPECT_EQ(told.evicted_bytes, 8 * pressed_bytes);
  EXPECT_EQ(told.asked_bytes, 0u);
  for (const UnifiedBuffer<int>& one : clean_ones) EXPECT_EQ(one.read_host()[2], 3);
  for (const UnifiedBuffer<int>& one : dirty_ones) EXPECT_EQ(one.read_host()[2], 9);
}

TEST_F(AskedEviction, ARequestAtASharedLimitEvictsItsOwnCopies) {
  const std::string name = "tern-asked-" + std::to_string(getpid());
  const SharedBudgetHandle a =
      SharedBudget::join(name, {.tenant = "a", .limit = BudgetLimit::bytes(4 * pressed_bytes)});
  const SharedBudgetHandle b = SharedBudget::join(name, {.tenant = "b"});
  const BudgetHandle root = Budget::make("root", BudgetLimit::unlimited(), {.shared = a});
  const ResourceHandle own = std::make_shared<BudgetResource>(pool, root);
  const UnifiedOptions in_own = {.device = device, .resources = {own}};
  std::vector<UnifiedBuffer<int>> all;
  for (int i = 0; i < 8; ++i) {
    all.emplace_back(Shape{test::pressed_ints}, in_own);
    test::write_on_device(all.back(), s, i);
    EXPECT_LE(b->charged_bytes(), 4 * pressed_bytes);
  }
  EXPECT_EQ(since().on_device(Eviction::dirty).copies, 4u);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(all[static_cast<std::size_t>(i)].read_host()[0], i);

  // A request that does not fit beside the other tenant evicts nothing.
  all.erase(all.begin() + 5, all.end());
  ASSERT_TRUE(root->try_wait_for_pending());
  EXPECT_EQ(b->charged_bytes(), pressed_bytes);
  const BudgetHandle root_b = Budget::make("b", BudgetLimit::unlimited(), {.shared = b});
  const Charge others = root_b->charge(3 * pressed_bytes);
  const std::uint64_t evictions = since().evicted().copies;
  UnifiedBuffer<int> large(Shape{4 * test::pressed_ints}, in_own);
  const auto lease = large.try_discard_device(s);
  ASSERT_FALSE(lease);
  EXPECT_EQ(lease.failure().code(), ErrorCode::out_of_budget);
  EXPECT_EQ(lease.failure().number("hopeless"), 1u);
  EXPECT_EQ(since().evicted().copies, evictions);
}

TEST_F(AskedEviction, GivesTheMemoryOfEvictedCopiesToTheDriver) {
  const std::string name = "tern-asked-" + std::to_string(getpid());
  const SharedBudgetHandle a =
      SharedBudget::join(name, {.tenant = "a", .limit = BudgetLimit::bytes(gib)});
  const auto own_pool = std::make_shared<PoolResource>(device);
  const ResourceHandle own = std::make_shared<BudgetResource>(
      own_pool, Budget::make("root", BudgetLimit::unlimited(), {.shared = a}));
  UnifiedBuffer<int> large(Shape{std::size_t{1} << 20}, {.device = device, .resources = {own}});
  large.copy_from(test::counting(std::size_t{1} << 20));
  large.prefetch(s);
  s.synchronize();
  const std::size_t held = own_pool->statistics().reserved_bytes;
  EXPECT_GE(held, 4 * mib);
  a->ask("a", 1);
  const SharedAnswer answer = a->answer_requests();
  EXPECT_EQ(answer.evicted_bytes, 4 * mib);
  EXPECT_EQ(answer.trimmed_bytes, held);
  EXPECT_EQ(own_pool->statistics().reserved_bytes, 0u);
  EXPECT_EQ(a->charged_bytes(), 0u);
}

}  // namespace
}  // namespace tern
