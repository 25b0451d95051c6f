#include "memory/charge_book.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "memory/budget_state.hpp"
#include "support/allocation_counter.hpp"
#include "support/budgets.hpp"
#include "support/forked_child.hpp"
#include "support/thorough.hpp"
#include "support/thread.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {
namespace {

using test::expect_sound;
using test::limited;

// The book of a BudgetResource over a pool, which recycles memory whose charge is pending.
class ChargeBookTest : public testing::Test {
 protected:
  ~ChargeBookTest() override { EXPECT_TRUE(sim::findings(device).empty()); }

  void use(std::size_t limit_bytes, Overflow overflow = Overflow::fail) {
    resource.reset();
    budget = limited(limit_bytes, "test", {}, overflow);
    resource = std::make_shared<BudgetResource>(pool, budget);
  }
  Result<Block> take(std::size_t bytes, StreamRef on, Tag tag = "take") {
    return resource->try_allocate({.bytes = bytes, .stream = on, .tag = tag, .wait = Wait::never});
  }
  /// Work that ends when the hold is let go.
  std::uint64_t stall(const Stream& which) {
    const std::uint64_t hold = sim::hold(which);
    which.call([](void*) {}, nullptr);
    return hold;
  }
  void expect_empty() {
    EXPECT_TRUE(budget->try_wait_for_pending());
    EXPECT_EQ(budget->charged_bytes(), 0u);
    EXPECT_EQ(budget->pending_bytes(), 0u);
    expect_sound(*budget);
    EXPECT_EQ(pool->statistics().live_bytes, 0u);
  }

  Device device = sim::open({.policy = sim::Policy::lazy, .memory_bytes = 256 * mib});
  Stream stream{device}, other{device};
  std::shared_ptr<PoolResource> pool = std::make_shared<PoolResource>(device);
  BudgetHandle budget = limited(64 * mib);
  std::shared_ptr<BudgetResource> resource = std::make_shared<BudgetResource>(pool, budget);
};

TEST_F(ChargeBookTest, RevivesTheChargeOfRecycledMemory) {
  use(4 * kib);
  const std::uint64_t hold = stall(stream);
  Block block = take(4 * kib, stream).value();
  const PeakWindow window(budget);
  for (int i = 0; i < 100; ++i) {
    resource->deallocate(block, stream);
    EXPECT_EQ(budget->pending_bytes(), 4 * kib);
    EXPECT_EQ(budget->pending_bytes(stream.id()), 4 * kib);
    EXPECT_EQ(budget->used_bytes(), 4 * kib);
    block = take(4 * kib, stream).value();
    EXPECT_EQ(budget->pending_bytes(), 0u);
    EXPECT_EQ(budget->charged_bytes(), 4 * kib);
  }
  EXPECT_EQ(window.peak_bytes(), 4 * kib);
  const Statistics now = resource->statistics();
  EXPECT_EQ(now.requests, 101u);
  EXPECT_EQ(now.frees, 100u);
  EXPECT_EQ(now.live_blocks, 1u);
  EXPECT_EQ(now.live_bytes, 4 * kib);
  EXPECT_EQ(now.peak_live_bytes, 4 * kib);
  resource->deallocate(block, stream);
  sim::resume(device, hold);
  expect_empty();
}

TEST_F(ChargeBookTest, ChargesRecycledMemoryAgainIfItsChargeHasEnded) {
  const Block block = take(4 * kib, stream).value();
  const Block kept = take(8 * kib, stream).value();
  resource->deallocate(block, stream);
  stream.synchronize();
  budget->drain();
  const std::uint64_t hold = stall(stream);
  resource->deallocate(kept, stream);  // so that something is pending
  const Block again = take(4 * kib, stream).value();
  EXPECT_EQ(again.address, block.address);
  EXPECT_EQ(budget->used_bytes(), 12 * kib);
  EXPECT_EQ(budget->live_bytes(), 4 * kib);
  resource->deallocate(again, stream);
  sim::resume(device, hold);
  expect_empty();
}

TEST_F(ChargeBookTest, GivesARevivedChargeTheTagOfItsBlock) {
  const std::uint64_t hold = stall(stream);
  resource->deallocate(take(4 * kib, stream, "before").value(), stream);
  const Block block = take(4 * kib, stream, "after").value();
  EXPECT_EQ(budget->used_bytes("before"), 0u);
  EXPECT_EQ(budget->used_bytes("after"), 4 * kib);
  expect_sound(*budget);
  resource->deallocate(block, stream);
  sim::resume(device, hold);
  expect_empty();
  EXPECT_TRUE(budget->used_by_tag().empty());
}

TEST_F(ChargeBookTest, RevivesNothingWhileMoreThanTheLimitIsCharged) {
  use(8 * kib);
  const Block kept = take(4 * kib, stream).value();
  const std::uint64_t hold = stall(stream);
  resource->deallocate(take(4 * kib, stream).value(), stream);
  budget->set_limit(BudgetLimit::bytes(6 * kib));
  const Result<Block> refused = take(4 * kib, stream);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::out_of_budget);
  EXPECT_EQ(budget->charged_bytes(), 8 * kib);
  EXPECT_EQ(budget->pending_bytes(), 4 * kib);
  budget->set_limit(BudgetLimit::bytes(8 * kib));
  resource->deallocate(take(4 * kib, stream).value(), stream);
  resource->deallocate(kept, stream);
  sim::resume(device, hold);
  expect_empty();
}

