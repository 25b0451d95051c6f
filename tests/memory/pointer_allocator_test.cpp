#include "tern/memory/pointer_allocator.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "device/device_state.hpp"
#include "support/cuda_bench.hpp"
#include "support/forked_child.hpp"
#include "support/thorough.hpp"
#include "support/thread.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/bytes.hpp"
#include "tern/core/error.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/fault_resource.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {
namespace {

template <class T>
ErrorCode code_of(const Result<T>& result) {
  return result ? ErrorCode{} : result.failure().code();
}

class PointerAllocatorTest : public testing::Test {
 protected:
  ~PointerAllocatorTest() override {
    EXPECT_TRUE(sim::findings(device).empty()) << sim::findings(device)[0].text();
  }
  /// Work of a stream that uses the memory.
  static void use(StreamRef on, void* address, std::size_t bytes) {
    on.fill(static_cast<std::byte*>(address), bytes, std::byte{1});
  }

  Device device = sim::open({.policy = sim::Policy::lazy,
                             .mode = sim::Mode::collect,
                             .print_findings = false,
                             .memory_bytes = 256 * mib});
  Stream stream{device}, other{device};
  std::shared_ptr<PoolResource> pool = std::make_shared<PoolResource>(device);
  PointerAllocator allocator{pool};
};

TEST_F(PointerAllocatorTest, FreesByAddress) {
  void* const address = allocator.allocate({.bytes = 1000, .stream = stream});
  EXPECT_EQ(PointerAllocator::find(address).address, address);
  EXPECT_EQ(PointerAllocator::find(address).bytes, 1024u);
  EXPECT_EQ(pool->statistics().live_blocks, 1u);
  PointerAllocator::free(address, stream);
  EXPECT_EQ(pool->statistics().live_blocks, 0u);
  EXPECT_EQ(code_of(PointerAllocator::try_find(address)), ErrorCode::use_after_free);
}

TEST_F(PointerAllocatorTest, RefusesASecondFreeAndUnknownAddresses) {
  void* const address = allocator.allocate({.bytes = 1000, .stream = stream});
  int local = 0;
  EXPECT_EQ(code_of(PointerAllocator::try_free(&local, stream)), ErrorCode::use_after_free);
  EXPECT_EQ(code_of(PointerAllocator::try_free(static_cast<char*>(address) + 256, stream)),
            ErrorCode::use_after_free);
  EXPECT_TRUE(PointerAllocator::try_free(nullptr, stream));
  EXPECT_TRUE(PointerAllocator::try_free_in_order(nullptr));
  PointerAllocator::free(address, stream);
  EXPECT_EQ(code_of(PointerAllocator::try_free(address, stream)), ErrorCode::use_after_free);
  EXPECT_EQ(code_of(PointerAllocator::try_free_in_order(address)), ErrorCode::use_after_free);
  EXPECT_EQ(code_of(PointerAllocator::try_record_use(address, other)), ErrorCode::use_after_free);
  // The pool uses the memory again, and a third free must not free what is not of the allocator.
  const Block reused = pool->allocate({.bytes = 1000, .stream = stream});
  EXPECT_EQ(reused.address, address);
  EXPECT_EQ(code_of(PointerAllocator::try_free(address, stream)), ErrorCode::use_after_free);
  pool->deallocate(reused, stream);
  EXPECT_EQ(pool->statistics().live_blocks, 0u);
}

TEST_F(PointerAllocatorTest, AFailedFreeChangesNothing) {
  const auto faulty = std::make_shared<FaultResource>(pool);
  const PointerAllocator failing(faulty);
  void* const address = failing.allocate({.bytes = 1000, .stream = stream});
  faulty->set_rules({{.for_frees = true, .nth = 1}});
  EXPECT_FALSE(PointerAllocator::try_free(address, stream));
  EXPECT_EQ(PointerAllocator::find(address).address, address);
  EXPECT_TRUE(PointerAllocator::try_free(address, stream));
  faulty->set_rules({{.nth = 1}});
  EXPECT_EQ(code_of(failing.try_allocate({.bytes = 10, .stream = stream})),
            ErrorCode::out_of_memory);
  EXPECT_EQ(failing.allocate({.bytes = 0, .stream = stream}), nullptr);
}

TEST_F(PointerAllocatorTest, AnotherStreamDelaysAFree) {
  void* const address = allocator.allocate({.bytes = 1 * mib, .stream = stream});
  use(stream, address, 1 * mib);
  other.wait(stream.mark());
  const std::uint64_t hold = sim::hold(other);
  use(other, address, 1 * mib);
  PointerAllocator::record_use(address, other);
  PointerAllocator::record_use(address, other);
  PointerAllocator::record_use(address, stream);
  PointerAllocator::free(address, stream);
  EXPECT_EQ(code_of(PointerAllocator::try_free(address, stream)), ErrorCode::use_after_free);
  EXPECT_EQ(pool->statistics().live_bytes, 1 * mib) << "the other stream still uses it";
  EXPECT_EQ(allocator.poll(), 1u);
  void* const next = allocator.allocate({.bytes = 1 * mib, .stream = stream});
  EXPECT_NE(next, address);
  use(stream, next, 1 * mib);
  sim::resume(device, hold);
  other.synchronize();
  void* const after = allocator.allocate({.bytes = 1 * mib, .stream = stream});
  EXPECT_EQ(after, address) << "an allocation frees what is no longer in use";
  use(stream, after, 1 * mib);
  PointerAllocator::free(next, stream);
  PointerAllocator::free(after, stream);
  EXPECT_EQ(allocator.poll(), 0u);
  EXPECT_EQ(pool->statistics().live_bytes, 0u);
}

TEST_F(PointerAllocatorTest, WithoutARecordedUseTheCheckerReportsTheReuse) {
  void* const address = allocator.allocate({.bytes = 1 * mib, .stream = stream});
  use(stream, address, 1 * mib);
  other.wait(stream.mark());
  use(other, address, 1 * mib);
  PointerAllocator::free(address, stream);
  void* const again = allocator.allocate({.bytes = 1 * mib, .stream = stream});
  EXPECT_EQ(again, address);
  use(stream, again, 1 * mib);
  PointerAllocator::free(again, stream);
  device.synchronize();
  EXPECT_FALSE(sim::findings(device).empty());
  // The fixture expects none.
  device = sim::open({});
}

TEST_F(PointerAllocatorTest, ARequestWaitsForDelayedFreesBeforeItFails) {
  const auto small = std::make_shared<PoolResource>(device, PoolOptions{.limit_bytes = 4 * mib});
  const PointerAllocator tight(small);
  void* const address = tight.allocate({.bytes = 3 * mib, .stream = stream});
  other.wait(stream.mark());
  use(other, address, 3 * mib);
  PointerAllocator::record_use(address, other);
  PointerAllocator::free(address, stream);
  EXPECT_EQ(code_of(tight.try_allocate({.bytes = 3 * mib, .stream = stream, .wait = Wait::never})),
            ErrorCode::out_of_memory);
  void* const next = tight.allocate({.bytes = 3 * mib, .stream = stream});
  use(stream, next, 3 * mib);
  PointerAllocator::free(next, stream);
}

TEST_F(PointerAllocatorTest, AStreamThatEndsAfterItsUseStillDelaysTheFree) {
  void* const address = allocator.allocate({.bytes = 1 * mib, .stream = stream});
  std::uint64_t hold = 0;
  {
    const Stream brief(device);
    brief.wait(stream.mark());
    hold = sim::hold(brief);
    use(brief, address, 1 * mib);
    PointerAllocator::record_use(address, brief);
  }
  PointerAllocator::free(address, stream);
  EXPECT_EQ(allocator.poll(), 1u);
  sim::resume(device, hold);
  device.synchronize();
  EXPECT_EQ(allocator.poll(), 0u);
}

TEST_F(PointerAllocatorTest, RefusesAUseOfAnotherDevice) {
  const Device second = sim::open({});
  const Stream elsewhere(second);
  void* const address = allocator.allocate({.bytes = 10, .stream = stream});
  EXPECT_EQ(code_of(PointerAllocator::try_record_use(address, elsewhere)),
            ErrorCode::device_mismatch);
  EXPECT_EQ(code_of(PointerAllocator::try_free(address, elsewhere)), ErrorCode::device_mismatch);
  PointerAllocator::free(address, stream);
}

TEST_F(PointerAllocatorTest, FreesInTheOrderOfAStreamThatHasEnded) {
  void* address = nullptr;
  {
    const Stream brief(device);
    address = allocator.allocate({.bytes = 1 * mib, .stream = brief});
    use(brief, address, 1 * mib);
  }
  PointerAllocator::free_in_order(address);
  void* const next = allocator.allocate({.bytes = 1 * mib, .stream = stream});
  use(stream, next, 1 * mib);
  PointerAllocator::free_in_order(next);
  EXPECT_EQ(pool->statistics().live_bytes, 0u);
}

TEST_F(PointerAllocatorTest, KeepsTheResourceUntilTheLastFree) {
  auto mine = std::make_shared<PoolResource>(device);
  const std::weak_ptr<PoolResource> watched = mine;
  auto last = std::make_unique<PointerAllocator>(std::move(mine));
  void* const address = last->allocate({.bytes = 1000, .stream = stream});
  last.reset();
  EXPECT_FALSE(watched.expired());
  // A new allocator of the same resource is the same owner.
  last = std::make_unique<PointerAllocator>(watched.lock());
  last.reset();
  EXPECT_FALSE(watched.expired());
  PointerAllocator::free(address, stream);
  EXPECT_TRUE(watched.expired());
  last = std::make_unique<PointerAllocator>(std::make_shared<PoolResource>(device));
  PointerAllocator::free(last->allocate({.bytes = 1000, .stream = stream}), stream);
}

/// The last reference waits for delayed frees. Meanwhile another thread makes a new allocator.
TEST_F(PointerAllocatorTest, AResourceThatIsTakenUpAgainDoesNotEnd) {
  auto mine = std::make_shared<PoolResource>(device);
  auto last = std::make_unique<PointerAllocator>(mine);
  void* const address = last->allocate({.bytes = 1000, .stream = stream});
  other.wait(stream.mark());
  use(other, address, 1000);
  PointerAllocator::record_use(address, other);
  PointerAllocator::free(address, stream);
  std::unique_ptr<PointerAllocator> next;
  test::Thread ends([&] { last.reset(); });
  next = std::make_unique<PointerAllocator>(mine);
  ends = {};
  EXPECT_EQ(next->resource(), mine);
  PointerAllocator::free(next->allocate({.bytes = 1000, .stream = stream}), stream);
}

TEST_F(PointerAllocatorTest, ThreadsRecordUsesOfOneBlock) {
  std::vector<Stream> streams;
  for (int i = 0; i < 4; ++i) streams.emplace_back(device);
  for (int round = 0; round < (test::is_sanitized ? 100 : 1000); ++round) {
    void* const address = allocator.allocate({.bytes = 1000, .stream = stream});
    std::vector<test::Thread> threads;
    for (const Stream& one : streams) {
      threads.emplace_back([&] { EXPECT_TRUE(PointerAllocator::try_record_use(address, one)); });
    }
    threads.clear();
    EXPECT_TRUE(PointerAllocator::try_free(address, stream));
  }
  device.synchronize();
  EXPECT_EQ(allocator.poll(), 0u);
}

TEST_F(PointerAllocatorTest, AFreeWithoutAnAllocatorWaitsForTheUsesOfItsBlock) {
  auto mine = std::make_shared<PoolResource>(device);
  const std::weak_ptr<PoolResource> watched = mine;
  auto last = std::make_unique<PointerAllocator>(std::move(mine));
  void* const address = last->allocate({.bytes = 1000, .stream = stream});
  other.wait(stream.mark());
  use(other, address, 1000);
  PointerAllocator::record_use(address, other);
  last.reset();
  PointerAllocator::free(address, stream);
  EXPECT_TRUE(watched.expired());
}

TEST_F(PointerAllocatorTest, RefusesNoResource) {
  EXPECT_THROW(PointerAllocator(nullptr), InvalidArgument);
}

TEST_F(PointerAllocatorTest, AChargeEndsWithTheFree) {
  const BudgetHandle budget = Budget::make("library", BudgetLimit::bytes(4 * mib));
  const PointerAllocator charged(std::make_shared<BudgetResource>(pool, budget));
  void* const address = charged.allocate({.bytes = 3 * mib, .stream = stream});
  EXPECT_EQ(budget->live_bytes(), 3 * mib);
  EXPECT_EQ(code_of(charged.try_allocate({.bytes = 2 * mib, .stream = stream})),
            ErrorCode::out_of_budget);
  PointerAllocator::free(address, stream);
  EXPECT_EQ(budget->live_bytes(), 0u);
  stream.synchronize();
  budget->drain();
  EXPECT_EQ(budget->charged_bytes(), 0u);
}

TEST_F(PointerAllocatorTest, ThreadsFreeWhatOthersAllocate) {
  const auto small =
      std::make_shared<BudgetResource>(pool, Budget::make("threads", BudgetLimit::bytes(64 * mib)));
  const std::vector<PointerAllocator> allocators = {allocator, PointerAllocator(small)};
  constexpr int threads = 4, rounds = 2000;
  std::array<std::atomic<void*>, 64> shared = {};
  std::vector<test::Thread> running;
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([&, i] {
      std::mt19937_64 random(static_cast<std::uint64_t>(i));
      const Stream own(device);
      for (int round = 0; round < rounds / (test::is_sanitized ? 4 : 1); ++round) {
        void* made =
            allocators[random() % 2].allocate({.bytes = 1 + random() % 100'000, .stream = own});
        if (random() % 4 == 0) PointerAllocator::record_use(made, stream);
        made = shared[random() % shared.size()].exchange(made);
        if (made != nullptr) PointerAllocator::free_in_order(made);
      }
    });
  }
  running.clear();
  for (auto& one : shared) PointerAllocator::free_in_order(one.exchange(nullptr));
  device.synchronize();
  for (const PointerAllocator& one : allocators) EXPECT_EQ(one.poll(), 0u);
  EXPECT_EQ(pool->statistics().live_bytes, 0u);
}

/// Random programs on two streams, against a model of what must be live. The checker of the device
/// judges every use.
TEST_F(PointerAllocatorTest, AgreesWithAModel) {
  struct Live {
    std::size_t bytes;
    bool is_used_elsewhere;
  };
  const int programs = test::in_full() ? 200 : 20;
  for (int seed = 0; seed < programs; ++seed) {
    std::mt19937_64 random(static_cast<std::uint64_t>(seed));
    const auto budget = Budget::make("model", BudgetLimit::bytes(32 * mib));
    const auto faulty = std::make_shared<FaultResource>(
        std::make_shared<BudgetResource>(pool, budget),
        std::vector<FaultRule>{{.rate = 0.05, .seed = random()},
                               {.for_frees = true, .rate = 0.05, .seed = random()}});
    const PointerAllocator mine(faulty);
    std::map<void*, Live> live;
    for (int step = 0; step < 300; ++step) {
      const StreamRef on = random() % 2 == 0 ? StreamRef(stream) : StreamRef(other);
      if (live.empty() || random() % 2 == 0) {
        const std::size_t bytes = 1 + (random() % (4 * mib) >> random() % 16);
        const Result<void*> made = mine.try_allocate({.bytes = bytes, .stream = stream});
        if (!made) continue;
        EXPECT_TRUE(live.emplace(*made, Live{bytes, false}).second) << "live twice";
        use(stream, *made, bytes);
        continue;
      }
      auto chosen = live.begin();
      std::advance(chosen, static_cast<std::ptrdiff_t>(random() % live.size()));
      auto& [address, block] = *chosen;
      if (random() % 3 == 0) {
        ASSERT_TRUE(PointerAllocator::try_record_use(address, other));
        if (on == StreamRef(other)) {
          other.wait(stream.mark());
          use(other, address, block.bytes);
        }
      } else {
        const Result<void> freed = random() % 2 == 0 ? PointerAllocator::try_free(address, stream)
                                                     : PointerAllocator::try_free_in_order(address);
        if (!freed) continue;
        EXPECT_FALSE(PointerAllocator::try_free(address, stream));
        live.erase(chosen);
      }
    }
    faulty->set_rules({});
    for (const auto& [address, block] : live) PointerAllocator::free(address, stream);
    device.synchronize();
    EXPECT_EQ(mine.poll(), 0u);
    device.synchronize();  // the frees of poll() are in the order of the stream
    budget->drain();
    EXPECT_EQ(budget->charged_bytes(), 0u) << "seed " << seed;
    EXPECT_TRUE(sim::findings(device).empty()) << "seed " << seed;
  }
}

TEST_F(PointerAllocatorTest, AForkedChildFreesNothingAndIsNotStuck) {
  if (!test::children_can_allocate) GTEST_SKIP() << "the sanitizer's allocator is not usable here";
  void* const address = allocator.allocate({.bytes = 1000, .stream = stream});
  EXPECT_EQ(test::in_a_forked_child([&] {
              return !allocator.try_allocate({.bytes = 1000, .stream = stream}) &&
                     PointerAllocator::try_free(address, stream);
            }),
            0);
  PointerAllocator::free(address, stream);
  EXPECT_EQ(pool->statistics().live_blocks, 0u);
}

// --- Streams of other libraries, on a fake driver that reuses handles at once

using cuda::CudaBench;
using cuda::CUstream;

class PointersOfForeignStreamsTest : public testing::Test {
 protected:
  [[nodiscard]] Stream borrow(CUstream on) const {
    return Stream::borrow(device, {reinterpret_cast<std::uintptr_t>(on)});
  }
  /// An allocation and a free as a plug-in makes them. Many of them make the device keep the
  /// stream.
  void warm_up(CUstream on) const {
    for (int i = 0; i < 20; ++i) PointerAllocator::free_in_order(allocate(on));
  }
  [[nodiscard]] void* allocate(CUstream on) const {
    return allocator.allocate({.bytes = 4096, .stream = borrow(on)});
  }

  CudaBench bench;
  const CudaBench::Elsewhere elsewhere{bench};
  Device device{bench.open(0).value()};
  std::shared_ptr<PoolResource> pool = std::make_shared<PoolResource>(device);
  PointerAllocator allocator{pool};
};

TEST_F(PointersOfForeignStreamsTest, AFreeInOrderMakesNoDriverCall) {
  const CUstream foreign = bench.foreign_stream();
  warm_up(foreign);
  void* const address = allocate(foreign);
  const std::uint64_t before = bench.fake.total_calls();
  PointerAllocator::free_in_order(address);
  EXPECT_EQ(bench.fake.total_calls(), before);
  EXPECT_EQ(allocate(foreign), address) << "the stream gets its own memory without a wait";
  EXPECT_EQ(bench.fake.total_calls(), before + 2);
  PointerAllocator::free_in_order(address);
  bench.end_foreign(foreign);
}

TEST_F(PointersOfForeignStreamsTest, AFreeInOrderMayFollowTheEndOfTheStream) {
  const CUstream foreign = bench.foreign_stream();
  warm_up(foreign);
  void* const address = allocate(foreign);
  const std::uint64_t hold = bench.fake.hold(foreign);
  bench.fill(address, 4096, 7, {reinterpret_cast<std::uintptr_t>(foreign)});
  bench.end_foreign(foreign);
  const CUstream second = bench.foreign_stream();
  ASSERT_EQ(foreign, second) << "the driver reuses the handle";
  PointerAllocator::free_in_order(address);
  void* const other = allocate(second);
  EXPECT_NE(other, address) << "the first stream has not passed the free";
  bench.fill(other, 4096, 7, {reinterpret_cast<std::uintptr_t>(second)});
  PointerAllocator::free(other, borrow(second));
  test::Thread([&] { bench.fake.resume(hold); }).join();
  device.synchronize();
  bench.end_foreign(second);
  EXPECT_EQ(pool->statistics().live_blocks, 0u);
  EXPECT_GT(pool->trim(0), 0u);
}

/// The device does not keep the stream, so its last mark is as old as the loan.
TEST_F(PointersOfForeignStreamsTest, AFreeInOrderWaitsForAStreamThatIsNotKept) {
  const CUstream foreign = bench.foreign_stream();
  void* const address = allocate(foreign);
  bench.fill(address, 4096, 7, {reinterpret_cast<std::uintptr_t>(foreign)});
  const std::uint64_t waits = bench.fake.calls("cuCtxSynchronize");
  PointerAllocator::free_in_order(address);
  EXPECT_GT(bench.fake.calls("cuCtxSynchronize"), waits);
  void* const next = allocator.allocate({.bytes = 4096});
  PointerAllocator::free(next, StreamRef());
  bench.end_foreign(foreign);
}

TEST_F(PointersOfForeignStreamsTest, ARecordedUseCoversWorkUntilTheFree) {
  const CUstream first = bench.foreign_stream(), second = bench.foreign_stream();
  warm_up(first);
  warm_up(second);
  void* const address = allocate(first);
  PointerAllocator::record_use(address, borrow(second));
  const std::uint64_t hold = bench.fake.hold(second);
  bench.fill(address, 4096, 7, {reinterpret_cast<std::uintptr_t>(second)});
  PointerAllocator::free_in_order(address);
  EXPECT_NE(allocate(first), address);
  test::Thread([&] { bench.fake.resume(hold); }).join();
  device.synchronize();
  bench.end_foreign(first);
  bench.end_foreign(second);
}

TEST_F(PointersOfForeignStreamsTest, ARecordedUseDelaysAFreeWithoutALoan) {
  const CUstream first = bench.foreign_stream(), second = bench.foreign_stream();
  warm_up(first);
  warm_up(second);
  void* const address = allocate(first);
  const std::uint64_t hold = bench.fake.hold(second);
  bench.fill(address, 4096, 7, {reinterpret_cast<std::uintptr_t>(second)});
  PointerAllocator::record_use(address, borrow(second));
  PointerAllocator::free_in_order(address);
  EXPECT_NE(allocate(first), address);
  static_cast<void>(borrow(second));  // records the event that the query has asked for
  EXPECT_EQ(allocator.poll(), 1u);
  test::Thread([&] { bench.fake.resume(hold); }).join();
  device.synchronize();
  EXPECT_EQ(allocator.poll(), 0u);
  bench.end_foreign(first);
  bench.end_foreign(second);
}

}  // namespace
}  // namespace tern
