// A budget over a pool bounds what the pool holds from the driver, not only what is live.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "support/budgets.hpp"
#include "support/forked_child.hpp"
#include "support/thorough.hpp"
#include "support/thread.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/bytes.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/fault_resource.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {
namespace {

using test::expect_sound;
using test::limited;

constexpr std::size_t page_bytes = 2 * mib, segment_bytes = 64 * mib;

class BudgetHeld : public testing::Test {
 protected:
  ~BudgetHeld() override { EXPECT_TRUE(sim::findings(device).empty()); }

  std::shared_ptr<BudgetResource> over(const BudgetHandle& budget) {
    return std::make_shared<BudgetResource>(pool, budget);
  }
  [[nodiscard]] PoolStatistics now() const { return pool->pool_statistics(); }
  /// Leaves `bytes` free in the pool, in one block.
  static void leave_free(Resource& resource, std::size_t bytes) {
    resource.deallocate(resource.allocate({.bytes = bytes}), {});
  }

  Device device = sim::open({.policy = sim::Policy::lazy, .memory_bytes = 1024 * mib});
  Stream stream{device}, other{device};
  std::shared_ptr<PoolResource> pool = std::make_shared<PoolResource>(device);
};

// Every step frees what the last one had. The sizes differ, so no freed block serves the next
// request as it is.
TEST_F(BudgetHeld, HoldsNoMoreThanTheLimitHoweverSizesChange) {
  const auto resource = over(limited(64 * mib));
  for (std::size_t step = 0; step < 40; ++step) {
    const std::size_t bytes = (4 + step % 7 * 4) * mib;
    std::vector<Block> blocks;
    for (std::size_t used = 0; used + bytes <= 64 * mib; used += bytes) {
      blocks.push_back(resource->allocate({.bytes = bytes, .stream = stream}));
      ASSERT_LE(now().held_bytes, 64 * mib);
    }
    for (const Block& block : blocks) resource->deallocate(block, stream);
    device.synchronize();
  }
  EXPECT_EQ(now().peak_held_bytes, 64 * mib);
  EXPECT_GT(now().pages_moved, 0u);
}

TEST_F(BudgetHeld, HoldsWholePages) {
  const auto resource = over(limited(3 * mib));
  EXPECT_EQ(now().limit_bytes, 2 * page_bytes);
  const Block large = resource->allocate({.bytes = 5 * mib / 2});
  const Block small = resource->allocate({.bytes = mib / 2});
  EXPECT_EQ(now().held_bytes, 2 * page_bytes);
  resource->deallocate(large, {});
  resource->deallocate(small, {});
  const auto none = over(limited(0));
  EXPECT_EQ(now().limit_bytes, 2 * page_bytes);
}

TEST_F(BudgetHeld, HoldsWholeSegments) {
  pool = std::make_shared<PoolResource>(device, PoolOptions{.backing = PoolBacking::segments});
  const auto resource = over(limited(100 * mib));
  EXPECT_EQ(now().limit_bytes, 2 * segment_bytes);
  leave_free(*resource, 80 * mib);
  leave_free(*resource, 90 * mib);
  leave_free(*resource, 20 * mib);
  leave_free(*resource, 100 * mib);
  EXPECT_LE(now().peak_held_bytes, 2 * segment_bytes);
}

TEST_F(BudgetHeld, AddsTheLimitsOfBudgetsThatShareThePool) {
  const BudgetHandle first = limited(32 * mib, "first");
  auto one = over(first);
  auto again = over(first);
  EXPECT_EQ(now().limit_bytes, 32 * mib);
  auto two = over(limited(16 * mib, "second"));
  EXPECT_EQ(now().limit_bytes, 48 * mib);
  const Block a = one->allocate({.bytes = 32 * mib}), b = two->allocate({.bytes = 16 * mib});
  EXPECT_EQ(now().held_bytes, 48 * mib);
  one->deallocate(a, {});
  two->deallocate(b, {});
  again.reset();
  EXPECT_EQ(now().limit_bytes, 48 * mib);
  one.reset();
  EXPECT_EQ(now().limit_bytes, 16 * mib);
  EXPECT_LE(now().held_bytes, 16 * mib);
  two.reset();
  EXPECT_EQ(now().limit_bytes, 0u);
}

TEST_F(BudgetHeld, AppliesTheLimitsAboveToTheSum) {
  const BudgetHandle root = limited(40 * mib, "root");
  const auto one = over(limited(32 * mib, "one", root)), two = over(limited(32 * mib, "two", root));
  EXPECT_EQ(now().limit_bytes, 40 * mib);
  leave_free(*one, 32 * mib);
  leave_free(*two, 20 * mib);
  leave_free(*two, 30 * mib);
  EXPECT_LE(now().peak_held_bytes, 40 * mib);
  root->set_limit(BudgetLimit::bytes(24 * mib));
  EXPECT_EQ(now().limit_bytes, 24 * mib);
  EXPECT_LE(now().held_bytes, 24 * mib);
}

TEST_F(BudgetHeld, ReturnsMemoryIfTheLimitIsLowered) {
  const BudgetHandle budget = limited(64 * mib);
  const auto resource = over(budget);
  const Block kept = resource->allocate({.bytes = 20 * mib});
  leave_free(*resource, 40 * mib);
  ASSERT_GE(now().held_bytes, 60 * mib);
  budget->set_limit(BudgetLimit::bytes(16 * mib));
  EXPECT_EQ(now().held_bytes, 20 * mib);  // a block is in use
  resource->deallocate(kept, {});
  EXPECT_LE(now().held_bytes, 16 * mib);
  budget->set_limit(BudgetLimit::bytes(128 * mib));
  leave_free(*resource, 100 * mib);
  EXPECT_GE(now().held_bytes, 100 * mib);
  budget->set_limit(BudgetLimit::unlimited());
  EXPECT_EQ(now().limit_bytes, 0u);
}

TEST_F(BudgetHeld, ReturnsWhatAPoolHeldBefore) {
  leave_free(*pool, 100 * mib);
  const auto resource = over(limited(32 * mib));
  EXPECT_LE(now().held_bytes, 32 * mib);
}

TEST_F(BudgetHeld, LeavesThePoolAloneIfItCountsLiveBytesOnly) {
  const BudgetHandle budget = Budget::make("live", BudgetLimit::bytes(32 * mib),
                                           {.overflow = Overflow::fail, .bounds_held = false});
  EXPECT_FALSE(budget->bounds_held());
  leave_free(*pool, 100 * mib);
  const auto resource = over(budget);
  EXPECT_EQ(now().limit_bytes, 0u);
  EXPECT_EQ(now().held_bytes, 100 * mib);
  EXPECT_FALSE(resource->try_allocate({.bytes = 33 * mib}));
}

TEST_F(BudgetHeld, DoesNotBoundAPoolThatIsAlsoUsedDirectly) {
  auto resource = over(limited(8 * mib));
  EXPECT_EQ(now().limit_bytes, 8 * mib);
  const Block block = pool->allocate({.bytes = 100 * mib, .stream = stream});
  EXPECT_EQ(now().limit_bytes, 0u);
  resource->deallocate(resource->allocate({.bytes = 8 * mib}), {});
  EXPECT_EQ(now().limit_bytes, 0u);
  pool->deallocate(block, stream);
  // The bound is back with the next budget.
  device.synchronize();
  resource.reset();
  resource = over(limited(8 * mib));
  EXPECT_EQ(now().limit_bytes, 8 * mib);
  EXPECT_LE(now().held_bytes, 8 * mib);
}

TEST_F(BudgetHeld, KeepsTheSmallerLimitOfPoolAndBudget) {
  const auto resource = over(limited(32 * mib));
  pool->set_limit(16 * mib);
  EXPECT_EQ(now().limit_bytes, 16 * mib);
  EXPECT_FALSE(resource->try_allocate({.bytes = 20 * mib}));
  pool->set_limit(64 * mib);
  EXPECT_EQ(now().limit_bytes, 32 * mib);
  pool->set_limit(0);
  EXPECT_EQ(now().limit_bytes, 32 * mib);
}

TEST_F(BudgetHeld, BoundsThePoolThroughOtherWrappers) {
  const auto faulty = std::make_shared<FaultResource>(pool);
  BudgetResource resource(faulty, limited(8 * mib));
  EXPECT_EQ(now().limit_bytes, 8 * mib);
  leave_free(resource, 8 * mib);
  leave_free(resource, 5 * mib);
  EXPECT_EQ(now().limit_bytes, 8 * mib);
  const auto nearest = over(limited(16 * mib));
  const BudgetResource outer(nearest, limited(4 * mib));
  EXPECT_EQ(now().limit_bytes, 24 * mib);
}

TEST_F(BudgetHeld, MeansNothingAboveTheMemoryOfTheDevice) {
  const auto resource = over(Budget::make("large", BudgetLimit::bytes(2048 * mib)));
  EXPECT_EQ(now().limit_bytes, 0u);
}

// A thread that does not exist in the child may hold locks.
TEST_F(BudgetHeld, NeedsNoLockInAForkedChild) {
  if (test::is_sanitized) GTEST_SKIP() << "forks of several threads";
  const BudgetHandle budget = limited(64 * mib);
  const auto resource = over(budget);
  std::atomic<bool> is_over = false;
  test::Thread thread([&] {
    while (!is_over) budget->set_limit(BudgetLimit::bytes(64 * mib));
  });
  int answered = 0;
  for (; answered < 50; ++answered) {
    const int child = test::in_a_forked_child([&] {
      budget->set_limit(BudgetLimit::bytes(mib));
      return budget->limit_bytes() == mib;
    });
    if (child != 0) break;
  }
  is_over = true;
  thread.join();
  EXPECT_EQ(answered, 50);
}

// --- Random programs

struct World {
  PoolOptions options = {};
  std::size_t unit_bytes = page_bytes;
  std::size_t root_bytes = 40 * mib;
  unsigned size_bits = 23;
  std::uint64_t seed = 1;
};

/// Two tenants of one tree and a third tenant over one pool, on three streams. The model is a map
/// of what is live; what is held is compared with the limits after every operation.
class Program {
 public:
  explicit Program(const World& world)
      : world_(world),
        random_(world.seed),
        device_(
            sim::open({.seed = world.seed, .policy = sim::Policy::lazy, .memory_bytes = 4 * gib})),
        pool_(std::make_shared<PoolResource>(device_, world.options)) {
    for (int i = 0; i < 3; ++i) streams_.emplace_back(device_);
    const BudgetHandle root = limited(world_.root_bytes, "root", {}, Overflow::wait);
    add(limited(world_.root_bytes / 4 * 3, "one", root, Overflow::wait));
    add(limited(world_.root_bytes / 2, "two", root, Overflow::wait));
    add(limited(world_.root_bytes / 4, "three", {}, Overflow::wait));
    budgets_.push_back(root);
  }
  ~Program() { EXPECT_TRUE(sim::findings(device_).empty()); }

