#include "tern/detail/buffer/storage.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <set>
#include <thread>
#include <vector>

#include "support/fake_backend.hpp"
#include "support/gate.hpp"
#include "support/temporary_folder.hpp"
#include "support/thread.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/array.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/buffer/file.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/buffer/storage_options.hpp"
#include "tern/buffer/use.hpp"
#include "tern/core/bytes.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/default_resource.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/fault_resource.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {
namespace {

class StorageTest : public testing::Test {
 protected:
  StorageHandle make(std::size_t bytes, StorageOptions options = {}) {
    if (!options.resource) options.resource = pool;
    return Storage::try_make(device, bytes, options).value();
  }
  Statistics now() const { return pool->statistics(); }

  Device device = sim::open({.policy = sim::Policy::lazy});
  ResourceHandle pool = std::make_shared<PoolResource>(device);
  Stream a{device}, b{device};
};

TEST_F(StorageTest, HasAnIdBeforeItHasMemory) {
  const StorageHandle one = make(100), two = make(100);
  EXPECT_TRUE(one->id());
  EXPECT_LT(one->id(), two->id());
  EXPECT_FALSE(one->is_allocated());
  EXPECT_EQ(now().requests, 0u);
}

TEST_F(StorageTest, GivesThreadsDistinctIds) {
  constexpr std::size_t threads = 8, each = 10'000;
  std::vector<std::vector<std::uint64_t>> ids(threads);
  std::vector<test::Thread> running;
  for (std::vector<std::uint64_t>& mine : ids) {
    running.emplace_back([&] {
      for (std::size_t i = 0; i < each; ++i) mine.push_back(make(8)->id().value);
    });
  }
  for (test::Thread& thread : running) thread.join();
  std::set<std::uint64_t> all;
  for (const auto& mine : ids) {
    EXPECT_TRUE(std::ranges::is_sorted(mine));
    all.insert(mine.begin(), mine.end());
  }
  EXPECT_EQ(all.size(), threads * each);
  EXPECT_EQ(now().requests, 0u);
}

TEST_F(StorageTest, AllocatesOnFirstUseAndOnlyThen) {
  const StorageHandle storage = make(4096);
  EXPECT_FALSE(storage->is_allocated());
  EXPECT_EQ(storage->try_block().failure().code(), ErrorCode::not_allocated);
  ASSERT_TRUE(storage->try_ensure({}, {}));
  EXPECT_TRUE(storage->is_allocated());
  const Block block = *storage->try_block();
  ASSERT_TRUE(storage->try_ensure(a, {}));
  EXPECT_EQ(*storage->try_block(), block);
  EXPECT_EQ(now().requests, 1u);
}

TEST_F(StorageTest, AllocatesOnceHoweverManyThreadsRace) {
  constexpr int threads = 64;
  for (int round = 0; round < 20; ++round) {
    const Statistics before = now();
    const StorageHandle storage = make(1000 + static_cast<std::size_t>(round));
    std::atomic<int> waiting = 0;
    std::array<void*, threads> seen = {};
    std::vector<test::Thread> running;
    for (int i = 0; i < threads; ++i) {
      running.emplace_back([&, i] {
        waiting.fetch_add(1);
        while (waiting.load() < threads) std::this_thread::yield();
        ASSERT_TRUE(storage->try_ensure({}, {}));
        seen[static_cast<std::size_t>(i)] = storage->try_block()->address;
      });
    }
    for (test::Thread& thread : running) thread.join();
    for (void* address : seen) EXPECT_EQ(address, seen[0]);
    EXPECT_EQ(now().requests, before.requests + 1);
  }
  EXPECT_EQ(now().live_bytes, 0u);
}

TEST_F(StorageTest, AllowsWaitsForUsesDuringTheFirstUse) {
  constexpr int threads = 8;
  for (int round = 0; round < 50; ++round) {
    const StorageHandle storage = make(4096);
    std::atomic<int> waiting = 0;
    std::vector<test::Thread> running;
    for (int i = 0; i < threads; ++i) {
      running.emplace_back([&, i] {
        waiting.fetch_add(1);
        while (waiting.load() < threads) std::this_thread::yield();
        EXPECT_TRUE(i % 2 == 0 ? storage->try_ensure(a, {})
                               : storage->uses().try_wait(Access::discard));
      });
    }
    for (test::Thread& thread : running) thread.join();
  }
}

TEST_F(StorageTest, AFailedFirstUseAllocatesNothingAndCanBeRetried) {
  const auto faulty = std::make_shared<FaultResource>(pool);
  faulty->set_rules({{.nth = 1}});
  const StorageHandle storage = make(4096, {.resource = faulty});
  const Result<void> refused = storage->try_ensure({}, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::out_of_memory);
  EXPECT_FALSE(storage->is_allocated());
  EXPECT_TRUE(storage->try_ensure({}, {}));
  EXPECT_TRUE(storage->is_allocated());
}

TEST_F(StorageTest, ThreadsThatWaitedForAFailedAllocationRetryIt) {
  constexpr int threads = 16;
  for (int round = 0; round < 20; ++round) {
    const auto faulty = std::make_shared<FaultResource>(pool);
    faulty->set_rules({{.nth = 1}});
    const StorageHandle storage = make(4096, {.resource = faulty});
    std::atomic<int> waiting = 0, refused = 0;
    std::vector<test::Thread> running;
    for (int i = 0; i < threads; ++i) {
      running.emplace_back([&] {
        waiting.fetch_add(1);
        while (waiting.load() < threads) std::this_thread::yield();
        if (!storage->try_ensure({}, {})) refused.fetch_add(1);
      });
    }
    for (test::Thread& thread : running) thread.join();
    EXPECT_EQ(refused.load(), 1) << "only the one whose request it was";
    EXPECT_TRUE(storage->is_allocated());
    EXPECT_EQ(faulty->statistics().live_blocks, 1u);
  }
  EXPECT_EQ(now().live_blocks, 0u);
}

TEST_F(StorageTest, IsFreedOnceWithTheLastHandle) {
  {
    StorageHandle storage = make(4096);
    ASSERT_TRUE(storage->try_ensure({}, {}));
    const StorageHandle second = storage;
    storage = {};
    EXPECT_EQ(now().live_blocks, 1u);
    EXPECT_TRUE(second->is_allocated());
  }
  EXPECT_EQ(now().live_blocks, 0u);
  EXPECT_EQ(now().frees, 1u);
}

TEST_F(StorageTest, KeepsItsResourceAndDevice) {
  StorageHandle storage;
  {
    Device other = sim::open({});
    const auto its_pool = std::make_shared<PoolResource>(other);
    storage = Storage::try_make(other, 100, {.resource = its_pool}).value();
  }
  EXPECT_TRUE(storage->try_ensure({}, {}));
  EXPECT_TRUE(storage->device().is_open());
}

TEST_F(StorageTest, NeverAllocatedIsNeverFreed) {
  { const StorageHandle storage = make(4096); }
  EXPECT_EQ(now().frees, 0u);
  EXPECT_EQ(now().requests, 0u);
}

TEST_F(StorageTest, ZeroBytesMakeNoDriverCall) {
  {
    const StorageHandle storage = make(0, {.contents = Contents::zero, .stream = a});
    ASSERT_TRUE(storage->try_ensure(a, {}));
    EXPECT_EQ(storage->try_memory()->device_address, nullptr);
    const Result<StorageUse> use = storage->try_use(a, Access::read, 0, 0, {});
    EXPECT_TRUE(use);
  }
  EXPECT_EQ(now().requests, 0u);
  EXPECT_EQ(sim::calls(device, "fill"), 0u);
}

TEST_F(StorageTest, RejectsImpossibleSizesAndAlignments) {
  EXPECT_EQ(Storage::try_make(device, SIZE_MAX, {}).failure().code(), ErrorCode::size_overflow);
  for (const std::size_t alignment : {std::size_t{3}, 512 * mib}) {
    const auto refused = Storage::try_make(device, 8, {.alignment = alignment});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.failure().code(), ErrorCode::invalid_argument);
    EXPECT_EQ(refused.failure().number("value"), alignment);
  }
  const Device host = open_device("host");
  EXPECT_EQ(Storage::try_make(host, 8, {.resource = pool}).failure().code(),
            ErrorCode::device_mismatch);
  EXPECT_EQ(Storage::try_make(host, 8, {.stream = a}).failure().code(), ErrorCode::device_mismatch);
  EXPECT_EQ(Storage::try_make(Device(), 8, {}).failure().code(), ErrorCode::invalid_device);
}

