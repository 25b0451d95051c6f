// Frees that streams have passed become free for everybody without a call of poll(), so a program
// that runs for long holds no more memory than it needs at a time.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "support/thorough.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {
namespace {

/// The host if there is no such device here; then the test is left out.
Device open_or_host(const char* spec) {
  const Result<Device> opened = try_open_device(spec);
  return opened ? *opened : open_device("host");
}

class PoolPending : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const Result<Device> opened = try_open_device(GetParam()); !opened) {
      GTEST_SKIP() << opened.failure().text();
    }
  }

  const Device device = open_or_host(GetParam());
  PoolResource pool{device};

  /// The host allocates, a stream uses the block and frees it.
  void use_once(std::size_t bytes, StreamRef stream) {
    const Block block = pool.allocate({.bytes = bytes});
    stream.fill(static_cast<std::byte*>(block.address), bytes, std::byte{1});
    pool.deallocate(block, stream);
  }
  [[nodiscard]] Result<ResourceHandle> try_pool_of(MemoryKind kind) const try {
    return ResourceHandle(std::make_shared<PoolResource>(
        device, PoolOptions{.kind = kind, .backing = PoolBacking::segments}));
  } catch (const Error& error) {
    return error.failure();
  }
  [[nodiscard]] std::size_t held_bytes() const { return pool.pool_statistics().held_bytes; }
};