TEST_F(ChargeBookTest, EndsTheChargeOfABlockThatWasFreedElsewhere) {
  const Block block = take(4 * kib, stream).value();
  pool->deallocate(block, stream);
  EXPECT_EQ(budget->live_bytes(), 4 * kib);
  const Block again = take(4 * kib, stream).value();
  ASSERT_EQ(again.generation.slot(), block.generation.slot());
  EXPECT_EQ(budget->live_bytes(), 4 * kib);
  EXPECT_EQ(resource->statistics().live_bytes, 4 * kib);
  EXPECT_FALSE(resource->try_deallocate(block, stream));
  resource->deallocate(again, stream);
  expect_empty();
}

TEST_F(ChargeBookTest, CountsLiveBytesThatAnotherStreamFrees) {
  for (int i = 0; i < 200; ++i) {
    const Block block = take(4 * kib, stream).value();
    EXPECT_EQ(resource->statistics().live_bytes, 4 * kib);
    const std::uint64_t hold = stall(other);
    other.wait(stream.mark());
    resource->deallocate(block, other);
    EXPECT_EQ(budget->pending_bytes(other.id()), 4 * kib);
    EXPECT_EQ(budget->pending_bytes(stream.id()), 0u);
    sim::resume(device, hold);
    other.synchronize();
    stream.wait(other.mark());
    budget->drain();
  }
  EXPECT_EQ(resource->statistics().live_bytes, 0u);
  EXPECT_EQ(resource->statistics().peak_live_bytes, 4 * kib);
  expect_empty();
}

TEST_F(ChargeBookTest, EndsTheChargesThatAStreamHasPassedAndNoOthers) {
  const auto async = std::make_shared<AsyncResource>(device);
  BudgetResource over_driver(async, budget);
  // A query records an event, which shows when the stream has passed the frees before it. Three
  // groups of frees have three events, and each group has several marks.
  std::vector<std::uint64_t> holds = {stall(stream)};
  for (int group = 0; group < 3; ++group) {
    for (int i = 0; i < 10; ++i) {
      over_driver.deallocate(over_driver.allocate({.bytes = 1 * kib, .stream = stream}), stream);
    }
    EXPECT_FALSE(Device::try_is_done(stream.mark()).value());
    holds.push_back(stall(stream));
  }
  for (std::size_t group = 0; group < 3; ++group) {
    sim::resume(device, holds[group]);
    sim::run_to_hold(device, holds[group + 1]);
    EXPECT_EQ(budget->drain(), 10 * kib) << group;
    EXPECT_EQ(budget->pending_bytes(), (2 - group) * 10 * kib) << group;
  }
  sim::resume(device, holds.back());
  expect_empty();
}

TEST_F(ChargeBookTest, StopsDrainingWhatIsRecycled) {
  // More blocks than a lane has before it is drained, and few enough for the cache of the pool.
  std::vector<Block> blocks(120);
  const auto round = [&] {
    std::size_t bytes = 0;
    for (Block& block : blocks) block = take(256 + bytes++ % 4 * 256, stream).value();
    for (const Block& block : blocks) resource->deallocate(block, stream);
  };
  for (int i = 0; i < 20; ++i) round();
  sim::set_faults(device, "");  // resets the counts of calls
  for (int i = 0; i < 20; ++i) round();
  EXPECT_EQ(sim::calls(device, "query") + sim::calls(device, "record"), 0u);
  EXPECT_EQ(budget->used_bytes(), 30 * (256 + 512 + 768 + 1024));
  expect_empty();
}

TEST_F(ChargeBookTest, DrainsWhatIsNotRecycled) {
  // The cache of the pool keeps some of the blocks, and the others are recycled as other blocks.
  std::vector<Block> blocks(200);
  for (int i = 0; i < 100; ++i) {
    for (Block& block : blocks) block = take(4 * kib, stream).value();
    for (const Block& block : blocks) resource->deallocate(block, stream);
    stream.synchronize();
    EXPECT_LE(budget->used_bytes(), 1000 * 4 * kib);
  }
  expect_empty();
}

