// Corners of a pool that programs rarely reach: slots used again, refusals remembered, calls that
// come while the driver is asked, and pages that the driver does not let go.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "device/device_state.hpp"
#include "memory/block_table.hpp"
#include "memory/pool/stream_cache.hpp"
#include "support/allocation_counter.hpp"
#include "support/fake_backend.hpp"
#include "support/few_addresses.hpp"
#include "support/forked_child.hpp"
#include "support/gate.hpp"
#include "support/thorough.hpp"
#include "support/thread.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/bytes.hpp"
#include "tern/core/error.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {
namespace {

using test::Call;

TEST(PoolEdges, FindsARangeThatItsStreamHasJustFreedAmongManyThatAreTooSmall) {
  const Device device = sim::open({.policy = sim::Policy::lazy, .memory_bytes = 512 * mib});
  const Stream stream(device);
  PoolResource pool(device, {.limit_bytes = 64 * mib});
  std::vector<Block> wanted, kept;
  for (std::size_t i = 0; i < 12; ++i) {  // the first is the largest; all are in one list by size
    wanted.push_back(pool.allocate({.bytes = (10'200 - 16 * i) * 256, .stream = stream}));
    kept.push_back(pool.allocate({.bytes = 2 * mib, .stream = stream}));
  }
  for (const std::size_t size : {2 * mib, 256 * kib, 16 * kib}) {
    while (const Result<Block> more = pool.try_allocate({.bytes = size, .stream = stream})) {
      kept.push_back(*more);
    }
  }
  const std::uint64_t hold = sim::hold(stream);
  for (const Block& one : wanted) pool.deallocate(one, stream);
  const Result<Block> again =
      pool.try_allocate({.bytes = wanted[0].bytes, .stream = stream, .wait = Wait::never});
  EXPECT_TRUE(again) << again.failure().text();
  sim::resume(device, hold);
  if (again) pool.deallocate(*again, stream);
  for (const Block& one : kept) pool.deallocate(one, stream);
}

TEST(PoolEdges, ABlockThatAHostFunctionAllocatesIsOneFinding) {
  const Device device = sim::open({.mode = sim::Mode::collect, .print_findings = false});
  const Stream stream(device);
  PoolResource pool(device, {.initial_bytes = 4 * mib});
  pool.deallocate(pool.allocate({.bytes = 4096}),
                  {});  // now in the cache: the next needs no driver
  struct Context {
    PoolResource& pool;
    Block block = {};
  } context{pool};
  stream.call(
      [](void* with) {
        auto& mine = *static_cast<Context*>(with);
        const Result<Block> made = mine.pool.try_allocate({.bytes = 4096});
        if (made) mine.block = *made;
      },
      &context);
  stream.synchronize();
  ASSERT_TRUE(context.block);
  pool.deallocate(context.block, {});
  pool.deallocate(pool.allocate({.bytes = 4096}), {});
  device.synchronize();
  std::vector<std::string> codes;
  for (const Finding& finding : sim::findings(device)) codes.emplace_back(code_text(finding.code));
  EXPECT_EQ(codes, std::vector<std::string>{"TERN-S404"});
}

TEST(PoolEdges, RemembersARefusalForItsAlignmentOnly) {
  const Device device = sim::open({.memory_bytes = 64 * mib});
  PoolResource pool(device, {.limit_bytes = 4 * mib});
  const Block first = pool.allocate({.bytes = 512 * kib});
  const Block hole = pool.allocate({.bytes = 1 * mib});
  const Block last = pool.allocate({.bytes = 2 * mib + 512 * kib});
  pool.deallocate(hole, {});
  // What is free is 1 MiB in one piece, half a MiB behind the beginning of a page.
  EXPECT_FALSE(pool.try_allocate({.bytes = 1 * mib, .alignment = 1 * mib}));
  const Result<Block> plain = pool.try_allocate({.bytes = 1 * mib});
  ASSERT_TRUE(plain) << plain.failure().text();
  EXPECT_EQ(plain->address, hole.address);
  for (const Block& block : {first, *plain, last}) pool.deallocate(block, {});
}

/// Fills the pool with blocks of many sizes, and frees and trims them all.
void use_all_of(PoolResource& pool, StreamRef stream) {
  std::vector<Block> blocks;
  for (std::size_t i = 0;; ++i) {
    const Result<Block> block = pool.try_allocate({.bytes = (10 + i % 55) * mib, .stream = stream});
    if (!block) break;
    blocks.push_back(*block);
  }
  EXPECT_GT(blocks.size(), 10u);
  for (const Block& block : blocks) pool.deallocate(block, stream);
  stream.synchronize();
  pool.trim(0);
}

TEST(PoolEdges, AnEmptyPoolHasAddressesAndHandlesForEverySize) {
  if (test::has_few_addresses) GTEST_SKIP() << "the sanitizer leaves too few addresses";
  for (const std::size_t limit : {std::size_t{0}, 512 * mib}) {
    SCOPED_TRACE(limit);
    const Device device = sim::open({.memory_bytes = 512 * mib});
    const Stream stream(device);
    PoolResource pool(device, {.limit_bytes = limit});
    use_all_of(pool, stream);
    for (const std::size_t size : {64u, 100u, 200u, 300u, 400u, 450u, 480u, 512u, 150u}) {
      const Result<Block> block = pool.try_allocate({.bytes = size * mib, .stream = stream});
      ASSERT_TRUE(block) << block.failure().text();
      stream.fill(static_cast<std::byte*>(block->address), size * mib, std::byte{1});
      pool.deallocate(*block, stream);
      stream.synchronize();
      pool.trim(0);
      EXPECT_EQ(pool.pool_statistics().held_bytes, 0u);
    }
  }
}

TEST(PoolEdges, AnEmptyPoolMovesItsPagesThoughItHasUsedAllAddresses) {
  if (test::has_few_addresses) GTEST_SKIP() << "the sanitizer leaves too few addresses";
  const Device device = sim::open({.policy = sim::Policy::eager, .memory_bytes = 78 * mib});
  const Stream stream(device);
  PoolResource pool(device);
  std::vector<Block> blocks;
  const auto allocate = [&](std::size_t size) {
    blocks.push_back(pool.allocate({.bytes = size * mib, .stream = stream}));
  };
  const auto free = [&](std::size_t granted) {
    const auto found = std::ranges::find(blocks, granted * mib, &Block::bytes);
    ASSERT_NE(found, blocks.end());
    pool.deallocate(*found, stream);
    blocks.erase(found);
    stream.synchronize();
  };
  for (const std::size_t size : {17u, 26u, 24u, 8u}) allocate(size);
  free(18);
  allocate(17);
  free(24);
  allocate(23);
  for (const std::size_t size : {8u, 24u, 26u}) free(size);
  allocate(60);
  free(60);
  free(18);
  allocate(6);
  allocate(69);
  for (const Block& block : blocks) pool.deallocate(block, stream);
  stream.synchronize();
  const Result<Block> whole = pool.try_allocate({.bytes = 78 * mib, .stream = stream});
  ASSERT_TRUE(whole) << whole.failure().text();
  pool.deallocate(*whole, stream);
}

TEST(PoolEdges, ReturnsFreeSegmentsIfTheDriverHasNoRoomBelowTheLimit) {
  const Device device = sim::open({.memory_bytes = 256 * mib});
  PoolResource pool(device, {.limit_bytes = 512 * mib, .backing = PoolBacking::segments});
  std::vector<Block> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(pool.allocate({.bytes = 60 * mib}));
  for (const Block& block : blocks) pool.deallocate(block, {});
  const Result<Block> large = pool.try_allocate({.bytes = 200 * mib});
  ASSERT_TRUE(large) << large.failure().text();
  pool.deallocate(*large, {});
}

TEST(PoolEdges, SaysThatTheDriverHasNoMemoryBelowTheLimit) {
  const Device device = sim::open({.memory_bytes = 256 * mib});
  void* const other = device.allocate(MemoryKind::device, 200 * mib);
  for (const PoolBacking backing : {PoolBacking::pages, PoolBacking::segments}) {
    PoolResource pool(device, {.limit_bytes = 512 * mib, .backing = backing});
    const Result<Block> block = pool.try_allocate({.bytes = 100 * mib});
    ASSERT_FALSE(block);
    EXPECT_NE(block.failure().text().find("the driver rejects more with 56.0 MiB of 256.0 MiB"),
              std::string::npos)
        << block.failure().text();
  }
  device.release(other);
}

TEST(PoolEdges, ShrinksToALimitThatIsLowered) {
  for (const PoolBacking backing : {PoolBacking::pages, PoolBacking::segments}) {
    for (const std::size_t limit : {std::size_t{0}, 400 * mib}) {
      const Device device = sim::open({.policy = sim::Policy::eager, .memory_bytes = 512 * mib});
      const Stream stream(device);
      PoolResource pool(device, {.limit_bytes = limit, .backing = backing});
      std::vector<Block> blocks;
      for (int i = 0; i < 6; ++i) {
        blocks.push_back(pool.allocate({.bytes = 50 * mib, .stream = stream}));
      }
      pool.set_limit(100 * mib);
      EXPECT_FALSE(pool.try_allocate({.bytes = 256, .stream = stream}));
      for (const Block& block : blocks) pool.deallocate(block, stream);
      stream.synchronize();
      pool.poll();
      EXPECT_LE(pool.pool_statistics().held_bytes, 100 * mib);
      blocks.clear();
      for (int i = 0; i < 6; ++i) {
        const Result<Block> block = pool.try_allocate({.bytes = 50 * mib, .stream = stream});
        if (block) blocks.push_back(*block);
      }
      EXPECT_EQ(blocks.size(), 2u);
      for (const Block& block : blocks) pool.deallocate(block, stream);
      EXPECT_TRUE(pool.check_invariants());
    }
  }
}

TEST(PoolEdges, APromisedSizeIsGranted) {
  const Device device = sim::open({.memory_bytes = 256 * mib});
  PoolResource pool(device, {.limit_bytes = 120 * mib});
  const Block live = pool.allocate({.bytes = 100 * mib});
  // What is free between them has 19 MiB and 1 KiB.
  const Block first = pool.allocate({.bytes = 10 * mib + 1 * kib});
  const Block second = pool.allocate({.bytes = 9 * mib});
  const Block small = pool.allocate({.bytes = 5000});
  pool.deallocate(first, {});
  pool.deallocate(second, {});
  static_cast<void>(pool.trim(SIZE_MAX));
  for (const std::size_t size :
       {pool.fragmentation().largest_now, pool.fragmentation().largest_satisfiable}) {
    const Result<Block> block = pool.try_allocate({.bytes = size});
    ASSERT_TRUE(block) << block.failure().text();
    pool.deallocate(*block, {});
  }
  pool.deallocate(small, {});
  pool.deallocate(live, {});
}

TEST(PoolEdges, NothingIsLostIfFreesOfTheDriverFailOnce) {
  const Device device = sim::open({.memory_bytes = 256 * mib});
  const std::size_t free = device.memory().free_bytes;
  for (int n = 1; n <= 12; ++n) {
    SCOPED_TRACE(n);
    {
      PoolResource pool(device);
      std::vector<Block> blocks;
      for (int i = 0; i < 3; ++i) blocks.push_back(pool.allocate({.bytes = 20 * mib}));
      for (const Block& block : blocks) pool.deallocate(block, {});
      sim::set_faults(device, "free#" + std::to_string(n) + "=fail");
    }
    sim::set_faults(device, "");
    EXPECT_EQ(device.memory().free_bytes, free);
  }
}

TEST(PoolEdges, SaysThatAddressesAreMissingIfTheDriverKeepsReservations) {
  if (test::has_few_addresses) GTEST_SKIP() << "the sanitizer leaves too few addresses";
  const Device device = sim::open({.memory_bytes = 512 * mib});
  const Stream stream(device);
  PoolResource pool(device, {.limit_bytes = 512 * mib});
  std::vector<void*> others;  // leave pieces of 300 MiB at most
  while (const Result<void*> other = device.try_reserve(300 * mib)) others.push_back(*other);
  device.try_unreserve(others[2], 300 * mib).value();
  const Result<Block> block = pool.try_allocate({.bytes = 400 * mib, .stream = stream});
  ASSERT_FALSE(block);
  EXPECT_EQ(block.failure().code(), ErrorCode::out_of_memory);
  EXPECT_EQ(block.failure().number("addresses"), 400 * mib);
  EXPECT_NE(block.failure().text().find("has no 400.0 MiB of contiguous addresses left"),
            std::string::npos)
      << block.failure().text();
  EXPECT_EQ(pool.pool_statistics().held_bytes, 0u);
  const Result<Block> smaller = pool.try_allocate({.bytes = 200 * mib, .stream = stream});
  ASSERT_TRUE(smaller) << smaller.failure().text();
  pool.deallocate(*smaller, stream);
}

TEST(PoolEdges, KeepsAReservationThatTheDriverDoesNotTakeBack) {
  if (test::has_few_addresses) GTEST_SKIP() << "the sanitizer leaves too few addresses";
  const Device device = sim::open({.memory_bytes = 512 * mib});
  const Stream stream(device);
  PoolResource pool(device, {.limit_bytes = 512 * mib});
  use_all_of(pool, stream);
  std::vector<void*> others;  // no addresses are left
  while (const Result<void*> other = device.try_reserve(8 * mib)) others.push_back(*other);
  sim::set_faults(device, "free#1+=fail");
  for (int i = 0; i < 40; ++i) {
    EXPECT_FALSE(pool.try_allocate({.bytes = 500 * mib, .stream = stream}));
  }
  sim::set_faults(device, "");
  // The pool still has its addresses, and there are no others.
  const Result<Block> small = pool.try_allocate({.bytes = 40 * mib, .stream = stream});
  ASSERT_TRUE(small) << small.failure().text();
  pool.deallocate(*small, stream);
  stream.synchronize();
  pool.trim(0);
  for (void* other : others) device.try_unreserve(other, 8 * mib).value();
  const Result<Block> block = pool.try_allocate({.bytes = 500 * mib, .stream = stream});
  ASSERT_TRUE(block) << block.failure().text();
  pool.deallocate(*block, stream);
}

TEST(PoolEdges, GivesAStreamItsOwnFreedMemoryBeforeFailing) {
  const Device device = sim::open({.policy = sim::Policy::lazy, .memory_bytes = 64 * mib});
  const Stream stream(device);
  PoolResource pool(device, {.limit_bytes = 8 * mib});
  std::vector<Block> halves;
  for (int i = 0; i < 2; ++i) halves.push_back(pool.allocate({.bytes = 4 * mib, .stream = stream}));
  for (const Block& half : halves) {
    stream.fill(static_cast<std::byte*>(half.address), 1, std::byte{1});
    pool.deallocate(half, stream);
  }
  // Both are in the stream's cache, in use on the device, and together what is asked for.
  const Result<Block> whole =
      pool.try_allocate({.bytes = 8 * mib, .stream = stream, .wait = Wait::never});
  ASSERT_TRUE(whole) << whole.failure().text();
  EXPECT_EQ(pool.pool_statistics().host_waits, 0u);
  pool.deallocate(*whole, stream);
  EXPECT_TRUE(pool.check_invariants());
}

TEST(PoolEdges, WaitsForTheFreeingStreamNotForThePreviousStreamOfTheSlot) {
  test::FakeDevice fake;
  PoolResource pool(fake.device);
  auto old = std::make_unique<Stream>(fake.device);
  const std::uint32_t slot = old->id().slot();
  const Block block = pool.allocate({.bytes = 4 * mib, .stream = *old});
  old.reset();
  fake.device.synchronize();
  const Stream fresh(fake.device);
  ASSERT_EQ(fresh.id().slot(), slot);
  test::Gate gate;
  gate.hold(fresh);
  pool.deallocate(block, fresh);
  EXPECT_EQ(pool.trim(0), 0u);
  EXPECT_EQ(pool.pool_statistics().in_flight_bytes, block.bytes);
  gate.open();
  fresh.synchronize();
  EXPECT_EQ(pool.trim(0), block.bytes);
}

/// A stream as whoever frees has seen it, just before its owner ended it in another thread.
class SeenOpen final : public StreamRef {
 public:
  explicit SeenOpen(StreamRef stream) noexcept : StreamRef(&then_, stream.id()) {
    then_.id.store(stream.id().value());
    then_.use.store((stream.id().value() & StreamState::number_mask) + StreamState::one_loan);
    EXPECT_TRUE(then_.is_open_as(stream.id()));
  }

 private:
  StreamState then_;
};

TEST(PoolEdges, WaitsForTheFreeingStreamNotForTheNextStreamOfTheSlot) {
  // The last one is kept with what the next stream has freed, or makes the older half of it leave.
  for (const std::size_t count : {std::size_t{1}, pool::StreamCache::max_per_class}) {
    test::FakeDevice fake;
    PoolResource pool(fake.device);
    auto old = std::make_unique<Stream>(fake.device);
    const Block late = pool.allocate({.bytes = 4 * kib, .stream = *old});
    const SeenOpen ended(*old);
    old.reset();
    fake.device.synchronize();
    const Stream fresh(fake.device);
    ASSERT_EQ(fresh.id().slot(), ended.id().slot());
    std::vector<Block> blocks;
    for (std::size_t i = 0; i < count; ++i) {
      blocks.push_back(pool.allocate({.bytes = 4 * kib, .stream = fresh}));
    }
    test::Gate gate;
    gate.hold(fresh);
    for (const Block& block : blocks) pool.deallocate(block, fresh);
    pool.deallocate(late, ended);
    EXPECT_EQ(pool.poll(), 0u);
    EXPECT_EQ(pool.trim(0), 0u);
    gate.open();
    fake.device.synchronize();
    EXPECT_GT(pool.trim(0), 0u);
  }
}

TEST(PoolEdges, KeepsDescriptorsForDriverRequests) {
  // While one request waits for the driver others cut up what is free. Whatever they leave of the
  // spare descriptors, the first needs some when it comes back.
  for (const Call call : {Call::create_pages, Call::map}) {
    for (std::size_t others = 1; others <= 140; ++others) {
      test::FakeDevice fake;
      const Stream stream(fake.device);
      PoolResource pool(fake.device);
      const Block hole = pool.allocate({.bytes = 1 * mib});
      const Block rest = pool.allocate({.bytes = 1 * mib});
      pool.deallocate(hole, {});
      ASSERT_EQ(pool.trim(2 * mib), 0u);  // out of the cache
      std::vector<Block> small;
      fake.ledger->run_after(call, [&] {
        // An aligned one leaves something on both sides, and takes two descriptors; an odd number
        // of others begins with one that takes one.
        for (std::size_t i = others % 2; i <= others; i += 2) {
          const std::size_t alignment = i == 1 ? 256 : 512;
          small.push_back(pool.allocate({.bytes = 256, .alignment = alignment, .stream = stream}));
        }
      });
      const Block large = pool.allocate({.bytes = 3 * mib});
      ASSERT_FALSE(small.empty());
      ASSERT_TRUE(pool.check_invariants());
      for (const Block& block : small) pool.deallocate(block, stream);
      pool.deallocate(large, {});
      pool.deallocate(rest, {});
    }
  }
}

TEST(PoolEdges, CountsStuckPagesAndUsesThemOnceTheyAreUnmapped) {
  test::FakeDevice fake;
  PoolResource pool(fake.device, {.limit_bytes = 64 * mib});
  std::vector<Block> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(pool.allocate({.bytes = 16 * mib}));
  pool.deallocate(blocks[0], {});
  pool.deallocate(blocks[2], {});
  ASSERT_EQ(pool.trim(64 * mib), 0u);  // out of the cache
  // Sixteen pages move; opening them at their new addresses fails, and so does taking them away.
  const auto fail = [&](std::size_t times) {
    fake.ledger->fail_next(Call::set_access, times);
    fake.ledger->fail_next(Call::unmap, times);
  };
  fake.ledger->run_after(Call::map, [&] { fail(1000); });
  const Result<Block> refused = pool.try_allocate({.bytes = 32 * mib, .wait = Wait::never});
  EXPECT_FALSE(refused);
  EXPECT_TRUE(pool.check_invariants());
  EXPECT_EQ(pool.pool_statistics().held_bytes, 64 * mib);
  EXPECT_EQ(pool.pool_statistics().unmapped_bytes, 32 * mib);
  fail(0);
  const Result<Block> moved = pool.try_allocate({.bytes = 32 * mib, .wait = Wait::never});
  ASSERT_TRUE(moved) << moved.failure().text();
  EXPECT_EQ(pool.pool_statistics().unmapped_bytes, 0u);
  for (const Block& block : {*moved, blocks[1], blocks[3]}) pool.deallocate(block, {});
  EXPECT_TRUE(pool.check_invariants());
  EXPECT_EQ(pool.trim(0), 64 * mib);
}

TEST(PoolEdges, RejectsAnImpossibleInitialSize) {
  const Device device = sim::open({.memory_bytes = 64 * mib});
  for (const PoolBacking backing : {PoolBacking::pages, PoolBacking::segments}) {
    for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - 2 * mib + 1, SIZE_MAX / 2 + 2}) {
      EXPECT_THROW(PoolResource(device, {.initial_bytes = bytes, .backing = backing}), Error)
          << bytes;
    }
  }
}

TEST(PoolEdges, ReusesAddresses) {
  // The device has addresses for four times its memory.
  const Device device = sim::open({.memory_bytes = 64 * mib});
  PoolResource pool(device);
  for (int round = 0; round < 100; ++round) {
    for (const std::size_t alignment : {0u, 4u << 20}) {
      const Block small = pool.allocate({.bytes = 2 * mib});
      const Block block = pool.allocate({.bytes = 30 * mib, .alignment = alignment});
      pool.deallocate(block, {});
      EXPECT_EQ(pool.trim(2 * mib), 30 * mib) << round;
      pool.deallocate(small, {});
    }
    EXPECT_EQ(pool.trim(0), 2 * mib) << round;
  }
  EXPECT_TRUE(pool.check_invariants());
}

TEST(PoolEdges, UsesALargeRangeThatIsNotPageAlignedIfThereIsNoOther) {
  // No addresses are left to put pages together at: of four times the memory others have three.
  const Device device = sim::open({.memory_bytes = 24 * mib});
  void* const taken = device.try_reserve(72 * mib).value();
  PoolResource pool(device);
  const Block before = pool.allocate({.bytes = 1 * mib});
  std::vector<Block> hole;
  for (int i = 0; i < 2; ++i) hole.push_back(pool.allocate({.bytes = 8 * mib}));
  const Block behind = pool.allocate({.bytes = 7 * mib});
  ASSERT_EQ(pool.pool_statistics().held_bytes, 24 * mib);
  for (const Block& half : hole) pool.deallocate(half, {});
  const Result<Block> fits = pool.try_allocate({.bytes = 16 * mib});
  ASSERT_TRUE(fits) << fits.failure().text();
  EXPECT_EQ(fits->address, hole.front().address);
  for (const Block& block : {before, *fits, behind}) pool.deallocate(block, {});
  EXPECT_TRUE(device.try_unreserve(taken, 72 * mib));
}

TEST(PoolEdges, ReportsALostDeviceInsteadOfAllocating) {
  const Device device = sim::open({.policy = sim::Policy::lazy, .memory_bytes = 64 * mib});
  const Stream a(device), b(device);
  PoolResource pool(device, {.limit_bytes = 8 * mib});
  const Block block = pool.allocate({.bytes = 8 * mib, .stream = a});
  a.fill(static_cast<std::byte*>(block.address), 1, std::byte{1});
  pool.deallocate(block, a);
  sim::set_faults(device, "wait#1=lost");
  const Result<Block> refused = pool.try_allocate({.bytes = 8 * mib, .stream = b});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::device_lost);
  EXPECT_TRUE(pool.check_invariants());
}

TEST(PoolEdges, RetriesAfterASegmentCouldNotBeFreed) {
  test::FakeDevice fake;
  PoolResource pool(fake.device, {.limit_bytes = 128 * mib, .backing = PoolBacking::segments});
  for (const std::size_t bytes : {40 * mib, 48 * mib}) {
    pool.deallocate(pool.allocate({.bytes = bytes}), {});
  }
  fake.ledger->fail_next(Call::release);
  EXPECT_FALSE(pool.try_allocate({.bytes = 90 * mib}));
  const Result<Block> large = pool.try_allocate({.bytes = 90 * mib});
  ASSERT_TRUE(large) << large.failure().text();
  pool.deallocate(*large, {});
}

TEST(PoolEdges, WaitsForAnEndedStreamThatOnlyHitTheCache) {
  // The host frees into the cache that streams are given pinned blocks from. A stream that has its
  // first block from there, and ends with work on it, must leave a mark.
  for (const MemoryKind kind : {MemoryKind::pinned, MemoryKind::managed}) {
    const Device device = sim::open({.policy = sim::Policy::lazy});
    PoolResource pool(device, {.kind = kind});
    pool.deallocate(pool.allocate({.bytes = 1000}), {});
    Block block;
    StreamRef ended;
    {
      const Stream brief(device);
      ended = brief;
      block = pool.allocate({.bytes = 1000, .stream = brief});
      brief.fill(static_cast<std::byte*>(block.address), 1000, std::byte{1});
    }
    ASSERT_TRUE(pool.try_deallocate(block, ended));
    const Block next = pool.allocate({.bytes = 1000});
    EXPECT_EQ(next.address, block.address);
    for (const Finding& finding : sim::findings(device)) ADD_FAILURE() << finding.text();
    pool.deallocate(next, {});
  }
}

TEST(PoolEdges, LocksTheRightCacheDuringAConcurrentFree) {
  const Device device = sim::open({.memory_bytes = 64 * mib, .check = false});
  const Stream a(device), b(device);
  PoolResource pool(device);
  const Block block = pool.allocate({.bytes = 1 * mib, .stream = a});
  // The other has come so far: it notes that B used the block last, and has not yet ended it.
  find_place(block.generation.slot())->stream.store(b.id());
  EXPECT_TRUE(pool.try_deallocate(block, a));
  EXPECT_EQ(pool.pool_statistics().cached_bytes, block.bytes);
  EXPECT_FALSE(pool.try_deallocate(block, a));
}

TEST(PoolEdges, WaitsForAStreamThatHasEndedBeforeItsBlockIsFree) {
  const Device device = sim::open({.policy = sim::Policy::lazy, .memory_bytes = 64 * mib});
  const Stream other(device);
  PoolResource pool(device, {.limit_bytes = 2 * mib});
  StreamRef ended;
  Block block;
  {
    const Stream short_lived(device);
    ended = short_lived;
    block = pool.allocate({.bytes = 2 * mib, .stream = short_lived});
    short_lived.fill(static_cast<std::byte*>(block.address), block.bytes, std::byte{1});
  }
  EXPECT_TRUE(pool.try_deallocate(block, ended));
  const Block again = pool.allocate({.bytes = 2 * mib, .stream = other, .wait = Wait::never});
  other.fill(static_cast<std::byte*>(again.address), again.bytes, std::byte{2});
  pool.deallocate(again, other);
  EXPECT_TRUE(sim::findings(device).empty());
}

TEST(PoolEdges, DestructionWaitsForMemoryInUse) {
  for (const PoolBacking backing : {PoolBacking::pages, PoolBacking::segments}) {
    const Device device = sim::open({.policy = sim::Policy::lazy, .memory_bytes = 64 * mib});
    const Stream stream(device);
    {
      PoolResource pool(device, {.backing = backing});
      const Block block = pool.allocate({.bytes = 2 * mib, .stream = stream});
      stream.fill(static_cast<std::byte*>(block.address), block.bytes, std::byte{1});
      pool.deallocate(block, stream);
    }
    EXPECT_TRUE(sim::findings(device).empty());
    EXPECT_TRUE(sim::leaks(device).empty());
  }
}

TEST(PoolEdges, ReusesALargerBlockWithTheGrantedSize) {
  test::FakeDevice fake({.describe = [](DeviceInfo& info) { info.total_bytes = 2048 * mib; }});
  const Stream stream(fake.device), other(fake.device);
  PoolResource pool(fake.device, {.thread_caches = true});
  const Block first = pool.allocate({.bytes = 4 * mib, .stream = stream});
  pool.deallocate(first, stream);
  const Block second = pool.allocate({.bytes = 4 * mib - 1000, .stream = stream});
  EXPECT_EQ(second.address, first.address);
  EXPECT_EQ(second.bytes, pool.good_size({.bytes = 4 * mib - 1000}));
  EXPECT_EQ(pool.pool_statistics().live_bytes, second.bytes);
  EXPECT_EQ(pool.pool_statistics().cached_bytes, first.bytes - second.bytes);
  EXPECT_TRUE(pool.check_invariants());
  EXPECT_FALSE(pool.try_deallocate(first, stream)) << "of the time before";
  // What is behind it goes where it goes.
  pool.deallocate(second, other);
  EXPECT_EQ(pool.pool_statistics().cached_bytes, first.bytes);
  const Block third = pool.allocate({.bytes = 4 * mib, .stream = other});
  EXPECT_EQ(third.address, first.address);
  pool.deallocate(third, other);
  EXPECT_TRUE(pool.check_invariants());
}

TEST(PoolEdges, RejectsBlocksOfAnotherPool) {
  const Device device = sim::open({.memory_bytes = 64 * mib});
  PoolResource pool(device), other(device);
  const Block block = pool.allocate({.bytes = 1000});
  const Result<void> refused = other.try_deallocate(block, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::use_after_free);
  EXPECT_EQ(other.statistics().frees, 0u);
  EXPECT_TRUE(pool.try_deallocate(block, {}));
}

TEST(PoolEdges, ReplacesExhaustedGenerationsWithoutLoss) {
  // A large device, so that a cache is.
  test::FakeDevice fake({.describe = [](DeviceInfo& info) { info.total_bytes = 2048 * mib; }});
  const Stream stream(fake.device);
  PoolResource pool(fake.device);
  std::vector<Block> blocks;
  for (int i = 0; i < 24; ++i)
    blocks.push_back(pool.allocate({.bytes = 1 * mib, .stream = stream}));
  for (const Block& block : blocks) pool.deallocate(block, stream);
  ASSERT_EQ(pool.pool_statistics().cached_bytes, 24 * mib);
  BlockPlace& place = *find_place(blocks.back().generation.slot());
  place.word.store(BlockPlace::word_of(BlockPlace::last_count, BlockPhase::retired));
  const Block again = pool.allocate({.bytes = 1 * mib, .stream = stream});
  EXPECT_EQ(again.address, blocks.back().address);
  EXPECT_NE(again.generation.slot(), blocks.back().generation.slot());
  EXPECT_EQ(pool.pool_statistics().cached_bytes, 23 * mib);
  EXPECT_TRUE(pool.check_invariants());
  pool.deallocate(again, stream);
}

TEST(PoolEdges, SurvivesAnExhaustedGenerationOfAPinnedBlock) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP() << "needs our operator new";
  test::FakeDevice fake;
  const Stream stream(fake.device);
  PoolResource pool(fake.device, {.kind = MemoryKind::pinned});
  const Block block = pool.allocate({.bytes = 1000});
  pool.deallocate(block, {});
  BlockPlace& place = *find_place(block.generation.slot());
  place.word.store(BlockPlace::word_of(BlockPlace::last_count, BlockPhase::retired));
  std::vector<std::uint32_t> taken;
  taken.reserve(1 << 16);
  const test::HeapExhausted none;
  while (taken.size() < taken.capacity()) {
    const Result<std::uint32_t> slot = try_keep_place(&pool, fake.device.id(), 0);
    if (!slot) break;
    taken.push_back(*slot);
  }
  const Result<Block> refused = pool.try_allocate({.bytes = 1000, .stream = stream});
  EXPECT_FALSE(refused);
  EXPECT_EQ(pool.pool_statistics().in_flight_bytes, 0u) << "the host used it last";
  EXPECT_TRUE(pool.check_invariants());
  for (const std::uint32_t slot : taken) drop_place(slot);
}

/// Sixteen blocks of 64 MiB, allocated and freed again by the host.
void fill_and_empty(PoolResource& pool) {
  std::vector<Block> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(pool.allocate({.bytes = 64 * mib}));
  for (const Block& block : blocks) pool.deallocate(block, {});
}

/// Frees a block again and again, for longer than the memory has to be idle.
void free_now_and_then(PoolResource& pool) {
  for (int i = 0; i < 8; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    pool.deallocate(pool.allocate({.bytes = 128 * mib}), {});  // too large for a cache
  }
}

TEST(PoolEdges, KeepsMemoryThatIsUsedAgainAndAgain) {
  if (test::has_few_addresses) GTEST_SKIP() << "the sanitizer leaves too few addresses";
  using std::chrono::milliseconds, std::chrono::steady_clock;
  const Device device = sim::open({.memory_bytes = 2 * gib, .check = false});
  constexpr milliseconds window(200);
  PoolResource pool(device, {.idle_ms = window.count()});
  fill_and_empty(pool);
  const std::uint64_t calls = pool.pool_statistics().page_calls;
  for (int i = 0; i < 4; ++i) {
    std::this_thread::sleep_for(window + milliseconds(20));
    // Here a window ends and another begins, and all memory is idle. During each window all of it
    // is used.
    const auto began = steady_clock::now();
    pool.deallocate(pool.allocate({.bytes = 128 * mib}), {});
    fill_and_empty(pool);
    if (steady_clock::now() - began > window) GTEST_SKIP() << "too slow: a window ended meanwhile";
  }
  EXPECT_EQ(pool.pool_statistics().trims, 0u);
  EXPECT_EQ(pool.pool_statistics().page_calls, calls);
}

TEST(PoolEdges, TrimsIdleMemoryAutomatically) {
  if (test::has_few_addresses) GTEST_SKIP() << "the sanitizer leaves too few addresses";
  const Device device = sim::open({.memory_bytes = 2 * gib, .check = false});
  PoolResource pool(device, {.idle_ms = 1});
  fill_and_empty(pool);
  free_now_and_then(pool);
  // From 256 MiB and a quarter of what is held on, and not everything.
  EXPECT_GE(pool.pool_statistics().trims, 1u);
  EXPECT_LT(pool.pool_statistics().held_bytes, 1 * gib);
  EXPECT_GT(pool.pool_statistics().held_bytes, 0u);
  EXPECT_TRUE(pool.check_invariants());
}

TEST(PoolEdges, KeepsIdleMemoryIfAutoTrimIsOff) {
  if (test::has_few_addresses) GTEST_SKIP() << "the sanitizer leaves too few addresses";
  const Device device = sim::open({.memory_bytes = 2 * gib, .check = false});
  for (const PoolOptions& options : {PoolOptions{.auto_trim = false, .idle_ms = 1},
                                     PoolOptions{.initial_bytes = 1 * gib, .idle_ms = 1}}) {
    PoolResource pool(device, options);
    fill_and_empty(pool);
    free_now_and_then(pool);
    EXPECT_EQ(pool.pool_statistics().trims, 0u);
    EXPECT_GE(pool.pool_statistics().held_bytes, 1 * gib);
    EXPECT_EQ(pool.pool_statistics().held_bytes, pool.pool_statistics().peak_held_bytes);
  }
}

TEST(PoolEdges, KnowsThePeakOfOneStreamToTheByte) {
  const Device device = sim::open({.memory_bytes = 64 * mib, .check = false});
  const Stream stream(device);
  PoolResource pool(device);
  const Block one = pool.allocate({.bytes = 1 * mib, .stream = stream});
  const Block two = pool.allocate({.bytes = 2 * mib, .stream = stream});
  pool.deallocate(one, stream);
  const Block three = pool.allocate({.bytes = 512 * kib, .stream = stream});
  EXPECT_EQ(pool.statistics().peak_live_bytes, 3 * mib);
  pool.deallocate(two, stream);
  pool.deallocate(three, stream);
  EXPECT_EQ(pool.statistics().peak_live_bytes, 3 * mib);
}

/// A pool in which one block is in the way of a request for 7 MiB. During the request, the block is
/// freed into the cache of its stream, after the search has looked there.
struct BlockInTheWay {
  BlockInTheWay() {
    const Block before = pool.allocate({.bytes = 3 * mib});
    const Block between = pool.allocate({.bytes = 1 * kib, .stream = b});
    pool.deallocate(pool.allocate({.bytes = 1 * kib, .stream = c}), c);
    pool.deallocate(before, {});
    fake.ledger->run_after(Call::record, [this, between] { pool.deallocate(between, b); });
  }

