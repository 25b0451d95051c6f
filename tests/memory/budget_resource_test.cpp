#include "tern/memory/budget_resource.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "memory/budget_state.hpp"
#include "support/allocation_counter.hpp"
#include "support/budgets.hpp"
#include "support/thread.hpp"
#include "tern/backends/sim.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/guard_resource.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {
namespace {

using test::expect_sound;
using test::limited;

/// An upstream that rounds up, refuses by plan, and can give again what a stream has freed.
class TestUpstream final : public Resource {
 public:
  explicit TestUpstream(ResourceHandle below) : below_(std::move(below)) {}

  enum class Fault { none, once, forever, every_second };
  Fault fault = Fault::none;
  int fail_at = 0;  // which allocation or free from now on, from 1
  std::atomic<int> calls = 0;
  std::atomic<int> allocations = 0;
  std::atomic<int> recycled = 0;
  std::size_t step_bytes = 1;
  /// Granted above good_size(), which no resource may do.
  std::size_t extra_bytes = 0;
  /// Keeps what is freed, for the stream that has freed it.
  bool recycles = false;
  std::function<void()> in_allocate = {};
  std::function<void()> in_deallocate = {};

  void arm(Fault kind, int at) {
    fault = kind;
    fail_at = at;
    calls = 0;
  }

  [[nodiscard]] const char* name() const noexcept override { return "test"; }
  [[nodiscard]] const Device& device() const noexcept override { return below_->device(); }
  [[nodiscard]] ResourceTraits traits() const noexcept override { return below_->traits(); }
  [[nodiscard]] Statistics statistics() const noexcept override { return below_->statistics(); }
  [[nodiscard]] std::size_t good_size(const Request& request) const noexcept override {
    return checked_round_up(request.bytes, step_bytes).value();
  }
  [[nodiscard]] Result<Block> try_allocate(const Request& request) noexcept override {
    const test::HeapExhausted plenty(most);  // whatever is below has its own tests
    if (in_allocate) in_allocate();
    ++allocations;
    if (does_fail()) return Failure(ErrorCode::out_of_memory, "refused by plan.");
    if (request.reservation != nullptr) return Failure(ErrorCode::violation, "paid twice.");
    Request below = request;
    below.bytes = good_size(request) + extra_bytes;
    if (recycles && request.only_recycled) {
      const std::lock_guard lock(mutex_);
      const auto found = std::ranges::find_if(kept_, [&](const Kept& one) {
        return one.stream == request.stream.id() && one.block.bytes == below.bytes;
      });
      if (found == kept_.end()) return Failure(ErrorCode::out_of_memory, "nothing kept.");
      const Block block = found->block;
      kept_.erase(found);
      ++recycled;
      return block;
    }
    below.only_recycled = false;
    return below_->try_allocate(below);
  }
  [[nodiscard]] Result<void> try_deallocate(const Block& block, StreamRef stream,
                                            const CallSite& site) noexcept override {
    const test::HeapExhausted plenty(most);
    if (in_deallocate) in_deallocate();
    if (does_fail()) return Failure(ErrorCode::driver, "refused by plan.");
    if (!recycles) return below_->try_deallocate(block, stream, site);
    const std::lock_guard lock(mutex_);
    kept_.push_back({block, stream.id()});
    return {};
  }

 private:
  static constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  struct Kept {
    Block block = {};
    StreamId stream = {};
  };
  bool does_fail() {
    const int call = ++calls;
    switch (fault) {
      case Fault::once:
        return call == fail_at;
      case Fault::forever:
        return call >= fail_at;
      case Fault::every_second:
        return call >= fail_at && (call - fail_at) % 2 == 0;
      default:
        return false;
    }
  }

  const ResourceHandle below_;
  std::mutex mutex_;
  std::vector<Kept> kept_;
};

class BudgetResourceTest : public testing::Test {
 protected:
  ~BudgetResourceTest() override { EXPECT_TRUE(sim::findings(device).empty()); }

  void use(std::size_t limit_bytes, Overflow overflow = Overflow::wait) {
    resource.reset();
    budget = limited(limit_bytes, "test", {}, overflow);
    resource = std::make_shared<BudgetResource>(upstream, budget);
  }
  Result<Block> take(std::size_t bytes, StreamRef on, Wait wait = Wait::forever) {
    return resource->try_allocate({.bytes = bytes, .stream = on, .tag = "take", .wait = wait});
  }
  Result<Block> take(std::size_t bytes) { return take(bytes, stream); }
  /// Work that ends when the hold is let go.
  std::uint64_t stall(const Stream& which) {
    const std::uint64_t hold = sim::hold(which);
    which.call([](void*) {}, nullptr);
    return hold;
  }