TEST_F(ChargeBookTest, RevivesThroughTwoBudgetResources) {
  const BudgetHandle outer_budget = limited(4 * kib, "outer");
  BudgetResource outer(resource, outer_budget);
  const std::uint64_t hold = stall(stream);
  for (int i = 0; i < 10; ++i) {
    const Result<Block> block =
        outer.try_allocate({.bytes = 4 * kib, .stream = stream, .wait = Wait::never});
    ASSERT_TRUE(block);
    EXPECT_EQ(outer_budget->used_bytes(), 4 * kib);
    EXPECT_EQ(budget->used_bytes(), 4 * kib);
    EXPECT_EQ(budget->pending_bytes(), 0u);
    outer.deallocate(*block, stream);
  }
  sim::resume(device, hold);
  EXPECT_TRUE(outer_budget->try_wait_for_pending());
  EXPECT_EQ(outer_budget->charged_bytes(), 0u);
  expect_empty();
}

TEST_F(ChargeBookTest, LeavesPendingChargesToTheBudget) {
  const std::uint64_t hold = stall(stream);
  resource->deallocate(take(4 * kib, stream).value(), stream);
  resource->deallocate(take(8 * kib, stream).value(), stream);
  const Block never_freed = take(1 * kib, stream).value();
  EXPECT_EQ(budget->used_bytes(), 13 * kib);
  resource.reset();
  EXPECT_EQ(budget->used_bytes(), 12 * kib);
  EXPECT_EQ(budget->pending_bytes(), 12 * kib);
  sim::resume(device, hold);
  pool->deallocate(never_freed, stream);
  expect_empty();
}

TEST_F(ChargeBookTest, ThrowsWithoutHostMemoryAndChargesNothing) {
  if (!test::HeapExhausted::is_possible()) {
    GTEST_SKIP() << "operator new cannot be refused here";
  }
  const Block block = pool->allocate({.bytes = 4 * kib, .stream = stream});
  int failures = 0;
  for (std::size_t left = 0;; ++left) {
    ASSERT_LT(left, 50u);
    std::optional<BudgetResource> one;
    try {
      const test::HeapExhausted exhausted(left);
      one.emplace(pool, budget);
    } catch (const OutOfMemory&) {
    } catch (const std::bad_alloc&) {  // no memory for the name of the resource
    }
    if (one) break;
    ++failures;
    EXPECT_EQ(budget->charged_bytes(), 0u);
  }
  EXPECT_GT(failures, 2);
  pool->deallocate(block, stream);
  expect_empty();
}

// Locks may be held by a thread that does not exist in the child.
TEST_F(ChargeBookTest, NeedsNoLockInAForkedChild) {
  if (test::is_sanitized)
    GTEST_SKIP() << "sanitizers do not support a fork of a process with several threads";
  const Block block = take(4 * kib, stream).value();
  resource->deallocate(take(8 * kib, stream).value(), stream);
  std::atomic<bool> is_over = false;
  test::Thread thread([&] {
    while (!is_over) resource->deallocate(take(4 * kib, stream).value(), stream);
  });
  int answered = 0;
  for (; answered < 50; ++answered) {
    const int child = test::in_a_forked_child([&] {
      const bool is_refused =
          test::is_after_fork(resource->try_allocate({.bytes = 1 * kib, .stream = stream}));
      return is_refused && resource->try_allocate({}) && resource->try_deallocate(block, stream) &&
             budget->used_bytes() >= 4 * kib && resource->statistics().requests == 0;
    });
    if (child != 0) break;
  }
  is_over = true;
  thread.join();
  EXPECT_EQ(answered, 50);
  resource->deallocate(block, stream);
  expect_empty();
}

TEST(ChargesOfAForkedChild, LeaveThoseOfOtherBlocksAlone) {
  if (!test::children_can_allocate) GTEST_SKIP() << "the allocator keeps its locks in the child";
  const auto memory = std::make_shared<DirectResource>(open_device("host"));
  const Block inherited = memory->allocate({.bytes = 4 * kib});
  const BudgetHandle budget = limited(64 * kib);
  BudgetResource resource(memory, budget);
  ASSERT_EQ(budget->used_bytes(), 4 * kib);
  const int child = test::in_a_forked_child([&] {
    const Result<Block> own = resource.try_allocate({.bytes = 1 * kib});
    const bool is_uncharged = own && budget->charged_bytes() == 4 * kib;
    return is_uncharged && resource.try_deallocate(*own, {}) && budget->charged_bytes() == 4 * kib;
  });
  EXPECT_EQ(child, 0);
  resource.deallocate(inherited, {});
  EXPECT_EQ(budget->charged_bytes(), 0u);
}