TEST_F(StorageTest, HasTheAlignmentItWasAskedFor) {
  const StorageHandle storage = make(100, {.alignment = 4096});
  ASSERT_TRUE(storage->try_ensure({}, {}));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(storage->try_block()->address) % 4096, 0u);
}

TEST_F(StorageTest, UninitializedMemoryIsNotFilled) {
  const StorageHandle storage = make(4096);
  ASSERT_TRUE(storage->try_ensure(a, {}));
  EXPECT_EQ(sim::calls(device, "fill"), 0u);
}

TEST_F(StorageTest, ZeroIsZeroOnMemoryThatWasUsedBefore) {
  std::array<unsigned char, 64> bytes;
  {
    const StorageHandle dirty = make(bytes.size(), {.stream = a});
    Result<StorageUse> use = dirty->try_use(a, Access::discard, 0, bytes.size(), {});
    ASSERT_TRUE(use);
    a.fill(static_cast<unsigned char*>(use->address()), bytes.size(), 0xEE);
    use->end();
  }
  const StorageHandle storage = make(bytes.size(), {.contents = Contents::zero, .stream = a});
  Result<StorageUse> use = storage->try_use(a, Access::read, 0, bytes.size(), {});
  ASSERT_TRUE(use);
  a.copy(bytes.data(), use->address(), bytes.size());
  use->end();
  a.synchronize();
  EXPECT_TRUE(std::ranges::all_of(bytes, [](unsigned char byte) { return byte == 0; }));
  EXPECT_TRUE(sim::findings(device).empty());
}

