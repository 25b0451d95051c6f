// Aliases: second mappings of free handles, which let a large block use memory that is not
// contiguous. What is shown here: the memory is not used twice, the same request later costs no
// driver call, and failures of the driver lose nothing.

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "support/fake_backend.hpp"
#include "support/gate.hpp"
#include "support/thread.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {
namespace {

constexpr std::size_t alias_page_bytes = 2 * mib;

class PoolAlias : public testing::Test {
 protected:
  void TearDown() override {
    for (const Finding& finding : sim::findings(device)) ADD_FAILURE() << finding.text();
  }
  /// Blocks of 24 MiB, of which every second one is freed. The free handles are not contiguous.
  [[nodiscard]] std::vector<Block> make_holes(PoolResource& pool, std::size_t count) const {
    std::vector<Block> all, kept;
    for (std::size_t i = 0; i < count; ++i) {
      all.push_back(pool.allocate({.bytes = 24 * mib, .stream = stream}));
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (i % 2 == 0) {
        pool.deallocate(all[i], stream);
      } else {
        kept.push_back(all[i]);
      }
    }
    stream.synchronize();
    return kept;
  }
  void give(PoolResource& pool, std::vector<Block>& blocks) const {
    for (const Block& block : blocks) pool.deallocate(block, stream);
    blocks.clear();
  }
  /// Writes a few bytes of each page.
  static void write(StreamRef stream, const Block& block, std::uint8_t value) {
    for (std::size_t at = 0; at < block.bytes; at += alias_page_bytes) {
      stream.fill(static_cast<std::byte*>(block.address) + at, 16, std::byte{value});
    }
  }
  /// Waits for the stream and checks what write() has written.
  static void check(StreamRef stream, const Block& block, std::uint8_t value) {
    std::vector<std::array<std::uint8_t, 16>> bytes((block.bytes + alias_page_bytes - 1) /
                                                    alias_page_bytes);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      stream.copy(bytes[i].data(),
                  static_cast<const std::byte*>(block.address) + i * alias_page_bytes, 16);
    }
    stream.synchronize();
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      for (const std::uint8_t one : bytes[i]) ASSERT_EQ(one, value) << "page " << i;
    }
  }

  Device device = sim::open({.memory_bytes = 2 * gib});
  Stream stream{device};
  Stream other{device};
};

TEST_F(PoolAlias, ServesALargeRequestWithoutGrowing) {
  PoolResource pool(device, {.auto_trim = false});
  std::vector<Block> kept = make_holes(pool, 40);
  const std::size_t held = pool.pool_statistics().held_bytes;
  const Block large = pool.allocate({.bytes = 200 * mib, .stream = stream});
  EXPECT_EQ(pool.pool_statistics().held_bytes, held);
  EXPECT_EQ(pool.pool_statistics().aliases, 1u);
  EXPECT_TRUE(pool.check_invariants());
  for (const Block& block : kept) write(stream, block, 1);
  write(stream, large, 2);
  for (const Block& block : kept) check(stream, block, 1);
  check(stream, large, 2);
  pool.deallocate(large, stream);
  give(pool, kept);
  EXPECT_TRUE(pool.check_invariants());
}

TEST_F(PoolAlias, TheSameRequestAgainCostsNoDriverCall) {
  PoolResource pool(device, {.auto_trim = false});
  std::vector<Block> kept = make_holes(pool, 40);
  const Block first = pool.allocate({.bytes = 200 * mib, .stream = stream});
  pool.deallocate(first, stream);
  stream.synchronize();
  const std::uint64_t calls = pool.pool_statistics().page_calls;
  const Block second = pool.allocate({.bytes = 198 * mib, .stream = stream});
  EXPECT_EQ(second.address, first.address);
  EXPECT_EQ(pool.pool_statistics().page_calls, calls);
  pool.deallocate(second, stream);
  give(pool, kept);
}