// A request at the limit asks again and again whether it fits without the pending bytes. Meanwhile
// another thread ends their charges one by one, which must not look like bytes that stay. There are
// many books with many lanes, so that adding up the pending bytes takes long.
TEST_F(ChargeBookTest, RefusesNothingWhileAnotherThreadDrains) {
  budget = limited(64 * kib, "test", {}, Overflow::wait);
  std::vector<Stream> streams;
  for (std::size_t i = 0; i < ChargeBook::lane_count; ++i) streams.emplace_back(device);
  std::vector<std::unique_ptr<BudgetResource>> many;
  for (int i = 0; i < 100; ++i) {
    BudgetResource& one = *many.emplace_back(std::make_unique<BudgetResource>(pool, budget));
    for (const Stream& each : streams) {
      one.deallocate(one.allocate({.bytes = 256, .stream = each}), each);
    }
    ASSERT_TRUE(budget->try_wait_for_pending());
  }
  resource = std::make_shared<BudgetResource>(pool, budget);
  struct Freed {
    std::uint64_t hold;
    Mark mark;
  };
  for (int round = 0; round < test::races(16); ++round) {
    std::vector<Block> blocks;
    for (std::size_t i = 0; i < 64; ++i) {
      blocks.push_back(
          resource->allocate({.bytes = 1 * kib, .stream = streams[i % streams.size()]}));
    }
    std::vector<Freed> freed;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const Stream& each = streams[i % streams.size()];
      const std::uint64_t hold = stall(each);
      resource->deallocate(blocks[i], each);
      freed.push_back({hold, each.mark()});
    }
    test::Thread drainer([&] {
      for (std::size_t i = 0; i < freed.size(); ++i) {
        const auto begin = std::chrono::steady_clock::now();
        while (std::chrono::steady_clock::now() - begin < std::chrono::microseconds(i % 8 * 10)) {
        }
        sim::resume(device, freed[i].hold);
        EXPECT_TRUE(Device::try_wait(freed[i].mark));
        budget->drain();
      }
    });
    const Result<Block> next = resource->try_allocate({.bytes = 64 * kib, .stream = other});
    drainer.join();
    ASSERT_TRUE(next) << next.failure().text();
    resource->deallocate(*next, other);
    ASSERT_TRUE(budget->try_wait_for_pending());
  }
  many.clear();
  expect_empty();
}

// --- Blocks with chosen slots, counts and sizes

/// Hands out blocks without memory: for each request the next of a list.
class ListedBlocks : public Resource {
 public:
  explicit ListedBlocks(Device device) : device_(std::move(device)) {}

  std::vector<Block> allocated, recycled;  // first comes last

  /// A block of 4 KiB unless told otherwise.
  [[nodiscard]] Block block(std::uint32_t slot, std::uint64_t count,
                            std::size_t bytes = 4 * kib) const {
    return {.address = reinterpret_cast<void*>(std::uintptr_t{slot + 1} << 20),
            .bytes = bytes,
            .device = device_.id(),
            .generation = Generation(slot, count)};
  }

  [[nodiscard]] const char* name() const noexcept override { return "listed"; }
  [[nodiscard]] const Device& device() const noexcept override { return device_; }
  [[nodiscard]] ResourceTraits traits() const noexcept override {
    return {.is_stream_ordered = true, .frees_without_waiting = true};
  }
  [[nodiscard]] Statistics statistics() const noexcept override { return {}; }
  [[nodiscard]] std::size_t good_size(const Request& request) const noexcept override {
    return request.bytes;
  }
  [[nodiscard]] Result<Block> try_allocate(const Request& request) noexcept override {
    if (allocated.empty() || request.only_recycled) return Failure(ErrorCode::out_of_memory);
    const Block block = allocated.back();
    allocated.pop_back();
    return block;
  }
  [[nodiscard]] Result<void> try_deallocate(const Block&, StreamRef,
                                            const CallSite&) noexcept override {
    if (on_free) std::exchange(on_free, nullptr)();
    return {};
  }

  /// Runs once, inside of the next free.
  std::function<void()> on_free;

 private:
  [[nodiscard]] bool recycle(const Request&, Block& into) noexcept override {
    if (recycled.empty()) return false;
    into = recycled.back();
    recycled.pop_back();
    return true;
  }

  const Device device_;
};

class WaitingBlocks : public ListedBlocks {
 public:
  using ListedBlocks::ListedBlocks;
  [[nodiscard]] ResourceTraits traits() const noexcept override { return {}; }
};