TEST_F(StorageTest, PoisonFillsButDoesNotCountAsWritten) {
  const auto pinned = std::make_shared<DirectResource>(device, MemoryKind::pinned);
  const StorageHandle storage =
      make(16, {.resource = pinned, .contents = Contents::poison, .checked = true});
  EXPECT_EQ(storage->check_written(0, 16, {}).failure().code(), ErrorCode::never_written);
  ASSERT_TRUE(storage->try_wait_host(Access::read_write, 0, 16, {}));
  EXPECT_EQ(static_cast<unsigned char*>(storage->try_memory()->host_address)[15], 0xDD);
}

TEST_F(StorageTest, AFailedFillFreesTheMemory) {
  sim::set_faults(device, "fill#1=fail");
  const StorageHandle storage = make(4096, {.contents = Contents::zero, .stream = a});
  EXPECT_FALSE(storage->try_ensure(a, {}));
  EXPECT_FALSE(storage->is_allocated());
  EXPECT_EQ(now().live_blocks, 0u);
  EXPECT_TRUE(storage->try_ensure(a, {}));
}

TEST_F(StorageTest, KnowsWhichBytesWereWritten) {
  const StorageHandle storage = make(100);
  storage->note_written(0, 50);
  EXPECT_TRUE(storage->check_written(10, 40, {}));
  const Result<void> refused = storage->check_written(40, 30, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::never_written);
  EXPECT_EQ(refused.failure().number("begin"), 50u);
  EXPECT_EQ(refused.failure().number("end"), 70u);
  EXPECT_EQ(refused.failure().number("id"), storage->id().value);
  storage->note_written(60, 40);
  storage->note_written(50, 10);
  EXPECT_TRUE(storage->check_written(0, 100, {}));
  EXPECT_EQ(*storage->try_written_ranges(10, 20), (std::vector<ByteRange>{{10, 30}}));
}

