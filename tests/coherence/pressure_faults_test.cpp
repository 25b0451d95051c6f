// Unified buffers under pressure while calls fail, threads race and devices are lost. Afterwards
// all bytes are correct and nothing is leaked.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/gate.hpp"
#include "support/pressed.hpp"
#include "support/spilled_bytes.hpp"
#include "support/temporary_folder.hpp"
#include "support/thread.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/coherence/spill_file.hpp"
#include "tern/coherence/unified_buffer.hpp"
#include "tern/memory/fault_resource.hpp"

namespace tern::test {
namespace {

/// Two devices, the host and a file, each of which is too small.
struct Small {
  explicit Small(const std::vector<Device>& with) : devices(with) {
    for (const Device& one : devices) {
      budgets.push_back(limited(3 * pressed_bytes, "device"));
      faulty.push_back(std::make_shared<FaultResource>(
          std::make_shared<BudgetResource>(std::make_shared<PoolResource>(one), budgets.back())));
    }
    budgets.push_back(limited(4 * pressed_bytes, "host"));
    faulty.push_back(std::make_shared<FaultResource>(std::make_shared<BudgetResource>(
        std::make_shared<DirectResource>(host_device), budgets.back())));
  }
  [[nodiscard]] UnifiedBuffer<std::uint8_t> make(std::size_t bytes, std::size_t device = 0) const {
    UnifiedOptions options{.device = devices[device],
                           .tag = "small",
                           .pinned = Pinned::never,
                           .resources = {faulty.begin(), faulty.end()},
                           .spill = file};
    options.checked = is_checked;
    options.compare = is_compared;
    return UnifiedBuffer<std::uint8_t>(Shape{bytes}, options);
  }
  void expect_empty() const {
    for (const Device& one : devices) one.synchronize();
    reclaim_deferred();
    for (const BudgetHandle& one : budgets) {
      EXPECT_TRUE(one->try_wait_for_pending());
      EXPECT_EQ(one->charged_bytes(), 0u);
      expect_sound(*one);
    }
    EXPECT_EQ(file->statistics().used_bytes, 0u);
  }

  bool is_checked = false, is_compared = false;
  TemporaryFolder folder;
  Device host_device = open_device("host");
  std::vector<Device> devices;
  std::vector<BudgetHandle> budgets;
  std::vector<std::shared_ptr<FaultResource>> faulty;
  SpillHandle file =
      SpillFile::open({.directory = folder / "", .limit_bytes = 64 * SpillFile::block_bytes});
};

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 77 + 1) {}
  std::size_t operator()(std::size_t below) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::size_t>(state_ >> 33) % below;
  }

 private:
  std::uint64_t state_;
};