  Device device = sim::open({.policy = sim::Policy::lazy, .memory_bytes = 64 * mib});
  Stream stream{device}, other{device};
  std::shared_ptr<AsyncResource> async = std::make_shared<AsyncResource>(device);
  std::shared_ptr<TestUpstream> upstream = std::make_shared<TestUpstream>(async);
  BudgetHandle budget = limited(1024);
  std::shared_ptr<BudgetResource> resource = std::make_shared<BudgetResource>(upstream, budget);
};

TEST_F(BudgetResourceTest, CountsWhatIsGranted) {
  use(1 * mib);
  const Block block = resource->allocate({.bytes = 1024, .stream = stream});
  EXPECT_EQ(budget->used_bytes(), 1024u);
  upstream->step_bytes = 256;
  const Block rounded = resource->allocate({.bytes = 1000, .stream = stream, .tag = "rounded"});
  EXPECT_EQ(rounded.bytes, 1024u);
  EXPECT_EQ(budget->used_bytes(), 2048u);
  EXPECT_EQ(budget->used_bytes("rounded"), 1024u);
  EXPECT_EQ(resource->statistics().live_bytes, 2048u);
  resource->deallocate(block, stream);
  resource->deallocate(rounded, stream);
  stream.synchronize();
  budget->drain();
  EXPECT_EQ(budget->used_bytes(), 0u);
  EXPECT_EQ(resource->statistics().requests, 2u);
  EXPECT_STREQ(resource->name(), "budget(test)");
}

TEST_F(BudgetResourceTest, MakesNoUpstreamCallIfARequestCannotFit) {
  const Result<Block> much = take(2048);
  EXPECT_EQ(much.failure().code(), ErrorCode::out_of_budget);
  EXPECT_EQ(much.failure().number("requested"), 2048u);
  EXPECT_EQ(much.failure().number("limit"), 1024u);
  EXPECT_EQ(much.failure().string("tag"), "take");
  EXPECT_EQ(much.failure().string("device"), device.spec());
  EXPECT_TRUE(much.failure().site().is_known());
  EXPECT_EQ(budget->used_bytes(), 0u);
  EXPECT_EQ(upstream->allocations, 0);
  EXPECT_EQ(resource->statistics().refusals, 1u);
  EXPECT_THROW(static_cast<void>(resource->allocate({.bytes = 2048})), OutOfBudget);
  EXPECT_EQ(take(std::numeric_limits<std::size_t>::max()).failure().code(),
            ErrorCode::size_overflow);
}

TEST_F(BudgetResourceTest, GrantsExactlyTheLimit) {
  use(4096);
  const Block whole = take(4096).value();
  const Result<Block> more = take(1);
  EXPECT_EQ(more.failure().number("requested"), 1u);
  EXPECT_EQ(more.failure().number("current"), 4096u);
  EXPECT_EQ(more.failure().number("remaining"), 0u);
  EXPECT_EQ(more.failure().number("limit"), 4096u);
  resource->deallocate(whole, stream);
  use(1024);
  const Block most = take(768).value();
  const Result<Block> much = take(512);
  EXPECT_EQ(much.failure().number("requested"), 512u);
  EXPECT_EQ(much.failure().number("current"), 768u);
  EXPECT_EQ(much.failure().number("remaining"), 256u);
  EXPECT_EQ(much.failure().number("limit"), 1024u);
  upstream->step_bytes = 512;
  const int allocations = upstream->allocations;
  EXPECT_EQ(take(1).failure().number("would_grant"), 512u);
  EXPECT_EQ(upstream->allocations, allocations);
  resource->deallocate(most, stream);
}

TEST_F(BudgetResourceTest, ChargesNothingForZeroBytes) {
  use(0);
  const Block none = take(0).value();
  EXPECT_FALSE(none);
  EXPECT_EQ(upstream->allocations, 0);
  EXPECT_TRUE(resource->try_deallocate(none, stream));
  EXPECT_EQ(resource->statistics().requests, 1u);
  EXPECT_EQ(budget->charged_bytes(), 0u);
}

TEST_F(BudgetResourceTest, StartsAtWhatTheUpstreamHolds) {
  const Block before = upstream->try_allocate({.bytes = 600, .stream = stream}).value();
  const Block also = upstream->try_allocate({.bytes = 100, .stream = stream}).value();
  EXPECT_THROW(BudgetResource(upstream, limited(699)), OutOfBudget);
  use(1024);
  EXPECT_EQ(budget->used_bytes(), 700u);
  EXPECT_FALSE(take(325));
  const std::uint64_t hold = stall(stream);
  ASSERT_TRUE(resource->try_deallocate(before, stream));
  EXPECT_EQ(budget->pending_bytes(), 600u);
  EXPECT_EQ(resource->try_deallocate(before, stream).failure().code(), ErrorCode::use_after_free);
  EXPECT_EQ(budget->used_bytes(), 700u);
  sim::resume(device, hold);
  stream.synchronize();
  budget->drain();
  EXPECT_EQ(budget->used_bytes(), 100u);
  // What the upstream gave behind its back was never charged, and takes nothing away.
  ASSERT_TRUE(resource->try_deallocate(also, stream));
  const Block behind = upstream->try_allocate({.bytes = 50, .stream = stream}).value();
  ASSERT_TRUE(resource->try_deallocate(behind, stream));
  stream.synchronize();
  budget->drain();
  EXPECT_EQ(budget->used_bytes(), 0u);
  expect_sound(*budget);
}

TEST_F(BudgetResourceTest, NeedsABudgetOfItsDevice) {
  const Device stranger = sim::open({.memory_bytes = 2 * mib});
  const auto of = [](const Device& owner) {
    return Budget::make("of", BudgetLimit::bytes(10), {.device = owner.id()});
  };
  EXPECT_THROW(BudgetResource(upstream, of(stranger)), DeviceMismatch);
  EXPECT_EQ(BudgetResource(upstream, of(device)).device(), device);
  EXPECT_THROW(BudgetResource(nullptr, limited(1)), InvalidArgument);
  EXPECT_THROW(BudgetResource(upstream, nullptr), InvalidArgument);
}

TEST_F(BudgetResourceTest, NamesTheLevelThatRefused) {
  const BudgetHandle parent = limited(1024, "parent");
  const BudgetHandle child = limited(2048, "child", parent);
  BudgetResource nested(upstream, child);
  const Result<Block> much = nested.try_allocate({.bytes = 1500, .stream = stream});
  EXPECT_EQ(much.failure().string("layer"), "parent");
  EXPECT_EQ(parent->charged_bytes() + child->charged_bytes(), 0u);
}

TEST_F(BudgetResourceTest, KeepsAFreedBlockAsPendingUntilItsStreamHasPassed) {
  const std::uint64_t hold = stall(stream);
  const Block first = take(400).value(), second = take(100, other).value();
  resource->deallocate(first, stream);
  const std::uint64_t other_hold = stall(other);
  resource->deallocate(second, other);
  EXPECT_EQ(budget->live_bytes(), 0u);
  EXPECT_EQ(budget->used_bytes(), 500u);
  EXPECT_EQ(budget->pending_bytes(), 500u);
  EXPECT_EQ(budget->pending_bytes(stream.id()), 400u);
  EXPECT_EQ(budget->pending_bytes(other.id()), 100u);
  EXPECT_EQ(resource->statistics().pending_bytes, 500u);
  EXPECT_EQ(budget->drain(), 0u);
  EXPECT_EQ(budget->used_bytes(), 500u);

  sim::resume(device, hold);
  stream.synchronize();
  EXPECT_EQ(budget->used_bytes(), 500u);
  EXPECT_EQ(budget->drain(), 400u);
  EXPECT_EQ(budget->drain(), 0u);
  EXPECT_EQ(budget->used_bytes(), 100u);
  sim::resume(device, other_hold);
  EXPECT_TRUE(budget->try_wait_for_pending());
  EXPECT_EQ(state_of(*budget).charged_bytes, 0u);
  EXPECT_EQ(budget->peak_bytes(), 500u);
  expect_sound(*budget);
}

TEST_F(BudgetResourceTest, ReleasesTheFreesThatAStreamHasPassedAndNoOthers) {
  const Block first = take(400).value(), second = take(100).value(), third = take(20).value();
  resource->deallocate(first, stream);
  resource->deallocate(second, stream);
  // Asking sets the point up to which the answer holds.
  EXPECT_EQ(budget->drain(), 0u);
  const std::uint64_t hold = stall(stream);
  resource->deallocate(third, stream);
  sim::run_to_hold(device, hold);
  EXPECT_EQ(budget->drain(), 500u);
  EXPECT_EQ(budget->pending_bytes(stream.id()), 20u);
  sim::resume(device, hold);
  EXPECT_TRUE(budget->try_wait_for_pending());
  EXPECT_EQ(budget->charged_bytes(), 0u);
}

TEST_F(BudgetResourceTest, KeepsTheBytesOfAStreamThatCannotBeAsked) {
  const std::uint64_t hold = stall(stream);
  resource->deallocate(take(400).value(), stream);
  resource->deallocate(take(100, other).value(), other);
  other.synchronize();
  sim::set_faults(device, "query#1+=fail");
  EXPECT_EQ(budget->drain(), 100u);
  EXPECT_EQ(budget->failed_queries(), 1u);
  sim::set_faults(device, "");
  EXPECT_EQ(budget->pending_bytes(), 400u);
  sim::resume(device, hold);
  stream.synchronize();
  EXPECT_EQ(budget->drain(), 400u);
}

TEST_F(BudgetResourceTest, FreesAtOnceWhereTheUpstreamWaits) {
  BudgetResource direct(std::make_shared<DirectResource>(device), budget);
  const Block block = direct.try_allocate({.bytes = 1000, .stream = stream}).value();
  direct.deallocate(block, stream);
  EXPECT_EQ(budget->charged_bytes(), 0u);
}

TEST_F(BudgetResourceTest, PollsPendingFreesBeforeItFails) {
  use(1024, Overflow::fail);
  resource->deallocate(take(1024, other).value(), other);
  other.synchronize();
  const Result<Block> again = take(1024, stream, Wait::never);
  ASSERT_TRUE(again);
  resource->deallocate(*again, stream);
  stream.synchronize();
  EXPECT_TRUE(budget->try_reserve(1024));
  resource->deallocate(take(1024).value(), stream);
  stream.synchronize();
  EXPECT_TRUE(budget->try_charge(1024));
}

TEST_F(BudgetResourceTest, ReusesAStreamsOwnPendingBytesWithoutAWait) {
  use(1024, Overflow::fail);
  upstream->recycles = true;
  const std::uint64_t hold = stall(stream);
  for (int i = 0; i < 100; ++i) {
    const Result<Block> block = resource->try_allocate(
        {.bytes = 1024, .stream = stream, .tag = i % 2 == 0 ? "even" : "odd"});
    ASSERT_TRUE(block) << block.failure().text();
    EXPECT_EQ(budget->used_bytes(i % 2 == 0 ? "even" : "odd"), 1024u);
    EXPECT_EQ(budget->live_bytes(), 1024u);
    expect_sound(*budget);
    resource->deallocate(*block, stream);
    EXPECT_EQ(budget->pending_bytes(), 1024u);
  }
  EXPECT_EQ(upstream->recycled, 99);
  EXPECT_EQ(budget->peak_bytes(), 1024u);
  // Another stream has no right to them.
  EXPECT_FALSE(take(1024, other));
  EXPECT_EQ(upstream->recycled, 99);
  sim::resume(device, hold);
  EXPECT_TRUE(budget->try_wait_for_pending());
  EXPECT_EQ(budget->charged_bytes(), 0u);
}

TEST_F(BudgetResourceTest, TakesOverAPartOfWhatIsPending) {
  use(1000, Overflow::fail);
  upstream->recycles = true;
  const std::uint64_t hold = stall(stream);
  const Block small = take(200).value(), large = take(600).value();
  const Block part = take(100).value();
  resource->deallocate(large, stream);
  resource->deallocate(part, stream);
  // 100 are left, 700 pending: 100 of the 600 and their mark stay with them.
  const Block again = take(600).value();
  EXPECT_EQ(budget->pending_bytes(), 100u);
  EXPECT_EQ(budget->used_bytes(), 900u);
  expect_sound(*budget);
  // What the upstream has not kept is refused, and everything is as before.
  const BudgetState before = state_of(*budget);
  EXPECT_FALSE(take(150));
  EXPECT_EQ(state_of(*budget), before);
  EXPECT_EQ(budget->pending_bytes(stream.id()), 100u);
  resource->deallocate(again, stream);
  EXPECT_FALSE(take(650));  // cut in two, and put back
  EXPECT_EQ(budget->pending_bytes(stream.id()), 700u);
  EXPECT_EQ(budget->used_bytes(), 900u);
  expect_sound(*budget);
  resource->deallocate(small, stream);
  sim::resume(device, hold);
  EXPECT_TRUE(budget->try_wait_for_pending());
  EXPECT_EQ(budget->charged_bytes(), 0u);
  EXPECT_EQ(resource->statistics().pending_bytes, 0u);
}

TEST_F(BudgetResourceTest, WaitsForTheOldestFreesIfItMay) {
  resource->deallocate(take(1024, other).value(), other);
  other.call([](void*) {}, nullptr);
  EXPECT_EQ(budget->pending_bytes(), 1024u);
  const Result<Block> block = take(1024);
  ASSERT_TRUE(block) << block.failure().text();
  EXPECT_EQ(budget->used_bytes(), 1024u);
  EXPECT_EQ(budget->pending_bytes(), 0u);
  resource->deallocate(*block, stream);
}

TEST_F(BudgetResourceTest, WaitsOnlyIfAllowed) {
  const std::uint64_t hold = stall(other);
  const auto refused = [&](Wait wait) {
    resource->deallocate(take(1024, other).value(), other);
    const Result<Block> block = take(1024, stream, wait);
    EXPECT_FALSE(block);
    EXPECT_EQ(block.failure().number("fits_after_pending"), 1u);
    EXPECT_EQ(block.failure().number("pending"), 1024u);
    EXPECT_EQ(block.failure().text(),
              "budget 'test' cannot hold 1.0 KiB more: 1.0 KiB of 1.0 KiB in use, 1.0 KiB of it by "
              "pending frees. Wait for their streams.");
  };
  refused(Wait::never);
  use(1024, Overflow::fail);
  refused(Wait::forever);
  sim::resume(device, hold);
}

TEST_F(BudgetResourceTest, DoesNotWaitIfItWouldNotHelp) {
  const Block held = take(600).value();
  const std::uint64_t hold = stall(other);
  resource->deallocate(take(400, other).value(), other);
  sim::set_patience(device, 1);
  EXPECT_EQ(take(500).failure().number("fits_after_pending"), 0u);
  EXPECT_TRUE(sim::findings(device).empty());  // a wait for a held stream is one
  sim::resume(device, hold);
  resource->deallocate(held, stream);
}

TEST_F(BudgetResourceTest, RunsALoopOfAHundredTimesTheLimit) {
  for (const Overflow overflow : {Overflow::wait, Overflow::evict, Overflow::spill}) {
    use(4096, overflow);
    EXPECT_EQ(budget->overflow(), overflow);
    for (int i = 0; i < 400; ++i) {
      const StreamRef on = i % 3 == 0 ? StreamRef(other) : StreamRef(stream);
      const Result<Block> block = take(1024, on);
      ASSERT_TRUE(block) << block.failure().text();
      on.fill(static_cast<char*>(block->address), block->bytes, 1);
      resource->deallocate(*block, on);
    }
    EXPECT_TRUE(budget->try_wait_for_pending());
    EXPECT_EQ(budget->charged_bytes(), 0u);
    EXPECT_LE(budget->peak_bytes(), 4096u);
  }
}

/// A free fails once; the fault is over, and somebody tries again.
class FailedFree : public BudgetResourceTest {
 protected:
  void fail_once() {
    use(4096);
    const Block block = take(4096).value();
    upstream->arm(TestUpstream::Fault::once, 1);
    resource->deallocate(block, stream);
    EXPECT_EQ(budget->used_bytes(), 4096u);
    EXPECT_EQ(budget->pending_bytes(), 0u);
    EXPECT_EQ(resource->statistics().failed_frees, 1u);
    EXPECT_EQ(resource->statistics().failed_free_bytes, 4096u);
  }
  void expect_freed() {
    stream.synchronize();
    budget->drain();
    EXPECT_EQ(resource->statistics().failed_free_bytes, 0u);
    EXPECT_EQ(budget->used_bytes(), 0u);
  }
};

TEST_F(FailedFree, IsTriedAgainWhenTheBudgetIsDrained) {
  fail_once();
  budget->drain();
  EXPECT_EQ(budget->pending_bytes(), 4096u);
  expect_freed();
}

TEST_F(FailedFree, IsTriedAgainWhenTheResourceIsTrimmed) {
  fail_once();
  resource->trim(0);
  expect_freed();
}

TEST_F(FailedFree, IsTriedAgainByAnAllocation) {
  fail_once();
  // Far from the limit, where nobody drains.
  budget->set_limit(BudgetLimit::bytes(1 * mib));
  const Block block = take(16).value();
  EXPECT_EQ(budget->pending_bytes(), 4096u);
  resource->deallocate(block, stream);
  expect_freed();
}

TEST_F(FailedFree, IsTriedAgainByARequestAtTheLimit) {
  fail_once();
  const Result<Block> block = take(4096);
  ASSERT_TRUE(block) << block.failure().text();
  resource->deallocate(*block, stream);
  expect_freed();
}

TEST_F(FailedFree, IsTriedLessOftenWhileItGoesOnFailing) {
  fail_once();
  budget->set_limit(BudgetLimit::bytes(1 * mib));
  upstream->arm(TestUpstream::Fault::forever, 1);
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(take(16));
  // A thousand refused allocations, and some ten frees.
  EXPECT_LT(upstream->calls, 1020);
  EXPECT_GT(upstream->calls, 1005);
  upstream->arm(TestUpstream::Fault::none, 0);
  resource->trim(0);
  expect_freed();
}

TEST_F(BudgetResourceTest, ForgetsFreesThatAreDoneWithoutALimitToo) {
  resource.reset();
  budget = Budget::make("endless", BudgetLimit::unlimited());
  resource = std::make_shared<BudgetResource>(upstream, budget);
  for (int i = 0; i < 1000; ++i) {
    resource->deallocate(take(1).value(), stream);
    stream.synchronize();
  }
  EXPECT_LE(budget->pending_bytes(), 64u);
}

TEST_F(BudgetResourceTest, DrainsFreesUnderItsParentsOtherChildren) {
  const BudgetHandle parent = limited(1024, "parent");
  auto one = std::make_shared<BudgetResource>(upstream, limited(1024, "one", parent));
  const auto two = std::make_shared<BudgetResource>(upstream, limited(1024, "two", parent));
  one->deallocate(one->allocate({.bytes = 1024, .stream = other}), other);
  other.call([](void*) {}, nullptr);
  const Block block = two->allocate({.bytes = 1024, .stream = stream});
  EXPECT_EQ(parent->used_bytes(), 1024u);
  two->deallocate(block, stream);
}

TEST_F(BudgetResourceTest, HandsWhatIsPendingToTheParentOfABudgetThatEnds) {
  const BudgetHandle parent = limited(1024, "parent");
  const std::uint64_t hold = stall(stream);
  {
    BudgetResource nested(upstream, limited(512, "child", parent));
    nested.deallocate(nested.allocate({.bytes = 512, .stream = stream, .tag = "child"}), stream);
  }
  EXPECT_EQ(parent->pending_bytes(), 512u);
  EXPECT_EQ(parent->used_bytes("child"), 512u);
  sim::resume(device, hold);
  stream.synchronize();
  EXPECT_EQ(parent->drain(), 512u);
  EXPECT_EQ(parent->charged_bytes(), 0u);
}

TEST_F(BudgetResourceTest, EndsItsChargesWithItself) {
  const Block leaked = take(1000).value();
  resource.reset();
  EXPECT_EQ(budget->charged_bytes(), 0u);
  use(1024);  // and the next one finds the block
  EXPECT_EQ(budget->used_bytes(), 1000u);
  resource->deallocate(leaked, stream);
}

TEST_F(BudgetResourceTest, ChangesNothingForABlockFreedTwice) {
  const Block kept = take(200).value(), block = take(300).value();
  ASSERT_TRUE(resource->try_deallocate(block, stream));
  stream.synchronize();
  budget->drain();
  const BudgetState before = state_of(*budget);
  EXPECT_EQ(resource->try_deallocate(block, stream).failure().code(), ErrorCode::use_after_free);
  resource->deallocate(block, stream);
  Block wrong = kept;
  wrong.address = static_cast<char*>(kept.address) + 1;
  EXPECT_EQ(resource->try_deallocate(wrong, stream).failure().code(), ErrorCode::out_of_bounds);
  wrong = kept;
  wrong.device = DeviceId{1'000'000};
  EXPECT_EQ(resource->try_deallocate(wrong, stream).failure().code(), ErrorCode::device_mismatch);
  wrong = kept;
  wrong.bytes = 1;
  EXPECT_EQ(resource->try_deallocate(wrong, stream).failure().code(), ErrorCode::use_after_free);
  EXPECT_EQ(state_of(*budget), before);
  EXPECT_EQ(resource->failed_frees(), 1u);
  EXPECT_EQ(resource->failed_free_bytes(), 0u);
  EXPECT_TRUE(resource->try_deallocate(kept, stream));
}

TEST_F(BudgetResourceTest, KeepsABlockChargedWhoseFreeFailed) {
  use(4096);
  const Block block = take(4096).value();
  upstream->arm(TestUpstream::Fault::once, 1);
  resource->deallocate(block, stream);
  EXPECT_EQ(budget->used_bytes(), 4096u);
  EXPECT_EQ(budget->pending_bytes(), 0u);
  EXPECT_EQ(resource->failed_frees(), 1u);
  EXPECT_EQ(resource->failed_free_bytes(), 4096u);
  EXPECT_EQ(resource->retry_failed_frees(), 1u);
  EXPECT_EQ(budget->pending_bytes(), 4096u);
  stream.synchronize();
  budget->drain();
  EXPECT_EQ(budget->used_bytes(), 0u);
}

TEST_F(BudgetResourceTest, ChargesWhatWasGrantedByAnUpstreamThatBreaksItsPromise) {
  upstream->extra_bytes = 24;
  const Block block = take(1000).value();
  EXPECT_EQ(block.bytes, 1024u);
  EXPECT_EQ(budget->used_bytes(), 1024u);
  resource->deallocate(block, stream);
  stream.synchronize();
  budget->drain();
  EXPECT_EQ(take(1001).failure().code(), ErrorCode::out_of_budget);
  EXPECT_EQ(budget->charged_bytes(), 0u);
  EXPECT_EQ(async->statistics().live_blocks, 0u);
}

// --- Reservations

TEST_F(BudgetResourceTest, PaysFromAReservation) {
  Reservation reservation = budget->reserve(1000);
  const auto draw = [&](std::size_t bytes) {
    return resource->try_allocate(
        {.bytes = bytes, .stream = stream, .tag = "paid", .reservation = &reservation});
  };
  EXPECT_FALSE(take(25));
  const Block first = draw(600).value();
  EXPECT_EQ(reservation.bytes(), 400u);
  EXPECT_EQ(budget->reserved_bytes(), 400u);
  EXPECT_EQ(budget->used_bytes("paid"), 600u);
  EXPECT_EQ(budget->charged_bytes(), 1000u);
  expect_sound(*budget);
  const Result<Block> much = draw(401);
  EXPECT_EQ(much.failure().code(), ErrorCode::out_of_budget);
  EXPECT_EQ(much.failure().number("remaining"), 400u);
  upstream->arm(TestUpstream::Fault::once, 1);
  EXPECT_EQ(draw(400).failure().code(), ErrorCode::out_of_memory);
  EXPECT_EQ(reservation.bytes(), 400u);
  EXPECT_EQ(budget->reserved_bytes(), 400u);
  expect_sound(*budget);
  reservation = {};
  EXPECT_EQ(budget->charged_bytes(), 600u);
  EXPECT_EQ(draw(1).failure().code(), ErrorCode::invalid_argument);
  resource->deallocate(first, stream);
  EXPECT_TRUE(budget->try_wait_for_pending());
  EXPECT_EQ(budget->charged_bytes(), 0u);
}

TEST_F(BudgetResourceTest, PaysFromAReservationAbove) {
  const BudgetHandle parent = limited(1000, "parent");
  const BudgetHandle child = limited(500, "child", parent);
  BudgetResource nested(upstream, child);
  Reservation reservation = parent->reserve(1000);
  const auto draw = [&](std::size_t bytes) {
    return nested.try_allocate({.bytes = bytes, .stream = stream, .reservation = &reservation});
  };
  EXPECT_EQ(draw(501).failure().string("layer"), "parent/child");
  upstream->arm(TestUpstream::Fault::once, 1);
  EXPECT_FALSE(draw(400));
  EXPECT_EQ(reservation.bytes(), 1000u);
  EXPECT_EQ(child->charged_bytes(), 0u);
  const Block block = draw(400).value();
  EXPECT_EQ(child->used_bytes(), 400u);
  EXPECT_EQ(parent->reserved_bytes(), 600u);
  EXPECT_EQ(parent->charged_bytes(), 1000u);
  expect_sound(*parent);
  expect_sound(*child);
  nested.deallocate(block, stream);
  Reservation elsewhere = budget->reserve(100);
  EXPECT_EQ(nested.try_allocate({.bytes = 1, .stream = stream, .reservation = &elsewhere})
                .failure()
                .code(),
            ErrorCode::invalid_argument);
  EXPECT_EQ(elsewhere.bytes(), 100u);
}

// --- Faults

/// Everything a failed call must not change. Frees that are done may be noticed by one; while the
/// stream is held, none is done.
struct Snapshot {
  std::size_t live = 0, reserved = 0, provisional = 0, reservation_left = 0;
  BudgetState leaf = {}, root = {};
  std::vector<std::pair<std::uint16_t, std::size_t>> tags = {};
  friend bool operator==(const Snapshot&, const Snapshot&) = default;
};

class BudgetFaults : public BudgetResourceTest {
 protected:
  BudgetHandle root = limited(8192, "root");
  BudgetHandle leaf = limited(4096, "leaf", root);
  Reservation reservation;