TEST_F(StorageTest, DiscardedBytesAreUnwritten) {
  const StorageHandle storage = make(100);
  storage->note_unwritten(0, 0);
  storage->note_written(0, 100);
  storage->note_unwritten(40, 20);
  EXPECT_TRUE(storage->check_written(0, 40, {}));
  EXPECT_EQ(storage->check_written(0, 100, {}).failure().number("begin"), 40u);
  EXPECT_EQ(storage->check_written(0, 100, {}).failure().number("end"), 60u);
  storage->note_written(40, 20);
  EXPECT_TRUE(storage->check_written(0, 100, {}));
  storage->note_unwritten(0, 100);
  EXPECT_FALSE(storage->check_written(99, 1, {}));
  // What new memory holds may be read there at any time.
  const StorageHandle unspecified = make(100, {.contents = Contents::unspecified});
  unspecified->note_unwritten(0, 100);
  EXPECT_TRUE(unspecified->check_written(0, 100, {}));
}

TEST_F(StorageTest, RecordsHintsByRange) {
  const StorageHandle storage = make(100);
  using Edges = std::vector<std::size_t>;
  EXPECT_EQ(*storage->try_edges({0, 100}), Edges{});
  EXPECT_TRUE(storage->try_note_edges({20, 60}));
  EXPECT_TRUE(storage->try_note_edges({60, 80}));
  EXPECT_EQ(*storage->try_edges({0, 100}), (Edges{20, 60, 80}));
  EXPECT_EQ(*storage->try_edges({20, 80}), Edges{60});
}

TEST_F(StorageTest, ADroppedUseWritesNothing) {
  const StorageHandle storage = make(100);
  { const Result<StorageUse> use = storage->try_use(a, Access::discard, 0, 100, {}); }
  EXPECT_FALSE(storage->check_written(0, 1, {}));
  Result<StorageUse> use = storage->try_use(a, Access::discard, 0, 100, {});
  use->end();
  EXPECT_TRUE(storage->check_written(0, 100, {}));
}

TEST_F(StorageTest, ChecksAUseWithoutBeginningIt) {
  const StorageHandle storage = make(64);
  EXPECT_TRUE(storage->check_use(a, Access::discard, 0, 64, {}));
  EXPECT_FALSE(storage->is_allocated());
  EXPECT_EQ(storage->uses().size(), 0u);
  EXPECT_EQ(storage->check_use(a, Access::read, 0, 64, {}).failure().code(),
            ErrorCode::never_written);
  EXPECT_EQ(storage->check_use(a, Access::discard, 60, 8, {}).failure().code(),
            ErrorCode::invalid_view);
  const Result<Block> given = storage->try_release_block({}, {});
  ASSERT_TRUE(given);
  EXPECT_EQ(storage->check_use(a, Access::discard, 0, 64, {}).failure().code(),
            ErrorCode::not_allocated);
  pool->deallocate(*given, {});
}

TEST_F(StorageTest, AnotherStreamWaitsForTheAllocation) {
  const StorageHandle storage = make(100, {.stream = a});
  ASSERT_TRUE(storage->try_ensure(a, {}));
  const std::uint64_t before = sim::calls(device, "wait");
  const std::uint64_t hold = sim::hold(a);
  Result<StorageUse> use = storage->try_use(b, Access::discard, 0, 100, {});
  ASSERT_TRUE(use);
  EXPECT_EQ(sim::calls(device, "wait"), before + 1);
  use->end();
  sim::resume(device, hold);
}

TEST_F(StorageTest, AStreamOfAnotherDeviceIsRefusedByBothNames) {
  const Device host = open_device("host");
  const Stream other(host);
  const StorageHandle storage = make(100);
  const Result<StorageUse> refused = storage->try_use(other, Access::discard, 0, 100, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::device_mismatch);
  EXPECT_EQ(refused.failure().string("a"), device.spec());
  EXPECT_EQ(refused.failure().string("b"), "host");
  EXPECT_FALSE(storage->is_allocated());
}