/// Random accesses to more buffers than fit anywhere, against arrays that are always right. Where
/// calls may be refused, a refusal has changed nothing. Gives how many bytes were compared.
std::uint64_t run_program(const Small& small, std::uint64_t seed, int steps, bool may_refuse) {
  Random random(seed);
  std::vector<Stream> streams;
  for (const Device& one : small.devices) {
    streams.emplace_back(one);
    streams.emplace_back(one);
  }
  constexpr std::size_t most = pressed_bytes;
  struct Kept {
    UnifiedBuffer<std::uint8_t> buffer;
    std::vector<int> truth;
  };
  std::vector<Kept> all;
  std::uint64_t compared = 0;
  for (int i = 0; i < 14; ++i) {
    const std::size_t bytes = 1 + random(most);
    all.push_back({small.make(bytes, random(small.devices.size())), std::vector<int>(bytes, -1)});
  }
  const auto expect_refusal = [&](const Failure& failure) {
    EXPECT_TRUE(may_refuse) << seed << ": " << failure.text();
  };
  for (int step = 0; step < steps; ++step) {
    Kept& one = all[random(all.size())];
    const std::size_t bytes = one.truth.size();
    const std::size_t begin = random(bytes), count = 1 + random(bytes - begin);
    const auto first = one.truth.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = first + static_cast<std::ptrdiff_t>(count);
    const bool is_written = std::all_of(first, last, [](int value) { return value >= 0; });
    UnifiedView<std::uint8_t> part = one.buffer.slice(begin, count);
    const StreamRef stream = streams[random(streams.size())];
    const auto value = static_cast<std::uint8_t>(random(256));
    switch (random(9)) {
      case 0:
      case 1: {
        if (!is_written) break;
        const auto lease = part.try_read_host();
        if (!lease) {
          expect_refusal(lease.failure());
          break;
        }
        for (std::size_t k = 0; k < count; ++k) EXPECT_EQ((*lease)[k], first[std::ptrdiff_t(k)]);
        compared += count;
        break;
      }
      case 2: {
        auto lease = part.try_discard_host();
        if (!lease) {
          expect_refusal(lease.failure());
          break;
        }
        std::ranges::fill(*lease, value);
        std::fill(first, last, value);
        break;
      }
      case 3:
      case 4: {
        auto lease = part.try_discard_device(stream);
        if (!lease) {
          expect_refusal(lease.failure());
          break;
        }
        if (const auto filled = stream.try_fill(lease->data(), count, value)) {
          std::fill(first, last, value);
        } else {
          lease->abandon();
          expect_refusal(filled.failure());
          std::fill(first, last, -1);
        }
        break;
      }
      case 5: {
        if (!is_written) break;
        std::vector<std::uint8_t> seen(count);
        const auto lease = part.try_read_device(stream);
        if (!lease) {
          expect_refusal(lease.failure());
          break;
        }
        const auto copied = stream.try_copy(seen.data(), lease->data(), count);
        if (!copied || !stream.try_synchronize()) {
          EXPECT_TRUE(may_refuse);
          stream.synchronize();
          break;
        }
        EXPECT_TRUE(std::equal(first, last, seen.begin())) << seed << " at " << step;
        compared += count;
        break;
      }
      case 6:
        one.buffer.mark_evict_first();
        if (is_written) static_cast<void>(part.try_prefetch(stream));
        break;
      case 7: {
        if (random(4) != 0) break;
        const bool on_host = random(2) == 0;
        const Result<void> dropped =
            on_host ? one.buffer.try_drop_host()
                    : one.buffer.try_drop_device(small.devices[random(small.devices.size())]);
        if (!dropped) expect_refusal(dropped.failure());
        break;
      }
      default: {
        const auto stored = one.buffer.try_store_host(begin, value);
        if (stored) {
          *first = value;
        } else {
          expect_refusal(stored.failure());
          // Written in some places, and elsewhere forgotten: what it is now, the buffer says.
          const auto is = one.buffer.try_load_host(begin);
          if (is) *first = *is;
        }
        break;
      }
    }
    if (step % 16 == 0) {
      EXPECT_TRUE(one.buffer.check());
    }
  }
  return compared;
}