  test::FakeDevice fake;
  Stream b{fake.device}, c{fake.device};
  PoolResource pool{fake.device, {.limit_bytes = 8 * mib, .initial_bytes = 8 * mib}};
};

TEST(PoolEdges, ForgetsAFailureAfterAFree) {
  BlockInTheWay test;
  EXPECT_FALSE(test.pool.try_allocate({.bytes = 7 * mib, .wait = Wait::never}));
  ASSERT_EQ(test.pool.statistics().live_blocks, 0u);
  const Result<Block> fits = test.pool.try_allocate({.bytes = 7 * mib});
  ASSERT_TRUE(fits) << fits.failure().text();
  test.pool.deallocate(*fits, {});
}

TEST(PoolEdges, ARequestThatMayWaitSearchesAgainAfterAFree) {
  BlockInTheWay test;
  const Result<Block> fits = test.pool.try_allocate({.bytes = 7 * mib});
  ASSERT_TRUE(fits) << fits.failure().text();
  test.pool.deallocate(*fits, {});
}

TEST(PoolEdges, WorksInAForkedChildWhicheverLockWasHeld) {
  if (test::is_sanitized) GTEST_SKIP() << "forks of several threads";
  const Device device = sim::open({.memory_bytes = 64 * mib, .check = false});
  PoolResource pool(device, {.limit_bytes = 32 * mib});
  const Block block = pool.allocate({.bytes = 1000});
  std::atomic<bool> is_over = false;
  test::Thread other([&] {
    while (!is_over) {
      pool.deallocate(pool.allocate({.bytes = 1000}), {});
      static_cast<void>(pool.statistics());
    }
  });
  int answered = 0;
  for (int i = 0; i < 100; ++i) {
    const int child = test::in_a_forked_child([&] {
      const bool is_refused = test::is_after_fork(pool.try_allocate({.bytes = 1000}));
      pool.set_limit(1);
      return is_refused && pool.try_allocate({}) && pool.try_deallocate(block, {}) &&
             pool.trim(0) == 0 && pool.poll() == 0 && pool.statistics().requests == 0 &&
             pool.pool_statistics().held_bytes == 0 && pool.fragmentation().free_bytes == 0;
    });
    if (child != 0) break;
    ++answered;
  }
  is_over = true;
  other.join();
  EXPECT_EQ(answered, 100);
  pool.deallocate(block, {});
}

TEST(PoolEdges, SaysByHowMuchARequestIsAboveTheLimit) {
  const Device device = sim::open({.memory_bytes = 256 * mib});
  PoolResource pool(device, {.limit_bytes = 64 * mib});
  const Result<Block> one_more = pool.try_allocate({.bytes = 64 * mib + 1});
  ASSERT_FALSE(one_more);
  EXPECT_EQ(one_more.failure().text(),
            "a pool on 'sim:0' cannot allocate 64.0 MiB, which needs 66.0 MiB: its limit of 64.0 "
            "MiB allows 64.0 MiB in pages of 2.0 MiB, 2.0 MiB too few, even if everything is "
            "freed. Raise the limit, or ask for less.");
  // Less than a page is no page.
  PoolResource small(device, {.limit_bytes = 1 * mib});
  const Result<Block> none = small.try_allocate({.bytes = 256});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.failure().text(),
            "a pool on 'sim:0' cannot allocate 256 B, which needs 256 B: its limit of 1.0 MiB "
            "allows 0 B in pages of 2.0 MiB, 256 B too few, even if everything is freed. Raise the "
            "limit, or ask for less.");
  PoolResource segments(device, {.limit_bytes = 1 * mib, .backing = PoolBacking::segments});
  const Result<Block> above = segments.try_allocate({.bytes = 1 * mib + 1});
  ASSERT_FALSE(above);
  EXPECT_EQ(
      above.failure().text(),
      "a pool on 'sim:0' cannot allocate 1.0 MiB, which needs 1.0 MiB: the request exceeds its "
      "limit of 1.0 MiB by 256 B, even if everything is freed. Raise the limit, or ask for less.");
}