TEST_F(StorageTest, AStreamThatEndedIsRefused) {
  StreamRef ended;
  {
    const Stream short_lived(device);
    ended = short_lived;
  }
  const StorageHandle storage = make(100);
  EXPECT_EQ(storage->try_use(ended, Access::discard, 0, 100, {}).failure().code(),
            ErrorCode::stream_misuse);
}

TEST_F(StorageTest, RangesOutsideAreRefused) {
  const StorageHandle storage = make(100);
  for (const auto& [offset, bytes] :
       {std::pair<std::size_t, std::size_t>{100, 1}, {0, 101}, {SIZE_MAX, 2}, {SIZE_MAX - 3, 8}}) {
    EXPECT_EQ(storage->try_use(a, Access::discard, offset, bytes, {}).failure().code(),
              ErrorCode::invalid_view);
  }
}

TEST_F(StorageTest, IsFreedAfterAllUsesWithoutAHostWait) {
  const std::uint64_t hold = sim::hold(b);
  {
    const StorageHandle storage = make(4096, {.stream = a});
    for (const StreamRef stream : {StreamRef(a), StreamRef(b)}) {
      Result<StorageUse> use = storage->try_use(stream, Access::discard, 0, 4096, {});
      ASSERT_TRUE(use);
      stream.fill(static_cast<std::byte*>(use->address()), 4096, std::byte{1});
      use->end();
    }
  }
  EXPECT_EQ(now().live_blocks, 0u);
  // The next user of the same memory on `a` comes behind what `b` still does.
  const StorageHandle next = make(4096, {.stream = a});
  Result<StorageUse> use = next->try_use(a, Access::discard, 0, 4096, {});
  ASSERT_TRUE(use);
  a.fill(static_cast<std::byte*>(use->address()), 4096, std::byte{2});
  use->end();
  sim::resume(device, hold);
  device.synchronize();
  EXPECT_TRUE(sim::findings(device).empty());
}

TEST_F(StorageTest, IsKeptUntilAnotherBackendsUseIsDone) {
  const Device host = open_device("host");
  const ResourceHandle memory = std::make_shared<PoolResource>(host);
  const std::uint64_t hold = sim::hold(a);
  {
    const StorageHandle storage = Storage::try_make(host, 64, {.resource = memory}).value();
    Result<StorageUse> use =
        storage->try_use(a, Access::discard, 0, 64, {}, Storage::Streams::any_device);
    ASSERT_TRUE(use) << use.failure().text();
    use->end();
  }
  EXPECT_EQ(memory->statistics().live_blocks, 1u);
  EXPECT_EQ(deferred_frees().count, 1u);
  EXPECT_EQ(deferred_frees().bytes, 64u);
  EXPECT_EQ(reclaim_deferred().count, 1u) << "still in use";
  sim::resume(device, hold);
  a.synchronize();
  EXPECT_EQ(reclaim_deferred().count, 0u);
  EXPECT_EQ(memory->statistics().live_blocks, 0u);
}

TEST_F(StorageTest, IsKeptAfterALossUntilOtherDevicesAreDone) {
  const Device host = open_device("host"), gone = sim::open({});
  const ResourceHandle memory = std::make_shared<PoolResource>(host);
  const Stream c(gone);
  const std::uint64_t hold = sim::hold(a);
  {
    const StorageHandle storage =
        Storage::try_make(host, 64, {.resource = memory, .contents = Contents::zero}).value();
    for (const StreamRef stream : {StreamRef(c), StreamRef(a)}) {
      stream.call([](void*) {}, nullptr);
      Result<StorageUse> use =
          storage->try_use(stream, Access::read, 0, 64, {}, Storage::Streams::any_device);
      ASSERT_TRUE(use) << use.failure().text();
      use->end();
    }
    sim::set_faults(gone, "info#1=lost");
    EXPECT_FALSE(gone.try_memory());
  }
  EXPECT_EQ(deferred_frees().count, 1u) << "a still uses it";
  EXPECT_EQ(memory->statistics().live_blocks, 1u);
  sim::resume(device, hold);
  a.synchronize();
  EXPECT_EQ(reclaim_deferred().count, 0u);
  EXPECT_EQ(memory->statistics().live_blocks, 0u);
}

