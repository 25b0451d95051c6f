#include "tern/memory/shared_budget.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "memory/shared_segment.hpp"
#include "support/budgets.hpp"
#include "support/forked_child.hpp"
#include "support/thorough.hpp"
#include "support/thread.hpp"
#include "tern/backends/sim.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {
namespace {

using test::limited;

/// The memory of a shared budget, as a tenant of another process would see it.
class Intruder {
 public:
  explicit Intruder(std::string_view name)
      : segment_(SharedSegment::try_join({.name = name, .tenant = "intruder"}).value()) {}

  [[nodiscard]] std::uint64_t claims() const { return segment_->header().claims.load(); }
  /// Locks as a process that is alive and does not unlock.
  void lock() const {
    segment_->header().lock.store((segment_->slot() + 1) | segment_->own().generation.load() << 8);
  }
  void unlock() const { segment_->header().lock.store(0); }

 private:
  std::unique_ptr<SharedSegment> segment_;
};

/// Has a name that no other test process uses.
class SharedBudgetTest : public testing::Test {
 protected:
  [[nodiscard]] SharedBudgetHandle join(std::string_view tenant, std::size_t limit = 1000) const {
    return SharedBudget::join(name, {.tenant = tenant, .limit = BudgetLimit::bytes(limit)});
  }
  [[nodiscard]] static BudgetHandle root_of(const SharedBudgetHandle& shared) {
    return Budget::make("root", BudgetLimit::unlimited(), {.shared = shared});
  }
  [[nodiscard]] SharedTenant tenant(const std::string& which) const {
    for (SharedTenant& one : SharedBudget::inspect(name).tenants) {
      if (one.name == which) return one;
    }
    ADD_FAILURE() << "no tenant " << which;
    return {};
  }
  void TearDown() override {
    const std::string path =
        "/dev/shm/tern-budget-" + std::to_string(geteuid()) + "-" + name;
    EXPECT_FALSE(std::filesystem::exists(path)) << "the last tenant has not deleted the file";
    unlink(path.c_str());
  }