  void run(int operations) {
    for (int i = 0; i < operations && !testing::Test::HasFailure(); ++i) {
      const std::size_t before = pool_->pool_statistics().held_bytes;
      excess_bytes_ = 0;
      operate();
      const std::size_t held = pool_->pool_statistics().held_bytes;
      EXPECT_LE(held, std::max(bound(), before) + excess_bytes_)
          << "operation " << i << ", seed " << world_.seed;
      if (i % 64 == 0) compare();
    }
    while (!live_.empty()) free_one();
    device_.synchronize();
    compare();
    pool_->poll();
    EXPECT_LE(pool_->pool_statistics().held_bytes, bound());
    EXPECT_LE(pool_->pool_statistics().peak_held_bytes, max_bound_ + max_bound_ / 2);
    EXPECT_TRUE(pool_->check_invariants());
  }

  [[nodiscard]] PoolStatistics statistics() const { return pool_->pool_statistics(); }
  [[nodiscard]] std::size_t max_bound() const { return max_bound_; }
  int served = 0, over_budget = 0, in_pieces = 0;

 private:
  struct Live {
    std::size_t tenant = 0;
    Block block = {};
    StreamRef stream = {};
  };

  void add(const BudgetHandle& budget) {
    budgets_.push_back(budget);
    tenants_.push_back(std::make_unique<BudgetResource>(pool_, budget));
  }
  std::uint64_t roll(std::uint64_t sides) { return random_() % sides; }
  std::size_t size() {
    const std::size_t top = std::size_t{1} << (10 + roll(world_.size_bits - 9));
    return 1 + roll(top);
  }
  /// What the pool may hold, by the rule of the guide.
  std::size_t bound() {
    const auto limit = [&](int i) { return budgets_[static_cast<std::size_t>(i)]->limit_bytes(); };
    const std::size_t tree = std::min(limit(3), limit(0) + limit(1));
    const std::size_t all = tree + limit(2);
    const std::size_t bytes = (all + world_.unit_bytes - 1) / world_.unit_bytes * world_.unit_bytes;
    max_bound_ = std::max(max_bound_, bytes);
    return bytes;
  }
  std::size_t live_bytes(const Budget* budget) const {
    std::size_t sum = 0;
    for (const Live& one : live_) {
      const Budget* own = budgets_[one.tenant].get();
      if (own == budget || own->parent().get() == budget) sum += one.block.bytes;
    }
    return sum;
  }
  bool fits(std::size_t tenant, std::size_t bytes) const {
    for (const Budget* level = budgets_[tenant].get(); level != nullptr;
         level = level->parent().get()) {
      if (live_bytes(level) + bytes > level->limit_bytes()) return false;
    }
    return true;
  }
  void operate() {
    const std::uint64_t what = roll(100);
    if (what < 50) return allocate();
    if (what < 90) return free_one();
    if (what < 96) return device_.synchronize();
    if (what < 98) return static_cast<void>(pool_->poll());
    const std::size_t which = roll(budgets_.size());
    const std::size_t part = world_.root_bytes / 4 * (which == 3 ? 4 : 3 - which);
    budgets_[which]->set_limit(BudgetLimit::bytes(part / 2 + roll(part / 2)));
  }
  void allocate() {
    const std::size_t tenant = roll(tenants_.size());
    Request request{.bytes = size()};
    if (roll(8) != 0) request.stream = streams_[roll(streams_.size())];
    BudgetResource& from = *tenants_[tenant];
    const std::size_t bytes = from.good_size(request);
    const bool may = fits(tenant, bytes);
    const PoolStatistics before = pool_->pool_statistics();
    const std::size_t largest = pool_->fragmentation().largest_satisfiable;
    const Result<Block> block = from.try_allocate(request);
    if (block) {
      EXPECT_TRUE(may);
      ++served;
      const std::size_t held = pool_->pool_statistics().held_bytes;
      if (held > std::max(bound(), before.held_bytes)) {
        // Only if the memory under the limits is in pieces, and by no more than the block needs.
        ++in_pieces;
        excess_bytes_ = (bytes + world_.unit_bytes - 1) / world_.unit_bytes * world_.unit_bytes;
        // What streams still use or keep may not be free in time.
        if (before.in_flight_bytes + before.cached_bytes == 0) {
          EXPECT_LT(largest, bytes);
        }
      }
      live_.push_back({tenant, *block, request.stream});
      if (request.stream.id()) request.stream.fill(static_cast<std::byte*>(block->address), 16, {});
      return;
    }
    // What the budgets admit is served.
    EXPECT_EQ(block.failure().code(), ErrorCode::out_of_budget) << block.failure().text();
    EXPECT_FALSE(may) << block.failure().text();
    ++over_budget;
  }
  void free_one() {
    if (live_.empty()) return;
    const std::size_t index = roll(live_.size());
    const Live one = live_[index];
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
    tenants_[one.tenant]->deallocate(one.block, one.stream);
  }
  void compare() {
    for (const BudgetHandle& budget : budgets_) {
      EXPECT_TRUE(budget->try_wait_for_pending());
      EXPECT_EQ(budget->charged_bytes(), live_bytes(budget.get())) << budget->path();
      expect_sound(*budget);
    }
  }