TEST(PressureModel, RandomProgramsReadWhatWasWritten) {
  std::uint64_t compared = 0;
  const PressureStatistics before = pressure_totals();
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const std::vector<Device> devices = sim::open_peers(
        {.seed = seed, .policy = seed % 2 == 0 ? sim::Policy::lazy : sim::Policy::random},
        1 + seed % 2);
    Small small(devices);
    small.is_checked = seed % 4 == 1;
    small.is_compared = seed % 8 == 2;
    compared += run_program(small, seed, 400, false);
    small.expect_empty();
    for (const Device& one : devices) expect_no_findings(one);
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
  const PressureStatistics since = pressure_totals() - before;
  EXPECT_GE(compared, 200'000u);
  EXPECT_GE(since.spilled_bytes, 100'000u);
  EXPECT_GE(since.unspilled_bytes, 10'000u);
  for (const Eviction kind : {Eviction::stale, Eviction::clean, Eviction::dirty}) {
    EXPECT_GE(since.on_device(kind).copies, 50u) << name(kind);
    EXPECT_GE(since.on_host(kind).copies, 50u) << name(kind);
  }
}

TEST(PressureModel, NothingIsLostWhenAllocationsFail) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    const std::vector<Device> devices = sim::open_peers({.seed = seed}, 2);
    const Small small(devices);
    for (const auto& one : small.faulty) {
      one->set_rules({{.rate = 0.2, .seed = seed, .code = ErrorCode::out_of_memory}});
    }
    EXPECT_GT(run_program(small, seed, 300, true), 0u);
    small.expect_empty();
    for (const Device& one : devices) expect_no_findings(one);
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

TEST(PressureModel, NothingIsLostWhenTheDiskIsFull) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const std::vector<Device> devices = sim::open_peers({.seed = seed}, 1);
    const Small small(devices);
    {
      const SmallFiles full((seed % 5) * SpillFile::block_bytes);
      EXPECT_GT(run_program(small, seed, 300, true), 0u);
    }
    small.expect_empty();
    if (testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

// Every call of a kind fails in its turn, until a run has none left.
TEST(PressureModel, NothingIsLostWhicheverCallFails) {
  for (const std::string kind :
       {"allocate", "copy", "fill", "wait", "record", "stream", "sync", "query"}) {
    for (int nth = 1; nth <= 40; ++nth) {
      const std::vector<Device> devices = sim::open_peers({}, 1);
      const Small small(devices);
      {
        std::vector<UnifiedBuffer<std::uint8_t>> all;
        const Stream s(devices[0]), t(devices[0]);
        std::vector<int> truth;
        sim::set_faults(devices[0], kind + "#" + std::to_string(nth) + "=fail");
        for (int i = 0; i < 8; ++i) {
          all.push_back(small.make(pressed_bytes));
          truth.push_back(-1);
          auto lease = all.back().try_discard_device(i % 2 == 0 ? s : t);
          if (!lease) continue;
          if (lease->stream().try_fill(lease->data(), lease->size(), std::uint8_t(i))) {
            truth.back() = i;
          } else {
            lease->abandon();
          }
        }
        for (std::size_t i = 0; i < all.size(); ++i) {
          if (!all[i].try_read_host()) sim::set_faults(devices[0], "");  // that was the one
          const auto lease = all[i].try_read_host();
          if (truth[i] < 0) {
            EXPECT_FALSE(lease) << kind << nth;
            continue;
          }
          ASSERT_TRUE(lease) << kind << nth << ": " << lease.failure().text();
          EXPECT_TRUE(std::ranges::all_of(*lease, [&](int one) { return one == truth[i]; }))
              << kind << nth;
          EXPECT_TRUE(all[i].check());
        }
      }
      sim::set_faults(devices[0], "");
      small.expect_empty();
      expect_no_findings(devices[0]);
    }
  }
}

// --- A device that is lost

TEST_F(Pressed, ARefusedResizeLeavesTheHostNothingToWaitFor) {
  UnifiedBuffer<int> buffer = clean();
  buffer.slice(0, 1).rw_host()[0] = 5;  // the host has waited for all that used its copy
  // By then the host has copied its bytes itself.
  refused(buffer.try_resize_keep(4 * pressed_ints, t), ErrorCode::out_of_budget);
  const std::uint64_t waits = buffer.statistics().host_waits;
  std::ranges::fill(buffer.discard_host(), 5);
  EXPECT_EQ(buffer.statistics().host_waits, waits);
  EXPECT_EQ(on_device(buffer, s), std::vector<int>(pressed_ints, 5));
}

TEST_F(Pressed, WhatARefusedResizeReadsIsWaitedFor) {
  const Result<Device> shared = try_open_device("opencl:0");
  if (!shared) GTEST_SKIP() << shared.failure().text();
  const Stream on_shared(*shared);
  UnifiedBuffer<int> buffer(Shape{pressed_ints}, {.device = *shared, .resources = {resource}});
  buffer.copy_from(counting(pressed_ints));
  buffer.prefetch(s);
  buffer.slice(0, 1).rw_host()[0] = 5;  // the host has waited for all that used its copy
  // The memory that the host shares is on its way to the larger one by then.
  refused(buffer.try_resize_keep(4 * pressed_ints, on_shared), ErrorCode::out_of_budget);
  const std::uint64_t waits = buffer.statistics().host_waits;
  std::ranges::fill(buffer.discard_host(), 5);
  EXPECT_EQ(buffer.statistics().host_waits, waits + 1);
  EXPECT_EQ(on_device(buffer, s), std::vector<int>(pressed_ints, 5));
}

TEST_F(Pressed, WhatIsLostWithADeviceIsSaidByNameAndRange) {
  UnifiedBuffer<int> rho = pressed("rho");
  rho.copy_from(counting(pressed_ints));
  write_on_device(rho.slice(16, 32), s, 9);
  s.synchronize();
  sim::set_faults(device, "copy#1=lost");
  const Failure refusal = refused(rho.try_read_host(), ErrorCode::sync_failed);
  EXPECT_EQ(refusal.string("tag"), "rho");
  EXPECT_EQ(refusal.string("cause"), "device_lost");
  EXPECT_EQ(refusal.number("begin"), 64u);
  EXPECT_EQ(refusal.number("end"), 192u);
  EXPECT_NE(refusal.text().find("bytes 64 to 192 of buffer 'rho' are lost with"), std::string::npos)
      << refusal.text();
  // The rest is there.
  EXPECT_EQ(rho.slice(0, 16).read_host()[15], 16);
  rho.drop_device(Drop::discard);
  refused(rho.try_read_host(), ErrorCode::never_written);
  EXPECT_EQ(rho.slice(48, 10).read_host()[0], 49);
  devices.erase(devices.begin());  // its work is over
}

TEST_F(Pressed, WhatIsLostOnItsWayHomeIsSaidByNameAndRange) {
  UnifiedBuffer<int> rho = pressed("rho");
  rho.copy_from(counting(pressed_ints));
  write_on_device(rho.slice(16, 32), s, 9);
  const UnifiedBuffer<int> a = dirty(1), b = dirty(2);
  s.synchronize();
  sim::set_faults(device, "copy#1=fault");  // found out when the stream gets there
  UnifiedBuffer<int> more = pressed("more");
  static_cast<void>(more.try_discard_device(s));
  EXPECT_FALSE(is_there(rho));
  const Failure refusal = refused(rho.try_read_host(), ErrorCode::sync_failed);
  EXPECT_EQ(refusal.string("tag"), "rho");
  EXPECT_EQ(refusal.number("begin"), 64u);
  EXPECT_EQ(refusal.number("end"), 192u);
  EXPECT_EQ(refusal.number("lost"), 128u);
  EXPECT_EQ(refused(rho.try_read_host(), ErrorCode::never_written).number("begin"), 64u);
  EXPECT_EQ(rho.slice(0, 16).read_host()[15], 16);
  EXPECT_EQ(rho.slice(48, 10).read_host()[0], 49);
  devices.erase(devices.begin());
}

TEST_F(Pressed, WhatIsOnItsWayHomeIsNotLostBecauseAWaitFails) {
  UnifiedBuffer<int> rho = pressed("rho");
  Gate gate;
  gate.hold(s);
  write_on_device(rho, s, 9);
  const UnifiedBuffer<int> a = pressed("a"), b = pressed("b");
  write_on_device(a, t, 1);
  write_on_device(b, t, 1);
  UnifiedBuffer<int> more = pressed("more");
  write_on_device(more, t, 1);
  EXPECT_FALSE(is_there(rho));
  sim::set_faults(device, "sync#1=fail");
  refused(rho.try_read_host(), ErrorCode::sync_failed);
  EXPECT_GE(sim::calls(device, "sync"), 1u);
  gate.open();
  EXPECT_EQ(rho.to_vector(), std::vector<int>(pressed_ints, 9));
}

TEST_F(Pressed, ALostDeviceKeepsWhatItCannotGiveAndOthersGo) {
  UnifiedBuffer<int> a = dirty(1, "a");
  s.synchronize();
  sim::set_faults(device, "copy#1=lost");
  const UnifiedBuffer<int> b = pressed(), c = pressed();
  refused(a.try_drop_device(device), ErrorCode::sync_failed);
  EXPECT_TRUE(is_there(a));
  devices.erase(devices.begin());
}

// --- Threads

TEST(PressureThreads, MeetInOneBudgetAndEachReadsItsOwn) {
  const Device device = sim::open({});
  const Small small({device});
  std::vector<test::Thread> threads;
  std::atomic<int> refusals = 0;
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      const Stream stream(device);
      std::vector<UnifiedBuffer<std::uint8_t>> own;
      for (int i = 0; i < 5; ++i) {
        own.push_back(small.make(pressed_bytes));
        std::ranges::fill(own.back().discard_host(), std::uint8_t(0));
      }
      std::array<int, 5> truth = {};
      for (int round = 0; round < 60; ++round) {
        const std::size_t at = static_cast<std::size_t>(round * 7 + thread) % 5;
        // Each holds one at a time, so there is room for all three.
        auto lease = own[at].try_discard_device(stream);
        if (!lease) {
          ++refusals;
          EXPECT_EQ(lease.failure().code(), ErrorCode::out_of_budget) << lease.failure().text();
          continue;
        }
        truth[at] = (round + thread) % 200;
        stream.fill(lease->data(), lease->size(), std::uint8_t(truth[at]));
      }
      for (std::size_t i = 0; i < own.size(); ++i) {
        for (;;) {
          const auto lease = own[i].try_read_host();
          if (!lease) {
            // All that the host has may be in others' hands just now.
            EXPECT_EQ(lease.failure().code(), ErrorCode::out_of_budget) << lease.failure().text();
            std::this_thread::yield();
            continue;
          }
          EXPECT_EQ((*lease)[7], truth[i]);
          break;
        }
      }
    });
  }
  for (test::Thread& one : threads) one.join();
  small.expect_empty();
  expect_no_findings(device);
}

}  // namespace
}  // namespace tern::test