TEST_F(StorageTest, RetriesAFreeWhoseWaitsCouldNotBeQueued) {
  const std::uint64_t hold = sim::hold(b);
  {
    const StorageHandle storage = make(4096, {.contents = Contents::zero, .stream = a});
    for (const StreamRef stream : {StreamRef(a), StreamRef(b)}) {
      Result<StorageUse> use = storage->try_use(stream, Access::read, 0, 4096, {});
      ASSERT_TRUE(use);
      use->end();
    }
    sim::set_faults(device, "wait%1=fail");
  }
  EXPECT_EQ(now().live_blocks, 1u) << "kept, and charged";
  EXPECT_EQ(deferred_frees().count, 1u);
  sim::set_faults(device, "");
  EXPECT_EQ(reclaim_deferred().count, 0u);
  EXPECT_EQ(now().live_blocks, 0u);
  sim::resume(device, hold);
}

TEST_F(StorageTest, HostAccessesThatCollideAreRefusedWithBothLines) {
  const StorageHandle storage = make(100, {.checked = true});
  const CallSite first = {"first.cpp", "f", 11}, second = {"second.cpp", "g", 22};
  const Result<std::uint64_t> writer =
      storage->try_begin_host_access(Access::read_write, 0, 50, first);
  ASSERT_TRUE(writer);
  EXPECT_TRUE(storage->try_begin_host_access(Access::read_write, 50, 50, second)) << "other bytes";
  const Result<std::uint64_t> refused = storage->try_begin_host_access(Access::read, 49, 1, second);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::access_conflict);
  EXPECT_EQ(refused.failure().number("a_line"), 11u);
  EXPECT_EQ(refused.failure().number("b_line"), 22u);
  EXPECT_EQ(storage->try_use(a, Access::discard, 0, 10, second).failure().code(),
            ErrorCode::access_conflict);
  storage->end_host_access(*writer);
  EXPECT_TRUE(storage->try_begin_host_access(Access::read, 49, 1, second));
  EXPECT_TRUE(storage->try_begin_host_access(Access::read, 0, 50, second)) << "readers share";
}

TEST_F(StorageTest, GrowsInPlaceAsFarAsItsBlockGoes) {
  const StorageHandle storage = make(100);
  EXPECT_FALSE(storage->try_grow(100, 150)) << "no memory yet";
  ASSERT_TRUE(storage->try_ensure({}, {}));
  storage->note_written(0, 100);
  const Block block = *storage->try_block();
  ASSERT_GE(block.bytes, 256u);
  EXPECT_TRUE(storage->try_grow(100, 200));
  EXPECT_EQ(storage->bytes(), 200u);
  EXPECT_EQ(*storage->try_block(), block);
  EXPECT_TRUE(storage->check_written(0, 100, {}));
  EXPECT_FALSE(storage->check_written(100, 1, {})) << "what is new was never written";
  EXPECT_FALSE(storage->try_grow(200, block.bytes + 1));
}

TEST_F(StorageTest, GrowingDuringAWriteLeavesNewBytesUnwritten) {
  for (int round = 0; round < 200; ++round) {
    const StorageHandle storage = make(100);
    storage->try_ensure({}, {}).value();
    std::atomic<int> ready = 0;
    const auto meet = [&] {
      ++ready;
      while (ready.load() < 2) std::this_thread::yield();
    };
    test::Thread writer([&] {
      meet();
      storage->note_written(0, 100);
    });
    meet();
    ASSERT_TRUE(storage->try_grow(100, 200));
    writer.join();
    ASSERT_TRUE(storage->check_written(0, 100, {}));
    const Result<void> behind = storage->check_written(0, 200, {});
    ASSERT_FALSE(behind) << "round " << round;
    ASSERT_EQ(behind.failure().number("begin"), 100u);
  }
}