class ListedBlocksTest : public ChargeBookTest {
 protected:
  ListedBlocksTest() {
    resource = std::make_shared<BudgetResource>(listed, budget);
    hold = stall(stream);
    listed->allocated = {listed->block(5, 7)};
    freed = take(4 * kib, stream).value();
    resource->deallocate(freed, stream);
  }
  /// The pending charge was kept, and the new block has its own.
  void expect_both(std::size_t live_bytes) {
    EXPECT_EQ(budget->live_bytes(), live_bytes);
    EXPECT_EQ(budget->pending_bytes(), 4 * kib);
    EXPECT_EQ(budget->pending_bytes(stream.id()), 4 * kib);
    EXPECT_EQ(budget->used_bytes(), live_bytes + 4 * kib);
    expect_sound(*budget);
  }
  void end(const Block& block) {
    resource->deallocate(block, stream);
    sim::resume(device, hold);
    expect_empty();
  }

  std::shared_ptr<ListedBlocks> listed = std::make_shared<ListedBlocks>(device);
  std::uint64_t hold = 0;
  Block freed = {};
};

TEST_F(ListedBlocksTest, ReviveTheChargeOfTheBlockBefore) {
  listed->recycled = {listed->block(5, 8)};
  const Block block = take(4 * kib, stream).value();
  EXPECT_EQ(budget->live_bytes(), 4 * kib);
  EXPECT_EQ(budget->pending_bytes(), 0u);
  EXPECT_FALSE(resource->statistics().pending_bytes);
  end(block);
}

TEST_F(ListedBlocksTest, KeepThePendingChargeIfTheirMemoryHasAnotherSize) {
  listed->recycled = {listed->block(5, 8, 2 * kib)};
  const Block block = take(2 * kib, stream).value();
  expect_both(2 * kib);
  end(block);
}

TEST_F(ListedBlocksTest, KeepThePendingChargeIfTheirSlotWasUsedInBetween) {
  listed->recycled = {listed->block(5, 9)};
  const Block block = take(4 * kib, stream).value();
  expect_both(4 * kib);
  end(block);
}

TEST_F(ListedBlocksTest, KeepThePendingChargeIfTheyAreNotRecycled) {
  listed->allocated = {listed->block(5, 8)};
  const Block block = take(4 * kib, stream).value();
  expect_both(4 * kib);
  end(block);
}

// The upstream calls code that allocates from the same budget before its free returns, and uses the
// slot again for that.
TEST_F(ListedBlocksTest, MayBeAllocatedInsideOfTheFreeOfTheirSlot) {
  for (const bool is_host_free : {false, true}) {
    SCOPED_TRACE(is_host_free);
    const std::uint64_t count = is_host_free ? 30 : 20;
    listed->allocated = {listed->block(5, count + 1, 2 * kib), listed->block(5, count)};
    const Block outer = take(4 * kib, stream, "outer").value();
    Block inner;
    listed->on_free = [&] { inner = take(2 * kib, other, "inner").value(); };
    resource->deallocate(outer, is_host_free ? StreamRef() : StreamRef(stream));
    ASSERT_EQ(inner, listed->block(5, count + 1, 2 * kib));
    EXPECT_EQ(budget->live_bytes(), 2 * kib);
    EXPECT_EQ(budget->used_bytes("inner"), 2 * kib);
    EXPECT_EQ(budget->used_bytes("outer"), 4 * kib);
    EXPECT_EQ(resource->statistics().live_bytes, 2 * kib);
    expect_sound(*budget);
    resource->deallocate(inner, other);
    sim::resume(device, hold);
    expect_empty();
    EXPECT_EQ(resource->statistics().live_blocks, 0u);
    hold = stall(stream);
  }
  sim::resume(device, hold);
}

TEST_F(ListedBlocksTest, AreFreedInsideOfTheFreeOfTheirSlot) {
  // The upstream's frees wait, so the charge of the outer block ends with its free.
  const auto waiting = std::make_shared<WaitingBlocks>(device);
  BudgetResource over(waiting, budget);
  waiting->allocated = {waiting->block(9, 2), waiting->block(9, 1)};
  const Block outer = over.allocate({.bytes = 4 * kib, .stream = stream});
  waiting->on_free = [&] { over.deallocate(over.allocate({.bytes = 4 * kib}), {}); };
  const std::size_t before = budget->used_bytes();
  over.deallocate(outer, stream);
  EXPECT_EQ(budget->used_bytes(), before - 4 * kib);
  expect_sound(*budget);
  sim::resume(device, hold);
  expect_empty();
}

TEST_F(ListedBlocksTest, AreRefusedIfTheirChargeHasEndedAndNothingIsLeft) {
  budget->set_limit(BudgetLimit::bytes(4 * kib));
  listed->recycled = {listed->block(6, 2)};
  EXPECT_FALSE(take(4 * kib, stream));
  EXPECT_EQ(budget->charged_bytes(), 4 * kib);
  EXPECT_EQ(resource->statistics().refusals, 1u);
  end({});
}