  [[nodiscard]] Snapshot snapshot(bool is_held) const {
    Snapshot now;
    now.live = leaf->live_bytes();
    now.reserved = leaf->reserved_bytes();
    now.provisional = leaf->provisional_bytes() + root->provisional_bytes();
    now.reservation_left = reservation.bytes();
    if (!is_held) return now;
    now.leaf = state_of(*leaf);
    now.root = state_of(*root);
    for (const auto& [tag, bytes] : leaf->used_by_tag()) now.tags.emplace_back(tag.number(), bytes);
    return now;
  }

  /// Allocations of all kinds up to the limit, and frees. Gives how many calls failed, each of
  /// which has left no trace.
  int run(BudgetResource& under_test,
          const std::function<void(const std::function<void()>&)>& armed) {
    int failures = 0;
    bool is_held = true;
    std::vector<std::pair<Block, StreamRef>> blocks;
    const auto step = [&](const Request& request) {
      const Snapshot before = snapshot(is_held);
      const std::size_t live = async->statistics().live_bytes;
      std::optional<Result<Block>> block;
      armed([&] { block.emplace(under_test.try_allocate(request)); });
      if (*block) {
        blocks.emplace_back(**block, request.stream);
      } else {
        ++failures;
        EXPECT_TRUE(snapshot(is_held) == before);
        EXPECT_EQ(async->statistics().live_bytes, live);
      }
    };
    const auto free = [&] {
      if (blocks.empty()) return;
      const Snapshot before = snapshot(is_held);
      bool is_freed = false;
      const auto& [block, on] = blocks.back();
      armed([&, freed = block, by = on] { is_freed = bool(under_test.try_deallocate(freed, by)); });
      if (is_freed) {
        blocks.pop_back();
      } else {
        ++failures;
        EXPECT_TRUE(snapshot(is_held) == before);
      }
    };
    reservation = leaf->reserve(1000);
    step({.bytes = 1000, .stream = stream, .tag = "a"});
    step({.bytes = 600, .stream = stream, .tag = "b", .reservation = &reservation});
    step({.bytes = 2000, .stream = stream, .tag = "a"});
    const std::uint64_t hold = stall(stream);
    free();
    step({.bytes = 2000, .stream = stream, .tag = "c", .wait = Wait::never});
    free();
    step({.bytes = 1500, .stream = stream, .tag = "c", .wait = Wait::never});
    sim::resume(device, hold);
    is_held = false;
    free();
    step({.bytes = 2096, .stream = other, .tag = "d"});
    reservation = {};
    for (const auto& [block, on] : blocks) EXPECT_TRUE(under_test.try_deallocate(block, on));
    EXPECT_TRUE(leaf->try_wait_for_pending());
    EXPECT_EQ(root->charged_bytes(), 0u);
    EXPECT_EQ(leaf->charged_bytes(), 0u);
    expect_sound(*leaf);
    expect_sound(*root);
    return failures;
  }
};

TEST_F(BudgetFaults, LeaveChargesUnchangedWhicheverUpstreamCallFails) {
  using Fault = TestUpstream::Fault;
  BudgetResource under_test(upstream, leaf);
  int runs = 0;
  for (const Fault fault : {Fault::once, Fault::forever, Fault::every_second}) {
    for (int at = 1;; ++at) {
      upstream->arm(fault, at);
      const int failures = run(under_test, [&](const std::function<void()>& call) {
        upstream->fault = fault;
        call();
        upstream->fault = Fault::none;
      });
      ++runs;
      // The frees at the end are calls, too, and are not armed.
      if (failures == 0 && at > upstream->calls) break;
      ASSERT_LT(at, 100);
    }
  }
  EXPECT_GT(runs, 30);
}

TEST_F(BudgetFaults, LeaveChargesUnchangedWithoutHostMemory) {
  if (!test::HeapExhausted::is_possible()) {
    GTEST_SKIP() << "operator new cannot be refused here";
  }
  int failures_in_all = 0;
  for (std::size_t left = 0;; ++left) {
    // Room enough that nobody asks the simulated device, which needs the heap to answer.
    root = limited(1 * mib, "root");
    leaf = limited(1 * mib, "leaf", root);
    BudgetResource under_test(upstream, leaf);
    const int failures = run(under_test, [&](const std::function<void()>& call) {
      const test::HeapExhausted exhausted(left);
      call();
    });
    if (failures == 0) break;
    failures_in_all += failures;
    ASSERT_LT(left, 50u);
  }
  EXPECT_GT(failures_in_all, 5);
}

// --- Threads

TEST_F(BudgetResourceTest, ChargesExactlyUnderThreads) {
  constexpr int thread_count = 16, steps = 300;
  const BudgetHandle root = limited(8 * kib, "root");
  BudgetResource resources[] = {{upstream, limited(6 * kib, "a", root)},
                                {upstream, limited(6 * kib, "b", root)}};
  std::vector<Stream> streams;
  for (int i = 0; i < 4; ++i) streams.emplace_back(device);
  std::atomic<bool> is_over = false;
  std::atomic<std::size_t> above = 0, grants = 0;
  test::Thread watcher([&] {
    while (!is_over) above += root->used_bytes() > 8 * kib || root->charged_bytes() > 8 * kib;
  });
  // Blocks are handed on, so that they are freed by other threads.
  std::mutex mutex;
  struct Handed {
    Block block = {};
    BudgetResource* from = nullptr;
    StreamRef on = {};
  };
  std::deque<Handed> handed;
  std::vector<test::Thread> threads;
  for (int i = 0; i < thread_count; ++i) {
    threads.emplace_back([&, i] {
      for (int step = 0; step < steps; ++step) {
        BudgetResource& from = resources[i % 2];
        const StreamRef on = streams[static_cast<std::size_t>((i + step) % 4)];
        const Result<Block> block =
            from.try_allocate({.bytes = static_cast<std::size_t>(256 + 64 * (step % 9)),
                               .stream = on,
                               .tag = i % 3 == 0 ? "x" : "y",
                               .wait = step % 2 == 0 ? Wait::never : Wait::forever});
        Handed next;
        {
          const std::lock_guard lock(mutex);
          if (block) handed.push_back({*block, &from, on});
          if (handed.size() < 4) continue;
          next = handed.front();
          handed.pop_front();
        }
        if (block) ++grants;
        EXPECT_TRUE(next.from->try_deallocate(next.block, next.on));
      }
    });
  }
  for (test::Thread& thread : threads) thread.join();
  is_over = true;
  watcher.join();
  for (const auto& [block, from, on] : handed) from->deallocate(block, on);
  EXPECT_TRUE(root->try_wait_for_pending());
  EXPECT_EQ(above, 0u);
  EXPECT_GT(grants, 100u);
  EXPECT_LE(root->peak_bytes(), 8 * kib);
  EXPECT_EQ(state_of(*root).charged_bytes, 0u);
  EXPECT_EQ(root->pending_bytes(), 0u);
  expect_sound(*root);
  EXPECT_EQ(async->statistics().live_bytes, 0u);
}

TEST_F(BudgetResourceTest, DrainsWhileOthersFree) {
  use(1 * mib);
  std::atomic<int> running = 4;
  std::vector<test::Thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int step = 0; step < 200; ++step) {
        const Result<Block> block = take(1 * kib);
        ASSERT_TRUE(block) << block.failure().text();
        resource->deallocate(*block, stream);
      }
      --running;
    });
  }
  while (running > 0) budget->drain();
  for (test::Thread& thread : threads) thread.join();
  stream.synchronize();
  budget->drain();
  EXPECT_EQ(budget->live_bytes(), 0u);
  EXPECT_EQ(budget->pending_bytes(), 0u);
  EXPECT_EQ(budget->used_bytes(), 0u);
  EXPECT_EQ(budget->charged_bytes(), 0u);
}