TEST_F(StorageTest, ReleasesItsBlockThroughTheOnlyHandle) {
  Block block;
  {
    const StorageHandle storage = make(100, {.stream = a});
    ASSERT_TRUE(storage->try_ensure(a, {}));
    const StorageHandle second = storage;
    const Result<Block> refused = storage->try_release_block(a, {});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.failure().code(), ErrorCode::access_conflict);
    EXPECT_EQ(refused.failure().number("handles"), 2u);
  }
  {
    const StorageHandle storage = make(100, {.stream = a});
    block = storage->try_release_block(a, {}).value();
    EXPECT_EQ(storage->try_ensure(a, {}).failure().code(), ErrorCode::not_allocated);
  }
  EXPECT_EQ(now().live_blocks, 1u) << "nobody freed it";
  EXPECT_TRUE(pool->try_deallocate(block, a));
}

TEST_F(StorageTest, RejectsHostAccessToDeviceMemory) {
  const StorageHandle storage = make(100, {.contents = Contents::zero});
  const Result<void> refused = storage->try_wait_host(Access::read, 0, 100, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::not_host_accessible);
  EXPECT_EQ(refused.failure().string("kind"), "device");
  EXPECT_NE(refused.failure().text().find("UnifiedBuffer"), std::string::npos);
}

TEST_F(StorageTest, AHostReadWaitsForItsWriterAndForNoOtherStream) {
  const StorageHandle storage =
      make(64, {.resource = default_resource(device, MemoryKind::pinned)});
  sim::set_patience(device, 50);
  const std::uint64_t hold = sim::hold(b);
  Result<StorageUse> use = storage->try_use(a, Access::discard, 0, 64, {});
  ASSERT_TRUE(use);
  a.fill(static_cast<std::byte*>(use->address()), 64, std::byte{7});
  use->end();
  ASSERT_TRUE(storage->try_wait_host(Access::read, 0, 64, {}))
      << "b stands still, and is not asked";
  EXPECT_EQ(static_cast<std::byte*>(storage->try_memory()->host_address)[63], std::byte{7});
  EXPECT_TRUE(sim::findings(device).empty());
  sim::resume(device, hold);
}

TEST_F(StorageTest, TheSimulatedDeviceSeesAHostAccessThatCameTooEarly) {
  const StorageHandle storage =
      make(64, {.resource = default_resource(device, MemoryKind::pinned)});
  ASSERT_TRUE(storage->try_ensure({}, {}));
  auto* bytes = static_cast<std::byte*>(storage->try_memory()->host_address);
  a.fill(bytes, 64, std::byte{7});  // of which the storage was told nothing
  const Result<void> refused = storage->try_wait_host(Access::read_write, 0, 64, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::violation);
  device.synchronize();
  EXPECT_TRUE(storage->try_wait_host(Access::read_write, 0, 64, {}));
}

TEST_F(StorageTest, TheHostWaitsForADeviceThatCannotShareManagedMemory) {
  const Device alone = sim::open({.policy = sim::Policy::lazy, .concurrent_managed = false});
  const Stream stream(alone);
  Buffer other(alone, {64}, DType::u8),
      managed(alone, {64}, DType::u8, {.kind = MemoryKind::managed});
  // Work that has nothing to do with the managed memory, before each access of the host.
  const auto work = [&] { other.fill(std::uint8_t{1}, stream); };
  work();
  std::ranges::fill(managed.discard_host<std::uint8_t>(), std::uint8_t{2});
  work();
  managed.rw_host<std::uint8_t>()[3] = 4;
  work();
  EXPECT_EQ(managed.read_host<std::uint8_t>()[3], 4);
  work();
  const test::TemporaryFolder folder;
  copy(managed, open_file(folder.write("file", std::vector<std::byte>(64, std::byte{'x'}))));
  work();
  EXPECT_EQ(managed.read_host<std::uint8_t>()[63], 'x');
  // Memory that the library fills, or says may be read as it is.
  work();
  Buffer zeros(alone, {64}, DType::u8, {.kind = MemoryKind::managed, .contents = Contents::zero});
  EXPECT_EQ(zeros.read_host<std::uint8_t>()[63], 0);
  work();
  const Array<std::uint8_t> any = Array<std::uint8_t>::uninitialized(
      alone, 64, {.kind = MemoryKind::managed, .contents = Contents::unspecified});
  static_cast<void>(any.buffer().read_host<std::uint8_t>());
  EXPECT_TRUE(stream.is_idle());
  EXPECT_TRUE(sim::findings(alone).empty());
}