TEST(PoolEdges, PacksSmallBlocksIfMemoryIsShort) {
  const Device device = sim::open({.memory_bytes = 64 * mib});
  for (const std::size_t limit : {8 * mib, 32 * mib}) {
    PoolResource pool(device, {.limit_bytes = limit, .initial_bytes = 8 * mib});
    std::vector<Block> blocks;
    for (int i = 0; i < 32; ++i) blocks.push_back(pool.allocate({.bytes = 256 * kib}));
    // A hole of two blocks in the first page, one of a block in the third.
    for (const std::size_t i : {0u, 1u, 20u}) pool.deallocate(blocks[i], {});
    ASSERT_EQ(pool.trim(SIZE_MAX), 0u);  // out of the cache
    const Block small = pool.allocate({.bytes = 4 * kib});
    const bool is_short = limit == 8 * mib;
    EXPECT_EQ(small.address, blocks[is_short ? 0 : 20].address) << format_bytes(limit);
    pool.deallocate(small, {});
    for (const std::size_t i : {0u, 1u, 20u}) blocks[i] = {};
    for (const Block& block : blocks) pool.deallocate(block, {});
    EXPECT_TRUE(pool.check_invariants());
  }
}

TEST(PoolEdges, FreesSegmentsForALargerOne) {
  const Device device = sim::open({.memory_bytes = 256 * mib});
  PoolResource pool(device, {.limit_bytes = 130 * mib, .backing = PoolBacking::segments});
  std::vector<Block> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(pool.allocate({.bytes = 30 * mib}));
  for (const Block& block : blocks) pool.deallocate(block, {});
  ASSERT_EQ(pool.trim(SIZE_MAX), 0u);  // out of the cache
  const Fragmentation pieces = pool.fragmentation();
  EXPECT_EQ(pieces.largest_now, 64 * mib);
  EXPECT_EQ(pieces.largest_satisfiable, 130 * mib);
  const Result<Block> all = pool.try_allocate({.bytes = 130 * mib});
  ASSERT_TRUE(all) << all.failure().text();
  pool.deallocate(*all, {});
}