// Few events are recorded while one stream uses the pool, so the host learns late what has
// completed. Nevertheless the blocks of each period are where they were in the one before.
TEST_F(PoolAlias, ARepeatedProgramMakesNoDriverCallAfterItsFirstPeriod) {
  const Device prompt =
      sim::open({.policy = sim::Policy::eager, .memory_bytes = 16 * gib, .check = false});
  const Stream alone(prompt);
  PoolResource pool(prompt, {.auto_trim = false});
  const auto run = [&] {
    std::vector<Block> small, live;
    for (int i = 0; i < 60; ++i)
      small.push_back(pool.allocate({.bytes = 32 * mib, .stream = alone}));
    for (std::size_t i = 0; i < small.size(); ++i) {
      if (i % 2 == 1) {
        pool.deallocate(small[i], alone);
      } else {
        live.push_back(small[i]);
      }
    }
    for (int i = 0; i < 15; ++i)
      live.push_back(pool.allocate({.bytes = 48 * mib, .stream = alone}));
    for (const Block& block : live) pool.deallocate(block, alone);
    prompt.synchronize();
  };
  run();
  const PoolStatistics first = pool.pool_statistics();
  for (int period = 0; period < 4; ++period) run();
  const PoolStatistics last = pool.pool_statistics();

  EXPECT_EQ(last.page_calls, first.page_calls);
  EXPECT_EQ(last.peak_held_bytes, first.peak_held_bytes);
  EXPECT_LE(last.seals - first.seals, 4u * 4);
}

TEST_F(PoolAlias, ItsMemoryIsNotReusedBeforeTheStreamIsDone) {
  PoolResource pool(device, {.auto_trim = false});
  std::vector<Block> kept = make_holes(pool, 40);
  const Block large = pool.allocate({.bytes = 400 * mib, .stream = stream});
  const std::uint64_t hold = sim::hold(stream);
  write(stream, large, 7);
  pool.deallocate(large, stream);
  pool.trim(SIZE_MAX);
  // Everything that another stream can get now.
  std::vector<Block> others;
  for (int i = 0; i < 20; ++i) {
    others.push_back(pool.allocate({.bytes = 24 * mib, .stream = other, .wait = Wait::never}));
    write(other, others.back(), 9);
  }
  other.synchronize();
  sim::resume(device, hold);
  stream.synchronize();
  for (const Block& block : others) check(other, block, 9);
  for (const Block& block : others) pool.deallocate(block, other);
  give(pool, kept);
}

TEST_F(PoolAlias, TrimReturnsItsMemory) {
  PoolResource pool(device, {.auto_trim = false});
  std::vector<Block> kept = make_holes(pool, 40);
  const Block large = pool.allocate({.bytes = 200 * mib, .stream = stream});
  // In use: its handles stay.
  pool.trim(0);
  EXPECT_EQ(pool.pool_statistics().aliases, 1u);
  EXPECT_GE(pool.pool_statistics().held_bytes, 680 * mib);
  pool.deallocate(large, stream);
  give(pool, kept);
  stream.synchronize();
  pool.trim(0);
  EXPECT_EQ(pool.pool_statistics().aliases, 0u);
  EXPECT_EQ(pool.pool_statistics().held_bytes, 0u);
  EXPECT_EQ(device.memory().free_bytes, device.memory().total_bytes);
}

TEST_F(PoolAlias, TrimReleasesNoHandleWhoseAliasHasJustEnded) {
  const test::FakeDevice fake;
  const Stream user(fake.device), keeper(fake.device);
  PoolResource pool(fake.device, {.auto_trim = false});
  std::vector<Block> blocks, kept;
  for (int i = 0; i < 20; ++i) {
    blocks.push_back(pool.allocate({.bytes = 24 * mib, .stream = keeper}));
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (i % 2 == 0) {
      pool.deallocate(blocks[i], keeper);
    } else {
      kept.push_back(blocks[i]);
    }
  }
  keeper.synchronize();
  // An alias in use, and a later one that is idle. All other handles are in use.
  const Block large = pool.allocate({.bytes = 140 * mib, .stream = user});
  pool.deallocate(pool.allocate({.bytes = 90 * mib, .stream = keeper}), keeper);
  keeper.synchronize();
  pool.poll();
  ASSERT_EQ(pool.pool_statistics().aliases, 2u);
  for (int i = 0; i < 4; ++i) kept.push_back(pool.allocate({.bytes = 24 * mib, .stream = keeper}));
  test::Gate gate;
  gate.hold(user);
  pool.deallocate(large, user);
  const std::size_t held = pool.pool_statistics().held_bytes;
  // While trim() drops the idle alias, the use of the other one ends.
  fake.ledger->run_after(test::Call::unmap, [&] {
    gate.open();
    user.synchronize();
    pool.poll();
  });
  pool.trim(held - 24 * mib);
  if (pool.pool_statistics().held_bytes < held) {
    EXPECT_EQ(pool.pool_statistics().aliases, 0u);
  }
  gate.open();
  for (const Block& block : kept) pool.deallocate(block, keeper);
  fake.device.synchronize();
  pool.trim(0);
  EXPECT_EQ(pool.pool_statistics().held_bytes, 0u);
  EXPECT_EQ(pool.pool_statistics().aliases, 0u);
}