TEST_F(ListedBlocksTest, FailWithoutHostMemoryForTheChargeThatTheirSlotHas) {
  if (!test::HeapExhausted::is_possible()) {
    GTEST_SKIP() << "operator new cannot be refused here";
  }
  listed->allocated = {listed->block(5, 9)};
  listed->recycled = {listed->block(5, 8, 2 * kib)};
  const BudgetState before = state_of(*budget);
  Result<Block> block = Block{};
  {
    const test::HeapExhausted exhausted;
    block = take(4 * kib, stream);
  }
  ASSERT_FALSE(block);
  EXPECT_EQ(block.failure().code(), ErrorCode::out_of_memory);
  EXPECT_TRUE(state_of(*budget) == before);
  listed->allocated = {listed->block(5, 10)};
  const Block next = take(4 * kib, stream).value();
  expect_both(4 * kib);
  end(next);
}

TEST_F(ListedBlocksTest, TakeOverPendingChargesAtTheLimitWithoutHostMemory) {
  if (!test::HeapExhausted::is_possible()) {
    GTEST_SKIP() << "operator new cannot be refused here";
  }
  budget->set_limit(BudgetLimit::bytes(4 * kib));
  const BudgetState before = state_of(*budget);
  {
    const test::HeapExhausted exhausted;
    const Result<Block> block = take(4 * kib, stream);
    EXPECT_FALSE(block);
  }
  EXPECT_TRUE(state_of(*budget) == before);
  end({});
}

// --- Threads

// Threads of one stream get the memory of each other's frees at once, before the charge is pending.
TEST_F(ChargeBookTest, RevivesAChargeThatIsJustBeingAdded) {
  std::vector<test::Thread> threads;
  const int rounds = test::races(4000);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const Tag tag = i % 2 == 0 ? "even" : "odd";
      for (int round = 0; round < rounds; ++round) {
        // Blocks of the host end their charges with the free.
        const StreamRef on = round % 8 == 0 ? StreamRef() : StreamRef(stream);
        const Block block = take(4 * kib, on, tag).value();
        // The simulated streams advance only when somebody waits for them.
        if (round % 256 == 0) other.synchronize();
        if (round % 16 == 1) other.wait(stream.mark());
        resource->deallocate(block, round % 16 == 1 ? StreamRef(other) : on);
      }
    });
  }
  for (test::Thread& thread : threads) thread.join();
  const Statistics now = resource->statistics();
  EXPECT_EQ(now.live_bytes, 0u);
  EXPECT_EQ(now.live_blocks, 0u);
  EXPECT_EQ(now.frees, 4u * static_cast<unsigned>(rounds));
  EXPECT_EQ(budget->live_bytes(), 0u);
  expect_sound(*budget);
  expect_empty();
}

// --- Models