  World world_;
  std::mt19937_64 random_;
  Device device_;
  std::vector<Stream> streams_;
  std::shared_ptr<PoolResource> pool_;
  std::vector<BudgetHandle> budgets_;  // one, two, three, root
  std::vector<std::unique_ptr<BudgetResource>> tenants_;
  std::vector<Live> live_;
  std::size_t max_bound_ = 0;
  std::size_t excess_bytes_ = 0;  // that the last operation may hold above the bound
};

void run_worlds(World world) {
  const int operations = test::in_full() ? 100'000 : 2'000;
  int served = 0, over_budget = 0, in_pieces = 0;
  std::size_t peak = 0, max_bound = 0;
  for (world.seed = 1; world.seed <= 6; ++world.seed) {
    Program program(world);
    program.run(operations);
    served += program.served;
    over_budget += program.over_budget;
    in_pieces += program.in_pieces;
    peak = std::max(peak, program.statistics().peak_held_bytes);
    max_bound = std::max(max_bound, program.max_bound());
    if (testing::Test::HasFailure()) return;
  }
  // The programs reach the limits, and memory in pieces is rare.
  EXPECT_GT(served, 6 * operations / 4);
  EXPECT_GT(over_budget, 100);
  EXPECT_GT(peak, max_bound / 4 * 3);
  EXPECT_LT(in_pieces, served / 20) << fmt::format("{} of {}", in_pieces, served);
}

TEST(BudgetHeldModel, HoldsWhatTheLimitsAllowInPages) { run_worlds({}); }

TEST(BudgetHeldModel, HoldsWhatTheLimitsAllowInSegments) {
  run_worlds({.options = {.backing = PoolBacking::segments},
              .unit_bytes = segment_bytes,
              .root_bytes = 400 * mib,
              .size_bits = 27});
}

TEST(BudgetHeldModel, HoldsWhatTheLimitsAllowInPinnedMemory) {
  run_worlds({.options = {.kind = MemoryKind::pinned},
              .unit_bytes = segment_bytes,
              .root_bytes = 400 * mib,
              .size_bits = 27});
}

}  // namespace
}  // namespace tern