TEST_F(PoolAlias, LosesNothingIfTheDriverCannotUndo) {
  for (const char* plan :
       {"map#4=fail, free#1=fail", "map#4=oom, free#2=fail", "map#5=fail, free#1+=fail"}) {
    SCOPED_TRACE(plan);
    {
      PoolResource pool(device, {.auto_trim = false});
      std::vector<Block> kept = make_holes(pool, 40);
      sim::set_faults(device, plan);
      const Result<Block> large = pool.try_allocate({.bytes = 140 * mib, .stream = stream});
      sim::set_faults(device, "");
      if (large) pool.deallocate(*large, stream);
      give(pool, kept);
      stream.synchronize();
      pool.trim(0);
      EXPECT_EQ(pool.pool_statistics().held_bytes, 0u);
      EXPECT_EQ(device.memory().free_bytes, 2 * gib);
    }
    EXPECT_TRUE(sim::leaks(device).empty());
  }
}

TEST_F(PoolAlias, ADestroyedPoolReturnsEverything) {
  {
    PoolResource pool(device, {.auto_trim = false});
    std::vector<Block> kept = make_holes(pool, 40);
    const Block large = pool.allocate({.bytes = 200 * mib, .stream = stream});
    EXPECT_EQ(pool.pool_statistics().aliases, 1u);
    pool.deallocate(large, stream);
    give(pool, kept);
  }
  EXPECT_EQ(device.memory().free_bytes, device.memory().total_bytes);
}

TEST_F(PoolAlias, HasAtMostSixteenHandles) {
  PoolResource pool(device, {.auto_trim = false});
  // 20 handles of 24 MiB are free.
  std::vector<Block> kept = make_holes(pool, 40);
  const Block large = pool.allocate({.bytes = 450 * mib, .stream = stream});
  EXPECT_EQ(pool.pool_statistics().aliases, 0u);
  EXPECT_GE(pool.pool_statistics().held_bytes, 1410 * mib);
  pool.deallocate(large, stream);
  give(pool, kept);
}

TEST_F(PoolAlias, IsNotMadeUnderALimit) {
  PoolResource pool(device, {.limit_bytes = 2 * gib, .auto_trim = false});
  std::vector<Block> kept = make_holes(pool, 40);
  const Block large = pool.allocate({.bytes = 400 * mib, .stream = stream});
  EXPECT_EQ(pool.pool_statistics().aliases, 0u);
  pool.deallocate(large, stream);
  give(pool, kept);
}