/// Random calls of one thread, each followed by a check of every count. `used == live + pending`
/// is exact at every step; what is pending on a stream that is held never ends.
class ChargeModel {
 public:
  explicit ChargeModel(std::uint32_t seed) : random_(seed) {
    for (std::size_t i = 0; i < streams_.size(); ++i) holds_[i] = 0;
  }

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      step();
      check();
      if (testing::Test::HasFailure()) return;
    }
    sim::set_faults(device_, "");
    resume();
    while (!blocks_.empty()) free(blocks_.size() - 1, blocks_.back().stream);
    EXPECT_TRUE(root_->try_wait_for_pending());
    live_ = 0;
    for (const BudgetHandle& budget : {leaf_, root_}) {
      EXPECT_EQ(budget->charged_bytes(), 0u);
      EXPECT_EQ(budget->pending_bytes(), 0u);
      expect_sound(*budget);
    }
    EXPECT_EQ(pool_->statistics().live_bytes, 0u);
    EXPECT_TRUE(sim::findings(device_).empty());
  }
  [[nodiscard]] std::uint64_t refusals() const { return refusals_; }
  [[nodiscard]] std::uint64_t revivals() const { return revivals_; }

 private:
  struct Live {
    Block block = {};
    std::size_t stream = 0;
    Tag tag = {};
  };

  std::size_t below(std::size_t bound) { return random_() % bound; }
  /// All streams, because the pool may have let a stream wait for another one that is held.
  void resume() {
    for (std::uint64_t& hold : holds_) {
      if (hold != 0) sim::resume(device_, std::exchange(hold, 0));
    }
    for (const Stream& stream : streams_) stream.synchronize();
    held_pending_ = {};
  }
  void step() {
    const std::size_t stream = below(streams_.size());
    switch (below(20)) {
      case 0:
        resume();
        return;
      case 1:
        if (holds_[stream] != 0) return;
        if (std::ranges::count(holds_, 0u) == std::ssize(holds_)) resume();
        leaf_->drain();
        if (leaf_->pending_bytes(streams_[stream].id()) != 0) return;
        holds_[stream] = sim::hold(streams_[stream]);
        streams_[stream].call([](void*) {}, nullptr);
        return;
      case 2:
        leaf_->set_limit(BudgetLimit::bytes(64 * kib + below(8 * mib)));
        return;
      case 3:
        root_->drain();
        return;
      case 4:
        sim::set_faults(device_, below(3) == 0 ? "query#1=fail" : below(2) == 0 ? "map#1=oom" : "");
        return;
      default:
        break;
    }
    if (blocks_.size() < 40 && below(2) == 0) {
      allocate(stream);
    } else if (!blocks_.empty()) {
      const std::size_t index = below(blocks_.size());
      free(index, below(4) == 0 ? stream : blocks_[index].stream);
    }
  }
  void allocate(std::size_t stream) {
    constexpr std::size_t sizes[] = {256, 4 * kib, 4 * kib, 100 * kib, 2 * mib, 2 * mib - 256};
    const Tag tag = below(3) == 0 ? "a" : "b";
    const StreamId id = streams_[stream].id();
    const std::size_t used = leaf_->used_bytes(), pending = leaf_->pending_bytes(id);
    const Result<Block> block = resource_.try_allocate({.bytes = sizes[below(std::size(sizes))],
                                                        .stream = streams_[stream],
                                                        .tag = tag,
                                                        .wait = Wait::never});
    ++requests_;
    EXPECT_EQ(leaf_->provisional_bytes(), 0u);
    if (!block) {
      ++refusals_;
      EXPECT_LE(leaf_->used_bytes(), used);  // at the limit, completed frees are drained
      return;
    }
    EXPECT_LE(leaf_->charged_bytes(), leaf_->limit_bytes());
    EXPECT_LE(root_->charged_bytes(), root_->limit_bytes());
    blocks_.push_back({*block, stream, tag});
    live_ += block->bytes;
    if (holds_[stream] == 0) return;
    // Nothing completes on the stream, so its pending charges became the charge of this block.
    const std::size_t taken = pending - leaf_->pending_bytes(id);
    EXPECT_LE(taken, std::min(pending, block->bytes));
    revivals_ += taken == block->bytes;
    held_pending_[stream] -= taken;
  }
  void free(std::size_t index, std::size_t stream) {
    const Live live = blocks_[index];
    if (stream != live.stream) {
      // The stream that frees must come after the stream that used the block.
      if (holds_[live.stream] != 0) return;
      // The wait may fail, too.
      if (!streams_[stream].try_wait(streams_[live.stream].mark())) return;
    }
    const Result<void> freed = resource_.try_deallocate(live.block, streams_[stream]);
    ASSERT_TRUE(freed) << freed.failure().text();
    ++frees_;
    live_ -= live.block.bytes;
    if (holds_[stream] != 0) held_pending_[stream] += live.block.bytes;
    blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(index));
  }
  void check() {
    const std::size_t pending = leaf_->pending_bytes();
    EXPECT_EQ(leaf_->used_bytes(), live_ + pending);
    EXPECT_EQ(leaf_->charged_bytes(), leaf_->used_bytes());
    EXPECT_EQ(root_->used_bytes(), leaf_->used_bytes());
    EXPECT_EQ(root_->pending_bytes(), pending);
    peak_ = std::max(peak_, leaf_->used_bytes());
    EXPECT_EQ(leaf_->peak_bytes(), peak_);
    std::size_t sum = 0;
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      const std::size_t of_stream = leaf_->pending_bytes(streams_[i].id());
      if (holds_[i] != 0) {
        EXPECT_EQ(of_stream, held_pending_[i]) << "stream " << i;
      }
      sum += of_stream;
    }
    EXPECT_EQ(sum, pending);
    std::map<std::uint16_t, std::size_t> live_of_tag;
    for (const Live& live : blocks_) live_of_tag[live.tag.number()] += live.block.bytes;
    for (const auto& [tag, used] : leaf_->used_by_tag()) {
      EXPECT_GE(used, live_of_tag[tag.number()]);
    }
    expect_sound(*leaf_);
    const Statistics now = resource_.statistics();
    EXPECT_EQ(now.live_bytes, live_);
    EXPECT_EQ(now.live_blocks, blocks_.size());
    EXPECT_EQ(now.pending_bytes, pending);
    EXPECT_EQ(now.requests, requests_);
    EXPECT_EQ(now.refusals, refusals_);
    EXPECT_EQ(now.frees, frees_);
    EXPECT_GE(now.peak_live_bytes, live_);
    EXPECT_LE(now.peak_live_bytes, peak_);
  }

  std::mt19937 random_;
  Device device_ = sim::open({.policy = sim::Policy::lazy, .memory_bytes = 256 * mib});
  std::array<Stream, 3> streams_ = {Stream(device_), Stream(device_), Stream(device_)};
  std::array<std::uint64_t, 3> holds_ = {};
  std::array<std::size_t, 3> held_pending_ = {};
  std::shared_ptr<PoolResource> pool_ = std::make_shared<PoolResource>(device_);
  BudgetHandle root_ = limited(16 * mib, "root");
  BudgetHandle leaf_ = limited(8 * mib, "leaf", root_, Overflow::fail);
  BudgetResource resource_{pool_, leaf_};
  std::vector<Live> blocks_;
  std::size_t live_ = 0, peak_ = 0;
  std::uint64_t requests_ = 0, refusals_ = 0, frees_ = 0, revivals_ = 0;
};