TEST(PoolEdges, ARefusalInPiecesNamesWhatThePoolHoldsAndMayGrowBy) {
  const Device device = sim::open({.memory_bytes = 512 * mib});
  PoolResource pool(device, {.limit_bytes = 200 * mib, .backing = PoolBacking::segments});
  // Two segments of 64 MiB, each with a live block of 4 MiB at its beginning.
  std::vector<Block> live, freed;
  for (int i = 0; i < 2; ++i) {
    live.push_back(pool.allocate({.bytes = 4 * mib}));
    freed.push_back(pool.allocate({.bytes = 60 * mib}));
  }
  for (const Block& block : freed) pool.deallocate(block, {});
  ASSERT_EQ(pool.pool_statistics().held_bytes, 128 * mib);
  const Result<Block> large = pool.try_allocate({.bytes = 96 * mib});
  ASSERT_FALSE(large);
  EXPECT_EQ(large.failure().text(),
            "a pool on 'sim:0' cannot allocate 96.0 MiB in one piece: 8.0 MiB of "
            "128.0 MiB held are in use, the largest free piece has 60.0 MiB, and the limit of "
            "200.0 MiB allows 72.0 MiB more, so at most 72.0 MiB fit. Ask for less at a time, or "
            "raise the limit.");
  // The number is right.
  const Result<Block> most = pool.try_allocate({.bytes = 72 * mib});
  ASSERT_TRUE(most) << most.failure().text();
  for (const Block& block : live) pool.deallocate(block, {});
  pool.deallocate(*most, {});
}

}  // namespace
}  // namespace tern