TEST_P(PoolPending, OfShortStreamsDoNotHideThoseOfALongStream) {
  const Stream steady(device);
  const int rounds = test::in_full() ? 100'000 : 6'000;
  std::size_t held_early = 0;
  for (int round = 0; round < rounds; ++round) {
    const Stream brief(device);
    use_once(400 + static_cast<std::size_t>(round % 7) * 200, steady);
    use_once(40, brief);
    device.synchronize();
    if (round == 1'000) held_early = held_bytes();
  }
  EXPECT_LE(held_bytes(), held_early);
  EXPECT_EQ(pool.statistics().live_bytes, 0u);
}

TEST_P(PoolPending, OfAnIdleStreamAreFoundBehindManyBusyOnes) {
  // More streams than one request asks about.
  std::vector<Stream> streams;
  for (int i = 0; i < 40; ++i) streams.emplace_back(device);
  std::size_t held_early = 0;
  for (int round = 0; round < 1'000; ++round) {
    for (const Stream& stream : streams) {
      use_once(256 + static_cast<std::size_t>(round % 5) * 256, stream);
    }
    for (const Stream& stream : streams) stream.synchronize();
    if (round == 200) held_early = held_bytes();
  }
  EXPECT_LE(held_bytes(), held_early);
}

TEST_P(PoolPending, AreUsedAgainBeforeMemoryThatWasNeverTouched) {
  // A segment of 64 MiB has room for all of it, so the pool never has to hold more.
  for (const MemoryKind kind : {MemoryKind::pinned, MemoryKind::managed, MemoryKind::device}) {
    const Result<ResourceHandle> made = try_pool_of(kind);
    if (!made) continue;
    auto& memory = static_cast<PoolResource&>(**made);
    std::size_t most = 0;
    for (int round = 0; round < 2'000; ++round) {
      const Stream stream(device);
      for (int i = 0; i < 4; ++i) {
        const std::size_t bytes = 1'000 + static_cast<std::size_t>(round * 4 + i) * 997 % 7'000;
        memory.deallocate(memory.allocate({.bytes = bytes}), stream);
      }
      device.synchronize();
      most = std::max(most, memory.pool_statistics().in_flight_bytes);
    }
    EXPECT_LE(most, 2 * mib) << name(kind);
  }
}

TEST_P(PoolPending, OfIdleStreamsAreUsedAgainBeforeMemoryThatWasNeverTouched) {
  const Result<ResourceHandle> made = try_pool_of(MemoryKind::managed);
  if (!made) GTEST_SKIP() << made.failure().text();
  auto& memory = static_cast<PoolResource&>(**made);
  std::vector<Stream> streams;
  std::size_t most = 0;
  for (int round = 0; round < 60; ++round) {
    const Stream& stream = streams.emplace_back(device);
    for (int i = 0; i < 4; ++i) memory.deallocate(memory.allocate({.bytes = 100'000}), stream);
    device.synchronize();
    most = std::max(most, memory.pool_statistics().in_flight_bytes);
  }
  EXPECT_LE(most, 4 * mib);
}

/// Requests come and go: each has a stream, some buffers, and results that outlive it.
TEST_P(PoolPending, OfAServerStayBounded) {
  constexpr std::size_t max_results = 32;
  std::vector<Block> results(max_results);
  const Stream copies(device);
  const int requests = test::in_full() ? 50'000 : 10'000;
  for (int request = 0; request < requests; ++request) {
    const auto number = static_cast<std::size_t>(request);
    const Stream stream(device);
    const Block input = pool.allocate({.bytes = 1'000 + number * 37 % 9'000, .stream = stream});
    const Block scratch = pool.allocate({.bytes = 5'000 + number * 91 % 50'000, .stream = stream});
    stream.fill(static_cast<std::byte*>(input.address), input.bytes, std::byte{1});
    stream.fill(static_cast<std::byte*>(scratch.address), scratch.bytes, std::byte{2});
    Block& result = results[number % max_results];
    pool.deallocate(result, copies);
    result = pool.allocate({.bytes = 500 + number * 13 % 4'000, .stream = copies});
    copies.fill(static_cast<std::byte*>(result.address), result.bytes, std::byte{3});
    copies.wait(stream.mark());
    pool.deallocate(input, copies);
    pool.deallocate(scratch, stream);
    if (request % 8 == 0) copies.synchronize();
  }
  // Eight requests of 64 KiB are in flight at most. How streams overlap decides how many pages
  // they touch; the number of requests does not: these have used hundreds of MiB in total. Without
  // pages a pool holds whole segments of 64 MiB.
  EXPECT_LE(held_bytes(), device.can(Capability::virtual_memory) ? 32 * mib : 64 * mib);
  for (const Block& result : results) pool.deallocate(result, copies);
}

/// Streams that have freed and passed that, without the host having seen it.
class PoolUnseen : public testing::Test {
 protected:
  /// Frees blocks of 2 MiB, one after the other, and takes them out of the caches. `between`: where
  /// live blocks go, one behind each that is freed.
  void free_on(const std::vector<Stream>& streams, int blocks_per_stream,
               std::vector<Block>* between = nullptr) {
    std::vector<std::uint64_t> holds;
    for (const Stream& stream : streams) {
      holds.push_back(sim::hold(stream));
      std::vector<Block> blocks;
      for (int i = 0; i < blocks_per_stream; ++i) {
        blocks.push_back(pool.allocate({.bytes = 2 * mib, .stream = stream}));
        if (between == nullptr) continue;
        between->push_back(pool.allocate({.bytes = 2 * mib, .stream = stream}));
      }
      for (const Block& block : blocks) {
        pool.deallocate(block, stream);
        static_cast<void>(stream.mark());
      }
    }
    pool.trim(SIZE_MAX);
    in_flight = pool.pool_statistics().in_flight_bytes;
    for (const std::uint64_t hold : holds) sim::resume(device, hold);
  }

  const Device device = sim::open({.policy = sim::Policy::eager, .memory_bytes = 512 * mib});
  PoolResource pool{device};
  std::size_t in_flight = 0;
};

TEST_F(PoolUnseen, AreAllQueriedBeforeThePoolGrows) {
  // A request polls for a while before the pool grows. After a request that did so in vain, the next
  // one does not.
  const Stream busy(device);
  const std::uint64_t hold = sim::hold(busy);
  pool.deallocate(pool.allocate({.bytes = 64 * mib, .stream = busy}), busy);
  const Block grown = pool.allocate({.bytes = 64 * mib});
  sim::resume(device, hold);
  busy.synchronize();
  std::vector<Stream> streams;
  for (int i = 0; i < 32; ++i) streams.emplace_back(device);
  free_on(streams, 1);
  ASSERT_EQ(in_flight, 64 * mib);  // contiguous: a reservation of addresses has as many
  const std::size_t held = pool.pool_statistics().held_bytes;
  const Block all = pool.allocate({.bytes = 64 * mib});
  EXPECT_EQ(pool.pool_statistics().held_bytes, held);
  EXPECT_EQ(pool.pool_statistics().in_flight_bytes, 0u);
  pool.deallocate(all, {});
  pool.deallocate(grown, {});
}

TEST_F(PoolUnseen, ReportAllPassedFreesInOneQuery) {
  std::vector<Stream> streams;
  streams.emplace_back(device);
  // Every second block, because those that touch are joined, and have one mark.
  std::vector<Block> between;
  free_on(streams, 40, &between);
  ASSERT_EQ(in_flight, 80 * mib);
  const std::uint64_t before = pool.pool_statistics().polls;
  EXPECT_EQ(pool.poll(), 80 * mib);
  EXPECT_LE(pool.pool_statistics().polls, before + 2);
  for (const Block& block : between) pool.deallocate(block, {});
}

TEST_F(PoolUnseen, ARangeThatAStreamHasPassedIsNotJoinedWithALaterOne) {
  const Stream stream(device);
  const Block first = pool.allocate({.bytes = 14 * mib, .stream = stream});
  const Block second = pool.allocate({.bytes = 14 * mib, .stream = stream});
  ASSERT_EQ(static_cast<std::byte*>(first.address) + first.bytes, second.address);
  const auto free_behind = [&](const Block& block) {
    const std::uint64_t hold = sim::hold(stream);
    pool.deallocate(block, stream);
    static_cast<void>(stream.mark());
    pool.trim(SIZE_MAX);  // takes it out of the cache
    return hold;
  };
  const std::uint64_t first_hold = free_behind(first);
  ASSERT_EQ(pool.pool_statistics().in_flight_bytes, first.bytes);
  sim::resume(device, first_hold);
  stream.synchronize();
  const std::uint64_t second_hold = free_behind(second);
  EXPECT_EQ(pool.pool_statistics().in_flight_bytes, second.bytes);
  sim::resume(device, second_hold);
}

TEST_F(PoolUnseen, AreNotQueriedAfterAHostWait) {
  std::vector<Stream> streams;
  for (int i = 0; i < 4; ++i) streams.emplace_back(device);
  free_on(streams, 2);
  device.synchronize();
  const std::uint64_t before = pool.pool_statistics().polls;
  EXPECT_EQ(pool.poll(), 16 * mib);
  EXPECT_EQ(pool.pool_statistics().polls, before);
}

// To ask whether a stream has passed a mark without an event, the device would have to record one.
TEST(PoolRecords, OneEventForManyFreesAndNoneForStreamsThatFreeLittle) {
  const Device device = open_device("sim?check=off&schedule=eager&memory=1GiB");
  PoolResource pool(device);
  std::vector<Stream> streams;
  for (int i = 0; i < 9; ++i) streams.emplace_back(device);
  const auto use = [&](StreamRef stream, int count) {
    std::vector<Block> blocks;
    for (int i = 0; i < count; ++i) {
      blocks.push_back(pool.allocate({.bytes = 2 * mib, .stream = stream}));
    }
    for (const Block& block : blocks) pool.deallocate(block, stream);
  };
  use(streams[0], 200);  // the pool grows now, and not later
  for (std::size_t i = 1; i < streams.size(); ++i) use(streams[i], 10);
  ASSERT_GT(pool.pool_statistics().in_flight_bytes, 0u);
  const std::uint64_t records = sim::calls(device, "record");
  const std::uint64_t seals = pool.pool_statistics().seals;
  for (int i = 0; i < 20; ++i) use(streams[0], 40);
  EXPECT_GT(pool.pool_statistics().seals, seals + 5);
  EXPECT_EQ(sim::calls(device, "record") - records, pool.pool_statistics().seals - seals);
}

// A call of the driver would take longer than the polls.
TEST(PoolAwaits, FreesThatAreAboutToComplete) {
  constexpr int seeds = 8;
  int grows = 0;
  for (int seed = 0; seed < seeds; ++seed) {
    const Device device = sim::open({.seed = static_cast<std::uint64_t>(seed),
                                     .policy = sim::Policy::random,
                                     .memory_bytes = 4 * gib});
    PoolResource pool(device, {.preference = PoolPreference::independence});
    const Stream first(device), second(device);
    const Block block = pool.allocate({.bytes = 256 * mib, .stream = first});
    for (int i = 0; i < 12; ++i) {
      first.fill(static_cast<std::byte*>(block.address) + i, 1, std::byte{1});
    }
    pool.deallocate(block, first);
    const std::uint64_t before = pool.pool_statistics().grows;
    const Block again = pool.allocate({.bytes = 256 * mib, .stream = second, .wait = Wait::never});
    grows += static_cast<int>(pool.pool_statistics().grows - before);
    pool.deallocate(again, second);
  }
  EXPECT_EQ(grows, 0);
}

// A stream that does not make progress costs few requests more than a look at a counter.
TEST(PoolAwaits, RarelyWhileNothingCompletes) {
  const Device device = open_device("sim?check=off&memory=32GiB");
  PoolResource pool(device, {.preference = PoolPreference::independence});
  const Stream stalled(device), other(device);
  const Block large = pool.allocate({.bytes = gib, .stream = stalled});
  const std::uint64_t hold = sim::hold(stalled);
  pool.deallocate(large, stalled);
  std::vector<Block> blocks;
  const auto polls_of = [&](int requests) {
    const std::uint64_t before = pool.pool_statistics().polls;
    for (int i = 0; i < requests; ++i) {
      blocks.push_back(pool.allocate({.bytes = 20 * mib, .stream = other}));
    }
    return pool.pool_statistics().polls - before;
  };
  EXPECT_GE(polls_of(1), 24u);
  // Most of the others make the two polls that every request makes before it grows.
  EXPECT_LE(polls_of(256), 256u * 2 + 12 * 24);
  sim::resume(device, hold);
  for (const Block& block : blocks) pool.deallocate(block, other);
}

// Blocks leave the cache at once where memory is short, so each free is in flight.
TEST(PoolShortOfMemory, QueriesStreamsOnceForManyFrees) {
  const Device device = open_device("sim?check=off&schedule=eager&memory=1GiB");
  PoolResource pool(device, {.limit_bytes = 512 * mib, .initial_bytes = 512 * mib});
  const Stream stream(device);
  std::vector<Block> live;
  for (int i = 0; i < 220; ++i) live.push_back(pool.allocate({.bytes = 2 * mib, .stream = stream}));
  const PoolStatistics before = pool.pool_statistics();
  std::mt19937_64 random(1);
  constexpr std::size_t rounds = 1000;
  for (std::size_t i = 0; i < rounds; ++i) {
    Block& one = live[random() % live.size()];
    pool.deallocate(one, stream);
    one = pool.allocate({.bytes = 2 * mib - random() % (256 * kib), .stream = stream});
  }
  const PoolStatistics after = pool.pool_statistics();
  // Otherwise the caches serve the requests, and the bound below means nothing.
  EXPECT_GE(after.available_hits + after.own_in_flight_hits,
            before.available_hits + before.own_in_flight_hits + rounds / 2);
  EXPECT_LE(after.polls - before.polls, rounds / 2);
  for (const Block& block : live) pool.deallocate(block, stream);
}

INSTANTIATE_TEST_SUITE_P(Devices, PoolPending, testing::Values("host", "sim?check=off", "opencl:0"),
                         [](const auto& one) {
                           const std::string spec = one.param;
                           return spec.substr(0, spec.find_first_of("?:"));
                         });

}  // namespace
}  // namespace tern