TEST(ChargeModelTest, MatchesARandomProgram) {
  std::uint64_t refusals = 0, revivals = 0;
  const int seeds = test::in_full() ? 400 : 40;
  for (int seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE(seed);
    ChargeModel model(static_cast<std::uint32_t>(seed));
    model.run(600);
    refusals += model.refusals();
    revivals += model.revivals();
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(refusals, 100u);
  EXPECT_GT(revivals, 100u);
}

// Threads allocate and free at random, also each other's blocks, while the limit changes and the
// tree is drained. At every meeting of the threads the counts are exact; in between, the budget
// never exceeds the largest limit.
TEST_F(ChargeBookTest, IsExactWheneverItsThreadsMeet) {
  constexpr int thread_count = 6, stream_count = 4;
  const int meetings = test::is_sanitized ? 10 : 30, steps = 200;
  use(3 * mib);
  std::vector<Stream> streams;
  for (int i = 0; i < stream_count; ++i) streams.emplace_back(device);
  struct Handed {
    Block block = {};
    std::size_t place = 0;
  };
  std::mutex mutex;
  std::vector<Handed> shared;  // guarded by mutex
  std::atomic<std::size_t> live = 0, blocks = 0, requests = 0, frees = 0, above = 0;
  std::atomic<bool> is_over = false;
  std::mutex changing;  // held while the limit changes and the budget is drained
  const auto check = [&]() noexcept {
    const std::lock_guard lock(changing);
    EXPECT_EQ(budget->used_bytes(), live + budget->pending_bytes());
    EXPECT_EQ(budget->charged_bytes(), budget->used_bytes());
    expect_sound(*budget);
    const Statistics now = resource->statistics();
    EXPECT_EQ(now.live_bytes, live);
    EXPECT_EQ(now.live_blocks, blocks);
    EXPECT_EQ(now.requests, requests);
    EXPECT_EQ(now.frees, frees);
  };
  std::barrier meeting(thread_count, check);
  test::Thread changer([&] {
    std::mt19937 random(7);
    while (!is_over) {
      const std::lock_guard lock(changing);
      budget->set_limit(BudgetLimit::bytes(1 * mib + random() % (2 * mib)));
      above += budget->charged_bytes() > 3 * mib;
      budget->drain();
    }
  });
  std::vector<test::Thread> threads;
  for (int i = 0; i < thread_count; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937 random(static_cast<std::uint32_t>(i));
      std::vector<Handed> own;
      for (int round = 0; round < meetings; ++round) {
        for (int step = 0; step < steps; ++step) {
          const std::size_t place = random() % stream_count;
          if (own.size() < 20 && random() % 2 == 0) {
            const Result<Block> block =
                resource->try_allocate({.bytes = std::size_t{256} << random() % 9,
                                        .stream = streams[place],
                                        .tag = random() % 2 == 0 ? "x" : "y",
                                        .wait = random() % 8 == 0 ? Wait::forever : Wait::never});
            ++requests;
            if (!block) continue;
            live += block->bytes;
            ++blocks;
            own.push_back({*block, place});
          } else if (!own.empty()) {
            Handed one = own.back();
            own.pop_back();
            if (random() % 4 == 0) {
              // Another thread frees this block, and this thread frees another one.
              const std::lock_guard lock(mutex);
              shared.push_back(one);
              std::swap(shared.back(), shared[random() % shared.size()]);
              if (shared.size() < 8) continue;
              one = shared.back();
              shared.pop_back();
            }
            EXPECT_TRUE(resource->try_deallocate(one.block, streams[one.place]));
            live -= one.block.bytes;
            --blocks;
            ++frees;
          }
        }
        meeting.arrive_and_wait();
      }
      const std::lock_guard lock(mutex);
      shared.insert(shared.end(), own.begin(), own.end());
    });
  }
  for (test::Thread& thread : threads) thread.join();
  is_over = true;
  changer.join();
  EXPECT_EQ(above, 0u);
  for (const auto& [block, place] : shared) resource->deallocate(block, streams[place]);
  expect_empty();
}

}  // namespace
}  // namespace tern