TEST_F(BudgetResourceTest, LetsOneOfTwoThreadsFreeABlock) {
  for (int round = 0; round < 200; ++round) {
    const Block block = take(512).value();
    std::atomic<int> freed = 0;
    const auto free = [&] { freed += bool(resource->try_deallocate(block, stream)); };
    test::Thread thread(free);
    free();
    thread.join();
    EXPECT_EQ(freed, 1);
  }
  EXPECT_TRUE(budget->try_wait_for_pending());
  EXPECT_EQ(budget->charged_bytes(), 0u);
}

TEST_F(BudgetResourceTest, HoldsNoLockWhileItWaits) {
  const BudgetHandle root = limited(1 * mib, "root");
  BudgetResource full(upstream, limited(1024, "full", root));
  BudgetResource roomy(upstream, limited(4096, "roomy", root));
  const std::uint64_t hold = stall(other);
  full.deallocate(full.allocate({.bytes = 1024, .stream = other}), other);
  std::optional<Result<Block>> late;
  std::atomic<bool> is_late = false;
  test::Thread waiting([&] {
    late.emplace(full.try_allocate({.bytes = 1024, .stream = stream}));
    is_late = true;
  });
  std::size_t refusals = 0;
  for (int i = 0; i < 100'000; ++i) refusals += !roomy.budget()->try_charge(100);
  for (int i = 0; i < 1000; ++i) {
    const Result<Block> block = roomy.try_allocate({.bytes = 1024, .stream = stream});
    refusals += !block;
    if (block) roomy.deallocate(*block, stream);
  }
  EXPECT_EQ(refusals, 0u);
  EXPECT_FALSE(is_late);
  sim::resume(device, hold);
  waiting.join();
  ASSERT_TRUE(*late) << late->failure().text();
  full.deallocate(**late, stream);
}

TEST_F(BudgetResourceTest, RefusesABlockThatIsBeingFreed) {
  const Block block = take(512).value();
  int frees = 0;
  upstream->in_deallocate = [&] {
    if (++frees > 1) return;
    const Result<void> again = resource->try_deallocate(block, stream);
    EXPECT_FALSE(again);
    EXPECT_EQ(again.failure().code(), ErrorCode::use_after_free);
  };
  EXPECT_TRUE(resource->try_deallocate(block, stream));
  EXPECT_EQ(frees, 1);
  EXPECT_TRUE(budget->try_wait_for_pending());
  EXPECT_EQ(budget->charged_bytes(), 0u);
}

TEST_F(BudgetResourceTest, HoldsNoLockWhileTheUpstreamIsAsked) {
  bool is_nested = false;
  upstream->in_allocate = [&] {
    if (std::exchange(is_nested, true)) return;
    const Block block = take(100).value();
    resource->deallocate(block, stream);
    EXPECT_EQ(budget->provisional_bytes(), 100u);
    budget->drain();
  };
  resource->deallocate(take(100).value(), stream);
  EXPECT_TRUE(is_nested);
}

TEST(BudgetOverPool, ChargesNothingForWhatTheHostHasFreed) {
  const Device device = sim::open({.policy = sim::Policy::lazy, .memory_bytes = 64 * mib});
  const auto pool = std::make_shared<PoolResource>(device);
  const BudgetHandle budget = limited(4 * mib);
  BudgetResource resource(pool, budget);
  // Whatever the default stream does: the block was the host's.
  const std::uint64_t held = sim::hold(device.default_stream());
  resource.deallocate(resource.allocate({.bytes = 4 * mib}), {});
  EXPECT_EQ(budget->pending_bytes(), 0u);
  const Result<Block> next = resource.try_allocate({.bytes = 1 * mib, .wait = Wait::never});
  EXPECT_TRUE(next);
  if (next) resource.deallocate(*next, {});
  sim::resume(device, held);
  // A guard writes to what is freed, on a stream, so its frees are passed like any other.
  GuardResource guard(pool);
  EXPECT_FALSE(guard.traits().frees_for_host_at_once);
  EXPECT_TRUE(pool->traits().frees_for_host_at_once);
}

}  // namespace
}  // namespace tern