  const std::string name = "tern-test-" + std::to_string(getpid());
};

TEST_F(SharedBudgetTest, CountsWhatTheRootsOfItsTenantsCharge) {
  const SharedBudgetHandle a = join("a"), b = join("b", 5);
  const BudgetHandle root_a = root_of(a), root_b = root_of(b);
  const Charge most = root_a->charge(600);
  EXPECT_EQ(a->charged_bytes(), 600u);
  EXPECT_EQ(a->tenant_charged_bytes(), 600u);
  EXPECT_EQ(b->tenant_charged_bytes(), 0u);
  EXPECT_EQ(b->remaining_bytes(), 400u);
  EXPECT_EQ(root_b->remaining_bytes(), 400u);
  EXPECT_TRUE(root_b->would_fit(400));
  EXPECT_FALSE(root_b->would_fit(401));
  {
    const Charge rest = root_b->charge(400);
    EXPECT_EQ(a->charged_bytes(), 1000u);
    EXPECT_FALSE(root_a->try_charge(1));
  }
  EXPECT_TRUE(root_a->try_charge(400));
  EXPECT_EQ(a->charged_bytes(), 600u);
  EXPECT_EQ(a->state().peak_bytes, 1000u);
  test::expect_sound(*root_a);
  test::expect_sound(*root_b);
}

TEST_F(SharedBudgetTest, NamesTheLargestTenantsInARefusal) {
  const SharedBudgetHandle a = join("trainer", 1024), b = join("server", 1024);
  const BudgetHandle root_a = root_of(a), root_b = root_of(b);
  const Charge most = root_a->charge(768), some = root_b->charge(100);
  const Result<Charge> more = root_b->try_charge(512, "batch");
  ASSERT_FALSE(more);
  const Failure& failure = more.failure();
  EXPECT_EQ(failure.code(), ErrorCode::out_of_budget);
  const std::string pid = std::to_string(getpid());
  EXPECT_EQ(failure.text(), "shared budget '" + name +
                                "' cannot hold 512 B more for tenant 'server': 868 B of 1.0 KiB in "
                                "use. Largest tenants: trainer 768 B (pid " +
                                pid + "), server 100 B (pid " + pid +
                                "). Ask one to shrink, free something, or raise the limit by 356 "
                                "B.");
  EXPECT_EQ(failure.string("layer"), "root");
  EXPECT_EQ(failure.string("shared"), name);
  EXPECT_EQ(failure.string("tag"), "batch");
  EXPECT_EQ(failure.number("limit"), 1024u);
  EXPECT_EQ(failure.number("current"), 868u);
  EXPECT_EQ(failure.number("own"), 100u);
  EXPECT_EQ(failure.number("remaining"), 156u);
  EXPECT_EQ(failure.number("missing"), 356u);
  EXPECT_EQ(failure.number("fits_after_pending"), 0u);
  EXPECT_EQ(root_b->charged_bytes(), 100u);
  EXPECT_EQ(b->tenant_charged_bytes(), 100u);
}

TEST_F(SharedBudgetTest, SaysWhichLimitARequestExceeds) {
  const SharedBudgetHandle a =
      SharedBudget::join(name, {.tenant = "a",
                                .limit = BudgetLimit::bytes(1000),
                                .tenant_limit = BudgetLimit::bytes(300)});
  const BudgetHandle root = root_of(a);
  EXPECT_EQ(root->try_charge(301).failure().text(),
            "tenant 'a' of shared budget '" + name +
                "' cannot hold 301 B: the request exceeds its limit of 300 B by 1 B. Ask for less, "
                "or raise the limit of the tenant.");
  const Charge most = root->charge(200);
  EXPECT_EQ(root->try_charge(101).failure().text(),
            "tenant 'a' of shared budget '" + name +
                "' cannot hold 101 B more: 200 B of its limit of 300 B in use. Free something, or "
                "raise the limit of the tenant by 1 B.");
  a->set_tenant_limit("a", BudgetLimit::unlimited());
  EXPECT_EQ(root->try_charge(1001).failure().text(),
            "shared budget '" + name +
                "' cannot hold 1001 B: the request exceeds its limit of 1000 B by 1 B, even if all "
                "tenants free everything. Ask for less, or raise the limit.");
  // The limit of the root itself is checked first.
  const BudgetHandle small = Budget::make("small", BudgetLimit::bytes(10), {.shared = a});
  EXPECT_EQ(small->try_charge(11).failure().string("layer"), "small");
  EXPECT_FALSE(small->try_charge(11).failure().string("shared"));
  EXPECT_EQ(a->charged_bytes(), 200u);
}

TEST_F(SharedBudgetTest, FollowsItsLimits) {
  const SharedBudgetHandle a = join("a"), b = join("b");
  const BudgetHandle root = root_of(a);
  b->set_limit(BudgetLimit::bytes(10));
  EXPECT_EQ(a->limit_bytes(), 10u);
  EXPECT_FALSE(root->try_charge(11));
  b->set_limit(BudgetLimit::unlimited());
  b->set_tenant_limit("a", BudgetLimit::bytes(20));
  EXPECT_EQ(a->tenant_limit_bytes(), 20u);
  EXPECT_FALSE(root->try_charge(21));
  EXPECT_TRUE(root->try_charge(20));
  EXPECT_THROW(b->set_tenant_limit("c", BudgetLimit::bytes(1)), NotFound);
}

TEST_F(SharedBudgetTest, BelongsToARoot) {
  const SharedBudgetHandle a = join("a");
  const BudgetHandle root = root_of(a);
  EXPECT_THROW(static_cast<void>(Budget::make("child", BudgetLimit::unlimited(),
                                              {.parent = root, .shared = a})),
               InvalidArgument);
  const BudgetHandle child = limited(500, "child", root);
  EXPECT_EQ(child->shared(), a);
  EXPECT_FALSE(root->has_limit());
  EXPECT_TRUE(root->try_reserve(1));  // the shared budget has a limit
  const Charge charge = child->charge(400);
  EXPECT_EQ(a->charged_bytes(), 400u);
  const Reservation reserved = child->reserve(100);
  EXPECT_EQ(a->charged_bytes(), 500u);
  EXPECT_FALSE(child->try_charge(1));  // refused below: nothing stays claimed above
  EXPECT_EQ(a->charged_bytes(), 500u);
}

TEST_F(SharedBudgetTest, BlocksAndReservationsAreChargedWhileTheyLive) {
  const SharedBudgetHandle a = join("a", 4 * mib), b = join("b", 0);
  const Device device = sim::open({.memory_bytes = 64 * mib});
  Stream stream(device);
  {
    const BudgetHandle root = root_of(a);
    BudgetResource resource(std::make_shared<DirectResource>(device), root);
    Reservation reserved = root->reserve(mib);
    EXPECT_EQ(b->charged_bytes(), mib);
    const Block one = resource.allocate({.bytes = 1024, .reservation = &reserved});
    const Block two = resource.allocate({.bytes = 2 * mib});
    EXPECT_EQ(b->charged_bytes(), 3 * mib);
    EXPECT_EQ(resource.try_allocate({.bytes = 2 * mib}).failure().code(),
              ErrorCode::out_of_budget);
    resource.deallocate(two, {});
    reserved = {};
    EXPECT_EQ(b->charged_bytes(), 1024u);
    resource.deallocate(one, {});
    EXPECT_EQ(b->charged_bytes(), 0u);
  }
  EXPECT_EQ(b->charged_bytes(), 0u);
}

TEST_F(SharedBudgetTest, NoPendingFreeOutlivesItsRoot) {
  const SharedBudgetHandle a = join("a", gib);
  const Device device = sim::open({.memory_bytes = 64 * mib});
  Stream stream(device);
  {
    const BudgetHandle root = root_of(a);
    const auto pool = std::make_shared<PoolResource>(device);
    BudgetResource resource(pool, root);
    const Block block = resource.allocate({.bytes = 1024, .stream = stream});
    resource.deallocate(block, stream);
    EXPECT_EQ(root->pending_bytes(), block.bytes);
    EXPECT_EQ(a->charged_bytes(), block.bytes);
  }
  EXPECT_EQ(a->charged_bytes(), 0u);
}

TEST_F(SharedBudgetTest, RecycledMemoryKeepsItsCharge) {
  const SharedBudgetHandle a = join("a", gib);
  const Intruder probe(name);
  const Device device = sim::open({.memory_bytes = 64 * mib});
  Stream stream(device);
  const auto pool = std::make_shared<PoolResource>(device);
  BudgetResource resource(pool, root_of(a));
  const auto use_once = [&] {
    resource.deallocate(resource.allocate({.bytes = 1024, .stream = stream}), stream);
  };
  use_once();
  const std::uint64_t claims = probe.claims();
  for (int i = 0; i < 10; ++i) use_once();
  EXPECT_EQ(probe.claims(), claims);
}

TEST_F(SharedBudgetTest, BoundsWhatItsPoolsHold) {
  const SharedBudgetHandle a =
      SharedBudget::join(name, {.tenant = "a",
                                .limit = BudgetLimit::bytes(8 * mib),
                                .tenant_limit = BudgetLimit::bytes(4 * mib)});
  const auto pool = std::make_shared<PoolResource>(sim::open({.memory_bytes = 64 * mib}));
  const BudgetResource resource(pool, root_of(a));
  EXPECT_EQ(pool->pool_statistics().limit_bytes, 4 * mib);
  a->set_limit(BudgetLimit::bytes(2 * mib));
  EXPECT_EQ(pool->pool_statistics().limit_bytes, 2 * mib);
  const SharedBudgetHandle b = join("b");
  b->set_tenant_limit("a", BudgetLimit::unlimited());
  b->set_limit(BudgetLimit::bytes(6 * mib));
  b->ask("a", 1);
  a->answer_requests();
  EXPECT_EQ(pool->pool_statistics().limit_bytes, 6 * mib);
}

TEST_F(SharedBudgetTest, AForkedChildClaimsAndReleasesNothing) {
  if (!test::children_can_allocate) return;
  const SharedBudgetHandle a = join("a");
  const BudgetHandle root = root_of(a);
  std::optional<Charge> charge = root->charge(100);
  EXPECT_EQ(test::in_a_forked_child([&] {
              const bool is_refused = test::is_after_fork(root->try_charge(1));
              charge.reset();
              bool has_thrown = false;
              try {
                a->set_limit(BudgetLimit::bytes(1));
              } catch (const AfterFork&) {
                has_thrown = true;
              }
              return is_refused && has_thrown && a->collect() == 0 && !a->is_asked();
            }),
            0);
  EXPECT_EQ(a->charged_bytes(), 100u);
  EXPECT_EQ(a->limit_bytes(), 1000u);
}

TEST_F(SharedBudgetTest, AnAskedTenantTrimsItsPools) {
  const SharedBudgetHandle a = join("a", gib), b = join("b");
  const auto pool = std::make_shared<PoolResource>(sim::open({.memory_bytes = 64 * mib}));
  Stream stream(pool->device());
  const auto resource = std::make_shared<BudgetResource>(pool, root_of(a));
  resource->deallocate(resource->allocate({.bytes = 8 * mib, .stream = stream}), stream);
  stream.synchronize();
  const std::size_t held = pool->statistics().reserved_bytes;
  ASSERT_GE(held, 8 * mib);
  EXPECT_EQ(a->answer_requests().asked_bytes, 0u);
  EXPECT_EQ(pool->statistics().reserved_bytes, held);

  b->ask("a", mib);
  b->ask("a", mib);
  EXPECT_TRUE(a->is_asked());
  EXPECT_FALSE(b->is_asked());
  EXPECT_EQ(tenant("a").asked_bytes, 2 * mib);
  const SharedAnswer answer = a->answer_requests();
  EXPECT_EQ(answer.asked_bytes, 2 * mib);
  EXPECT_EQ(answer.trimmed_bytes, held);
  EXPECT_EQ(answer.evicted_bytes, 0u);
  EXPECT_EQ(pool->statistics().reserved_bytes, 0u);
  EXPECT_EQ(tenant("a").asked_bytes, 0u);
  EXPECT_EQ(tenant("a").answers, 1u);
  EXPECT_EQ(tenant("a").trimmed_bytes, held);
  EXPECT_EQ(a->charged_bytes(), 0u);
  EXPECT_THROW(b->ask("c", 1), NotFound);
}

TEST_F(SharedBudgetTest, AnAskedTenantAnswersWhenItAllocates) {
  const SharedBudgetHandle a = join("a", gib), b = join("b");
  const auto pool = std::make_shared<PoolResource>(sim::open({.memory_bytes = 64 * mib}));
  Stream stream(pool->device());
  const auto resource = std::make_shared<BudgetResource>(pool, root_of(a));
  resource->deallocate(resource->allocate({.bytes = 8 * mib, .stream = stream}), stream);
  stream.synchronize();
  b->ask("a", SIZE_MAX);
  b->ask("a", SIZE_MAX);
  EXPECT_EQ(tenant("a").asked_bytes, SIZE_MAX);
  const Block block = resource->allocate({.bytes = 1024});
  EXPECT_EQ(tenant("a").answers, 1u);
  EXPECT_GE(tenant("a").trimmed_bytes, 8 * mib);
  EXPECT_EQ(tenant("a").asked_bytes, 0u);
  resource->deallocate(block, {});
  b->ask("a", 1);
  EXPECT_TRUE(resource->budget()->try_charge(1));
  EXPECT_EQ(tenant("a").answers, 2u);
}

TEST_F(SharedBudgetTest, SaysWhichProcessBlocksIt) {
  const SharedBudgetHandle a = join("a");
  const BudgetHandle root = root_of(a);
  const Intruder other(name);
  other.lock();
  const Result<Charge> charge = root->try_charge(1);
  other.unlock();
  ASSERT_FALSE(charge);
  EXPECT_EQ(charge.failure().code(), ErrorCode::timeout);
  EXPECT_EQ(charge.failure().number("pid"), static_cast<std::uint64_t>(getpid()));
  EXPECT_EQ(root->charged_bytes(), 0u);
  EXPECT_TRUE(root->try_charge(1));
}

TEST_F(SharedBudgetTest, AgreesWithAModel) {
  const int programs = test::in_full() ? 2000 : 40;
  for (int seed = 0; seed < programs; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(static_cast<std::uint64_t>(seed));
    const auto up_to = [&](std::size_t most) { return static_cast<std::size_t>(random() % (most + 1)); };
    struct Tenant {
      SharedBudgetHandle handle;
      BudgetHandle root;
      std::vector<Charge> charges;
      std::size_t limit = 0, charged = 0, peak = 0;
    };
    std::size_t limit = up_to(1000), charged = 0, peak = 0;
    std::array<Tenant, 3> tenants;
    for (std::size_t i = 0; i < tenants.size(); ++i) {
      Tenant& one = tenants[i];
      one.limit = up_to(1000);
      one.handle = SharedBudget::join(name, {.tenant = std::string("t") + std::to_string(i),
                                             .limit = BudgetLimit::bytes(limit),
                                             .tenant_limit = BudgetLimit::bytes(one.limit)});
      one.root = root_of(one.handle);
    }
    for (int step = 0; step < 100; ++step) {
      Tenant& one = tenants[up_to(2)];
      switch (random() % 6) {
        case 0:
          one.limit = up_to(1000);
          tenants[up_to(2)].handle->set_tenant_limit(one.handle->tenant(),
                                                     BudgetLimit::bytes(one.limit));
          break;
        case 1:
          limit = up_to(1500);
          one.handle->set_limit(BudgetLimit::bytes(limit));
          break;
        case 2:
        case 3:
          if (one.charges.empty()) break;
          std::swap(one.charges[up_to(one.charges.size() - 1)], one.charges.back());
          one.charged -= one.charges.back().bytes();
          charged -= one.charges.back().bytes();
          one.charges.pop_back();
          break;
        default: {
          const std::size_t bytes = up_to(300);
          Result<Charge> charge = one.root->try_charge(bytes);
          const bool fits = charged + bytes <= limit && one.charged + bytes <= one.limit;
          ASSERT_EQ(static_cast<bool>(charge), fits);
          if (!fits) break;
          one.charges.push_back(std::move(*charge));
          one.charged += bytes;
          charged += bytes;
          one.peak = std::max(one.peak, one.charged);
          peak = std::max(peak, charged);
        }
      }
      const SharedBudgetState now = one.handle->state();
      ASSERT_EQ(now.limit_bytes, limit);
      ASSERT_EQ(now.charged_bytes, charged);
      ASSERT_EQ(now.peak_bytes, peak);
      for (std::size_t i = 0; i < tenants.size(); ++i) {
        ASSERT_EQ(now.tenants.at(i).charged_bytes, tenants[i].charged);
        ASSERT_EQ(now.tenants.at(i).peak_bytes, tenants[i].peak);
        ASSERT_EQ(now.tenants.at(i).limit_bytes, tenants[i].limit);
      }
    }
  }
}

TEST_F(SharedBudgetTest, ThreadsOfTwoTenantsNeverExceedTheLimit) {
  const int rounds = test::races(5000);
  const SharedBudgetHandle a = join("a", 5), b = join("b");
  const BudgetHandle root_a = root_of(a), root_b = root_of(b);
  const auto run = [&](Budget* root, std::size_t bytes) {
    for (int i = 0; i < rounds; ++i) {
      const Result<Charge> charge = root->try_charge(bytes);
      EXPECT_LE(a->charged_bytes(), 5u);
    }
  };
  {
    const test::Thread first(run, root_a.get(), 1), second(run, root_a.get(), 2),
        third(run, root_b.get(), 3), fourth(run, root_b.get(), 5);
  }
  EXPECT_EQ(a->charged_bytes(), 0u);
  EXPECT_EQ(root_a->charged_bytes() + root_b->charged_bytes(), 0u);
  EXPECT_LE(a->state().peak_bytes, 5u);
  EXPECT_TRUE(root_b->try_charge(5));
}

/// What the processes of a test know of each other.
struct Board {
  static constexpr std::size_t processes = 8;
  std::array<std::atomic<std::uint64_t>, processes> steps, held;
  std::array<std::atomic<std::uint32_t>, processes> is_done;
};

/// Charges and releases at random, then writes down what it holds and waits to be killed.
[[noreturn]] void run_tenant(const std::string& name, std::size_t index, Board& board,
                             std::uint64_t seed, std::uint64_t max_steps, std::size_t limit) {
  alarm(300);
  const SharedBudgetHandle shared =
      SharedBudget::join(name, {.tenant = "t" + std::to_string(index)});
  const BudgetHandle root = Budget::make("root", BudgetLimit::unlimited(), {.shared = shared});
  std::vector<Charge> charges;
  std::mt19937_64 random(seed);
  for (; board.steps[index].load() < max_steps; board.steps[index].fetch_add(1)) {
    const std::uint64_t number = random();
    if (charges.empty() || (charges.size() < 8 && number % 2 == 0)) {
      Result<Charge> charge = root->try_charge(1 + number / 2 % (limit / 20));
      if (charge) charges.push_back(std::move(*charge));
      if (!charge && charge.failure().code() != ErrorCode::out_of_budget) _exit(3);
    } else {
      charges.pop_back();
    }
  }
  std::uint64_t held = 0;
  for (const Charge& one : charges) held += one.bytes();
  board.held[index].store(held);
  board.is_done[index].store(1);
  for (;;) pause();
}

TEST_F(SharedBudgetTest, KilledProcessesGiveBackWhatTheyHeld) {
  if (!test::children_can_allocate) return;
  constexpr std::size_t limit = 1'000'000;
  const std::uint64_t max_steps = test::in_full() ? 1'000'000 : 4000;
  const int max_kills = test::in_full() ? 400 : 40;
  const SharedBudgetHandle observer = join("observer", limit);
  auto* const memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  Board& board = *static_cast<Board*>(memory);
  std::mt19937_64 random(1);
  std::array<pid_t, Board::processes> children = {};
  const auto start = [&](std::size_t i) {
    const std::uint64_t seed = random();
    children[i] = fork();
    if (children[i] == 0) run_tenant(name, i, board, seed, max_steps, limit);
    ASSERT_GT(children[i], 0);
  };
  const auto stop = [&](std::size_t i) {
    ASSERT_EQ(kill(children[i], SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(children[i], &status, 0), children[i]);
    ASSERT_TRUE(WIFSIGNALED(status)) << "a tenant ended by itself, with " << status;
  };
  const auto watch = [&] {
    ASSERT_LE(observer->charged_bytes(), limit);
    ASSERT_LE(observer->state().peak_bytes, limit);
    sched_yield();
  };
  for (std::size_t i = 0; i < children.size(); ++i) start(i);
  for (int kills = 0; kills < max_kills; ++kills) {
    const std::size_t victim = random() % children.size();
    const std::uint64_t until =
        board.steps[victim].load() + random() % (max_steps / static_cast<std::uint64_t>(max_kills));
    while (board.steps[victim].load() < std::min(until, max_steps)) watch();
    if (board.is_done[victim].load() != 0) continue;
    stop(victim);
    start(victim);
  }
  for (const auto& done : board.is_done) {
    while (done.load() == 0) watch();
  }
  observer->collect();  // tenants that were killed and could not join again yet
  std::uint64_t held = 0;
  for (std::size_t i = 0; i < children.size(); ++i) {
    held += board.held[i].load();
    EXPECT_EQ(tenant("t" + std::to_string(i)).charged_bytes, board.held[i].load());
  }
  EXPECT_EQ(observer->charged_bytes(), held);
  EXPECT_GT(held, 0u);
  for (std::size_t i = 0; i < children.size(); ++i) stop(i);
  EXPECT_EQ(observer->collect(), held);
  EXPECT_EQ(observer->charged_bytes(), 0u);
  EXPECT_EQ(observer->state().tenants.size(), 1u);
  EXPECT_TRUE(root_of(observer)->try_charge(limit));
  munmap(memory, sizeof(Board));
}

TEST_F(SharedBudgetTest, ARequestAtTheLimitCollectsDeadTenants) {
  if (!test::children_can_allocate) return;
  const SharedBudgetHandle a = join("a");
  const BudgetHandle root = root_of(a);
  EXPECT_EQ(test::in_a_forked_child([&] {
              static SharedBudgetHandle own = join("b");
              static Charge most = root_of(own)->charge(900);
              return true;  // ends without leaving
            }),
            0);
  EXPECT_EQ(a->charged_bytes(), 900u);
  EXPECT_FALSE(tenant("b").is_alive);
  EXPECT_TRUE(tenant("a").is_alive);
  EXPECT_TRUE(root->try_charge(101));
  EXPECT_EQ(a->state().tenants.size(), 1u);
}

}  // namespace
}  // namespace tern