TEST_F(StorageTest, TheHostWaitsForTheDeviceOfManagedMemoryAndForNoPeer) {
  const std::vector<Device> peers =
      sim::open_peers({.policy = sim::Policy::lazy, .concurrent_managed = false}, 2);
  Buffer managed(peers[0], {64}, DType::u8, {.kind = MemoryKind::managed});
  Buffer other(peers[1], {64}, DType::u8);
  other.fill(std::uint8_t{1}, peers[1].default_stream());
  std::ranges::fill(managed.discard_host<std::uint8_t>(), std::uint8_t{2});
  EXPECT_FALSE(peers[1].default_stream().is_idle());
  EXPECT_TRUE(sim::findings(peers[0]).empty());
}

TEST_F(StorageTest, EachKindIsAccessibleAsTheTableStates) {
  const Capabilities discrete = {}, shared = {Capability::host_access};
  using K = MemoryKind;
  EXPECT_EQ(reach_of(K::host, discrete), (Reach{true, true, false, false}));
  EXPECT_EQ(reach_of(K::host, shared), (Reach{true, true, true, true}));
  for (const Capabilities abilities : {discrete, shared}) {
    for (const K kind : {K::pinned, K::registered, K::managed}) {
      EXPECT_EQ(reach_of(kind, abilities), (Reach{true, true, true, true}));
    }
    EXPECT_EQ(reach_of(K::file, abilities), (Reach{true, false, false, false}));
  }
  for (const K kind : {K::device, K::mapped}) {
    EXPECT_EQ(reach_of(kind, discrete), (Reach{false, false, true, true}));
    EXPECT_EQ(reach_of(kind, shared), (Reach{true, true, true, true}));
  }
}

TEST_F(StorageTest, CountsWritesOnRequest) {
  const StorageHandle storage = make(64);
  EXPECT_EQ(storage->try_count_writes().value(), 0u);
  Buffer whole = Buffer::try_over(storage, 0, {64}, DType::byte).value();
  const Buffer part = whole.byte_view(0, 8);
  EXPECT_EQ(storage->try_count_writes().value(), 0u);
  static_cast<void>(whole.device_ptr(a, Access::discard));
  EXPECT_EQ(storage->try_count_writes().value(), 1u);
  // All of it is written, and still counted; reading is not.
  static_cast<void>(part.device_ptr(b, Access::read_write));
  static_cast<void>(part.device_ptr(a, Access::read));
  EXPECT_EQ(storage->try_count_writes().value(), 2u);
  whole.fill(std::byte{1}, a);
  EXPECT_EQ(storage->try_count_writes().value(), 3u);
}

TEST(StorageEnd, IsNotLostAfterTheLastMarkOfAnEndingStream) {
  const test::FakeDevice fake;
  Stream ending(fake.device);
  const Stream other(fake.device);
  Buffer buffer =
      Buffer::allocate(fake.device, Shape{4096}, DType::byte, {.contents = Contents::unspecified});
  test::Gate gate;
  for (const StreamRef stream : {StreamRef(other), StreamRef(ending)}) {
    gate.hold(stream);
    StorageUse use = buffer.try_use(stream, Access::read).value();
    use.end();
  }
  static_cast<void>(ending.mark());
  const std::size_t before = fake.ledger->count(test::Call::wait);
  test::Thread dropper;
  // The stream has its last mark by then, and still is one.
  fake.ledger->run_after(test::Call::record, [&] {
    dropper = test::Thread([&] { buffer = Buffer(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  });
  ending = Stream();
  dropper.join();
  EXPECT_EQ(fake.ledger->count(test::Call::wait) - before, 2u) << "by another stream, for both";
}

}  // namespace
}  // namespace tern