// Each driver call of making an alias, of dropping it, and of growing instead fails once.
TEST_F(PoolAlias, LosesNothingIfTheDriverFails) {
  for (const std::string call : {"map", "release"}) {
    for (int at = 1; at <= 40; ++at) {
      SCOPED_TRACE(call + " " + std::to_string(at));
      PoolResource pool(device, {.auto_trim = false});
      std::vector<Block> kept = make_holes(pool, 40);
      sim::set_faults(device, call + "#" + std::to_string(at) + "=fail");
      const Result<Block> large = pool.try_allocate({.bytes = 200 * mib, .stream = stream});
      ASSERT_TRUE(pool.check_invariants());
      if (large) {
        write(stream, *large, 3);
        for (const Block& block : kept) write(stream, block, 4);
        check(stream, *large, 3);
        pool.deallocate(*large, stream);
      }
      stream.synchronize();
      pool.trim(0);
      ASSERT_TRUE(pool.check_invariants());
      sim::set_faults(device, "");
      give(pool, kept);
      stream.synchronize();
      pool.trim(0);
      ASSERT_TRUE(pool.check_invariants());
      EXPECT_EQ(pool.pool_statistics().held_bytes, 0u);
    }
    EXPECT_EQ(device.memory().free_bytes, device.memory().total_bytes);
  }
}

TEST_F(PoolAlias, MemoryIsNeverUsedTwiceInRandomPrograms) {
  std::uint64_t peak_aliases = 0;
  for (unsigned seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    PoolResource pool(device, {.auto_trim = false});
    struct Live {
      Block block;
      std::uint8_t value;
      const Stream* stream;
    };
    std::vector<Live> live;
    std::size_t bytes = 0;
    for (int step = 0; step < 600; ++step) {
      const std::size_t size =
          random() % 4 == 0 ? (64 + random() % 128) * mib : (16 + random() % 32) * mib;
      const bool is_full = bytes + size > 1 * gib;
      if (!is_full) {
        const Stream& on = random() % 2 == 0 ? stream : other;
        const Block block = pool.allocate({.bytes = size, .stream = on});
        live.push_back({block, static_cast<std::uint8_t>(step % 251 + 1), &on});
        bytes += block.bytes;
        write(on, block, live.back().value);
      }
      if (is_full || random() % 3 == 0) {
        if (live.empty()) continue;
        std::swap(live[random() % live.size()], live.back());
        const Live one = live.back();
        live.pop_back();
        check(*one.stream, one.block, one.value);
        if (HasFatalFailure()) return;
        bytes -= one.block.bytes;
        pool.deallocate(one.block, *one.stream);
      }
      if (step % 100 == 99) {
        ASSERT_TRUE(pool.check_invariants());
      }
      if (step % 150 == 149) pool.trim(random() % 2 == 0 ? 0 : SIZE_MAX);
      peak_aliases = std::max(peak_aliases, pool.pool_statistics().aliases);
    }
    for (const Live& one : live) {
      check(*one.stream, one.block, one.value);
      pool.deallocate(one.block, *one.stream);
    }
  }
  EXPECT_GE(peak_aliases, 3u) << "the programs used few aliases";
  EXPECT_EQ(device.memory().free_bytes, device.memory().total_bytes);
}

TEST_F(PoolAlias, ThreadsMayShareAPoolThatUsesThem) {
  PoolResource pool(device, {.auto_trim = false});
  std::vector<test::Thread> threads;
  for (unsigned number = 0; number < 4; ++number) {
    threads.emplace_back([&, number] {
      std::mt19937_64 random(number);
      const Stream own{device};
      std::vector<std::pair<Block, std::uint8_t>> live;
      for (int step = 0; step < 120; ++step) {
        const std::size_t size =
            (random() % 4 == 0 ? 64 + random() % 64 : 16 + random() % 16) * mib;
        const auto value =
            static_cast<std::uint8_t>(64 * number + static_cast<unsigned>(step) % 60 + 1);
        live.emplace_back(pool.allocate({.bytes = size, .stream = own}), value);
        write(own, live.back().first, value);
        while (live.size() > 5 || (!live.empty() && random() % 3 == 0)) {
          std::swap(live[random() % live.size()], live.back());
          check(own, live.back().first, live.back().second);
          pool.deallocate(live.back().first, own);
          live.pop_back();
        }
        if (number == 0 && step % 40 == 39) pool.trim(random() % 2 == 0 ? 0 : SIZE_MAX);
      }
      for (const auto& [block, value] : live) {
        check(own, block, value);
        pool.deallocate(block, own);
      }
    });
  }
  for (test::Thread& one : threads) one.join();
  EXPECT_TRUE(pool.check_invariants());
}

}  // namespace
}  // namespace tern
