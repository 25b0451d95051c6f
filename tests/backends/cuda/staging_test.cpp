#include "backends/cuda/staging.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iostream>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "support/fake_driver_bench.hpp"
#include "support/thread.hpp"
#include "support/thread_famine.hpp"
#include "tern/detail/core/config.hpp"

namespace tern::cuda {
namespace {

enum class Way { now, small, queued };

using Kind = StagingResult::Kind;

/// Slots so small that a few KiB are many chunks.
StagingOptions small_options(std::size_t threads = 3) {
  StagingOptions options;
  options.slot_bytes = 4 * kib;
  options.min_chunk_bytes = 256;
  options.small_bytes = 0;
  options.queue_slots = 8;
  options.queue_slot_bytes = 2 * kib;
  options.ring_bytes = 3 * 2 * options.slot_bytes + 16 * kib;
  options.threads = threads;
  return options;
}

/// With a slot for small copies to the host.
StagingOptions with_small_slot(std::size_t threads = 3) {
  StagingOptions options = small_options(threads);
  options.small_bytes = 64 * kib;
  options.ring_bytes += 2 * options.small_bytes;
  return options;
}

std::vector<std::byte> numbered(std::size_t bytes, unsigned seed = 1) {
  std::vector<std::byte> made(bytes);
  for (std::size_t i = 0; i < bytes; ++i) made[i] = static_cast<std::byte>(i * 7 + i / 251 + seed);
  return made;
}

constexpr std::size_t copy_bytes = 50'001;

sim::FakeDriverOptions driver_options(sim::Policy policy, std::uint64_t seed = 1) {
  sim::FakeDriverOptions options = sim::bench_options();
  options.sim.policy = policy;
  options.sim.seed = seed;
  return options;
}

struct Bench : sim::FakeDriverBench {
  explicit Bench(const sim::FakeDriverOptions& options = sim::bench_options(),
                 const StagingOptions& staging_options = small_options())
      : FakeDriverBench(options) {
    staging.emplace(cu, contexts[0], staging_options);
  }
  ~Bench() {
    EXPECT_EQ(found(), "") << (found().empty() ? "" : sim::findings(driver.device(0))[0].text());
  }

  StagingResult copy(Way way, const StagedCopy& copy, CUstream on) {
    if (way == Way::queued) return staging->enqueue(copy, on);
    EXPECT_EQ(cu.cuStreamSynchronize(on), CUDA_SUCCESS);
    return staging->copy_now(copy, on);
  }
  StagingResult in(Way way, const std::vector<std::byte>& source, CUstream on) {
    return copy(way, StagedCopy::to_device(device, source.data(), source.size()), on);
  }
  StagingResult out(Way way, std::vector<std::byte>& destination, CUstream on) {
    return copy(way, StagedCopy::to_host(destination.data(), device, destination.size()), on);
  }
  /// What the device has, read through memory that needs no staging.
  std::vector<std::byte> contents(CUdeviceptr at, std::size_t bytes, CUstream on) {
    void* pinned = nullptr;
    EXPECT_EQ(cu.cuMemHostAlloc(&pinned, bytes, 0), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemcpyAsync(reinterpret_cast<std::uintptr_t>(pinned), at, bytes, on),
              CUDA_SUCCESS);
    EXPECT_EQ(cu.cuStreamSynchronize(on), CUDA_SUCCESS);
    std::vector<std::byte> read(bytes);
    std::memcpy(read.data(), pinned, bytes);
    EXPECT_EQ(cu.cuMemFreeHost(pinned), CUDA_SUCCESS);
    return read;
  }
  void fill(unsigned char value, CUstream on) {
    EXPECT_EQ(cu.cuMemsetD8Async(device, value, copy_bytes, on), CUDA_SUCCESS);
  }
  void synchronize(CUstream on) { EXPECT_EQ(cu.cuStreamSynchronize(on), CUDA_SUCCESS); }

  CUdeviceptr device = memory(copy_bytes), snapshot = memory(copy_bytes);
  CUstream user = stream();
  std::optional<Staging> staging;
};

// --- Bytes and order

TEST(CudaStaging, BringsEveryByteWhicheverWayAndSize) {
  for (const sim::Policy policy : {sim::Policy::lazy, sim::Policy::eager, sim::Policy::mix}) {
    Bench bench(driver_options(policy));
    for (const Way way : {Way::now, Way::queued}) {
      for (const std::size_t bytes : {1u, 255u, 256u, 4095u, 4096u, 4097u, 30'000u, 50'000u}) {
        SCOPED_TRACE(bytes);
        // Neither end is aligned to anything.
        const std::vector<std::byte> source = numbered(bytes + 1, static_cast<unsigned>(bytes));
        std::vector<std::byte> destination(bytes + 2, std::byte{0x77});
        bench.fill(0xee, bench.user);
        ASSERT_TRUE(
            bench.copy(way, StagedCopy::to_device(bench.device + 1, &source[1], bytes), bench.user)
                .is_staged());
        ASSERT_TRUE(bench
                        .copy(way, StagedCopy::to_host(&destination[1], bench.device + 1, bytes),
                              bench.user)
                        .is_staged());
        bench.synchronize(bench.user);
        EXPECT_EQ(std::memcmp(&destination[1], &source[1], bytes), 0);
        EXPECT_EQ(destination.front(), std::byte{0x77});
        EXPECT_EQ(destination.back(), std::byte{0x77});
        EXPECT_EQ(bench.contents(bench.device, 1, bench.user)[0], std::byte{0xee});
      }
    }
  }
}

TEST(CudaStaging, BringsRowsWithoutTheirGaps) {
  Bench bench;
  constexpr std::size_t width = 100, height = 40, host_pitch = 130, device_pitch = 256;
  for (const Way way : {Way::now, Way::queued}) {
    const std::vector<std::byte> source = numbered(host_pitch * height);
    bench.fill(0, bench.user);
    StagedCopy rows = StagedCopy::to_device(bench.device, source.data(), width);
    rows.height = height;
    rows.host_pitch_bytes = host_pitch;
    rows.device_pitch_bytes = device_pitch;
    ASSERT_TRUE(bench.copy(way, rows, bench.user).is_staged());
    std::vector<std::byte> destination(source.size(), std::byte{9});
    rows.direction = StagedDirection::to_host;
    rows.host = destination.data();
    ASSERT_TRUE(bench.copy(way, rows, bench.user).is_staged());
    const std::vector<std::byte> held =
        bench.contents(bench.device, device_pitch * height, bench.user);
    for (std::size_t row = 0; row < height; ++row) {
      EXPECT_EQ(std::memcmp(&held[row * device_pitch], &source[row * host_pitch], width), 0);
      EXPECT_EQ(held[row * device_pitch + width], std::byte{0});
      EXPECT_EQ(std::memcmp(&destination[row * host_pitch], &source[row * host_pitch], width), 0);
      EXPECT_EQ(destination[row * host_pitch + width], std::byte{9});
    }
  }
}

TEST(CudaStaging, HasReadTheSourceOrWrittenTheDestinationWhenAPromptCopyReturns) {
  for (const sim::Policy policy : {sim::Policy::lazy, sim::Policy::eager, sim::Policy::mix}) {
    Bench bench(driver_options(policy));
    const std::vector<std::byte> expected = numbered(copy_bytes);
    std::vector<std::byte> source = expected;
    ASSERT_TRUE(bench.in(Way::now, source, bench.user).is_staged());
    std::ranges::fill(source, std::byte{0});
    std::vector<std::byte> destination(copy_bytes);
    ASSERT_TRUE(bench.out(Way::now, destination, bench.user).is_staged());
    EXPECT_EQ(destination, expected);
  }
}

TEST(CudaStaging, QueuesBehindAHeldStreamWithoutWaitingForIt) {
  Bench bench;
  const std::vector<std::byte> source = numbered(copy_bytes);
  std::vector<std::byte> destination(copy_bytes, std::byte{0x77});
  const std::vector<std::byte> untouched = destination;
  const std::uint64_t hold = bench.driver.hold(bench.user);
  ASSERT_TRUE(bench.in(Way::queued, source, bench.user).is_staged());
  ASSERT_TRUE(bench.out(Way::queued, destination, bench.user).is_staged());
  // Other streams run as far as they can, and the copies do not.
  const CUstream other = bench.stream();
  bench.synchronize(other);
  EXPECT_EQ(bench.cu.cuStreamQuery(bench.user), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(destination, untouched);
  bench.driver.resume(hold);
  bench.synchronize(bench.user);
  EXPECT_EQ(destination, source);
}

TEST(CudaStaging, ReadsWhatTheStreamsEarlierWorkHasWritten) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Bench bench(driver_options(sim::Policy::mix, seed));
    // The source itself changes behind the hold, and then the memory on the device.
    std::vector<std::byte> source(copy_bytes, std::byte{1});
    std::vector<std::byte> first(copy_bytes), second(copy_bytes);
    const std::uint64_t hold = bench.driver.hold(bench.user);
    const auto change = [](void* context) {
      std::ranges::fill(*static_cast<std::vector<std::byte>*>(context), std::byte{2});
    };
    ASSERT_EQ(bench.cu.cuLaunchHostFunc(bench.user, change, &source), CUDA_SUCCESS);
    ASSERT_TRUE(bench.in(Way::queued, source, bench.user).is_staged());
    ASSERT_TRUE(bench.out(Way::queued, first, bench.user).is_staged());
    bench.fill(3, bench.user);
    ASSERT_TRUE(bench.out(Way::queued, second, bench.user).is_staged());
    bench.fill(4, bench.user);
    bench.driver.resume(hold);
    bench.synchronize(bench.user);
    EXPECT_EQ(first, std::vector<std::byte>(copy_bytes, std::byte{2}));
    EXPECT_EQ(second, std::vector<std::byte>(copy_bytes, std::byte{3}));
  }
}

TEST(CudaStaging, LetsLaterWorkOfTheStreamSeeTheCopy) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    for (const Way way : {Way::now, Way::queued}) {
      SCOPED_TRACE(seed);
      Bench bench(driver_options(sim::Policy::mix, seed));
      std::uint32_t count = copy_bytes / 4;
      CUdeviceptr values = bench.device;
      std::vector<std::byte> source(copy_bytes);
      std::vector<std::uint32_t> numbers(count);
      for (std::uint32_t i = 0; i < count; ++i) numbers[i] = i * 3;
      std::memcpy(source.data(), numbers.data(), count * std::size_t{4});
      const CUfunction add_one = bench.kernel("add_one");
      ASSERT_TRUE(bench.in(way, source, bench.user).is_staged());
      ASSERT_EQ(bench.launch(add_one, bench.user, {&values, &count}), CUDA_SUCCESS);
      const std::vector<std::byte> held = bench.contents(bench.device, count * 4, bench.user);
      std::memcpy(numbers.data(), held.data(), held.size());
      for (std::uint32_t i = 0; i < count; ++i) ASSERT_EQ(numbers[i], i * 3 + 1) << i;
    }
  }
}

TEST(CudaStaging, HoldsUpNobodyElseWhileAStreamIsHeld) {
  Bench bench;
  const std::vector<std::byte> source = numbered(copy_bytes);
  std::vector<std::byte> prompt(copy_bytes), queued(copy_bytes), held(copy_bytes);
  const CUstream second = bench.stream(), third = bench.stream();
  ASSERT_TRUE(bench.in(Way::now, source, second).is_staged());
  bench.synchronize(second);
  const std::uint64_t hold = bench.driver.hold(bench.user);
  ASSERT_TRUE(bench.out(Way::queued, held, bench.user).is_staged());
  ASSERT_TRUE(bench.out(Way::now, prompt, second).is_staged());
  EXPECT_EQ(prompt, source);
  ASSERT_TRUE(bench.out(Way::queued, queued, third).is_staged());
  bench.synchronize(third);
  EXPECT_EQ(queued, source);
  bench.driver.resume(hold);
  bench.synchronize(bench.user);
  EXPECT_EQ(held, source);
}

// More streams than lanes: they share, and none is refused.
TEST(CudaStaging, QueuesForMoreHeldStreamsThanItHasSlots) {
  Bench bench;
  const std::vector<std::byte> source = numbered(copy_bytes);
  ASSERT_TRUE(bench.in(Way::now, source, bench.user).is_staged());
  bench.synchronize(bench.user);
  constexpr std::size_t streams = 12;
  std::vector<CUstream> users;
  std::vector<std::uint64_t> holds;
  std::vector<std::vector<std::byte>> destinations(streams, std::vector<std::byte>(copy_bytes));
  for (std::size_t i = 0; i < streams; ++i) {
    users.push_back(bench.stream());
    holds.push_back(bench.driver.hold(users[i]));
    ASSERT_TRUE(bench.out(Way::queued, destinations[i], users[i]).is_staged());
  }
  EXPECT_LE(bench.staging->statistics().ring_bytes, small_options().ring_bytes);
  for (std::size_t i = 0; i < streams; ++i) bench.driver.resume(holds[streams - 1 - i]);
  for (std::size_t i = 0; i < streams; ++i) {
    bench.synchronize(users[i]);
    EXPECT_EQ(destinations[i], source);
  }
}

TEST(CudaStaging, KeepsTheThreadsApartThatUseItAtOnce) {
  Bench bench(driver_options(sim::Policy::mix), small_options(4));
  constexpr std::size_t threads = 4, rounds = 8, bytes = 20'000;
  std::vector<CUdeviceptr> blocks;
  std::vector<CUstream> users;
  for (std::size_t i = 0; i < threads; ++i) {
    blocks.push_back(bench.memory(bytes));
    users.push_back(bench.stream());
  }
  std::vector<std::size_t> wrong(threads);
  {
    std::vector<test::Thread> all;
    for (std::size_t i = 0; i < threads; ++i) {
      all.emplace_back([&, i] {
        EXPECT_EQ(bench.cu.cuCtxSetCurrent(bench.contexts[0]), CUDA_SUCCESS);
        for (std::size_t round = 0; round < rounds; ++round) {
          const auto source = numbered(bytes, static_cast<unsigned>(1 + i * rounds + round));
          std::vector<std::byte> destination(bytes);
          const Way in = (round + i) % 2 == 0 ? Way::now : Way::queued;
          const Way out = round / 2 % 2 == 0 ? Way::now : Way::queued;
          const auto to = StagedCopy::to_device(blocks[i], source.data(), bytes);
          const auto from = StagedCopy::to_host(destination.data(), blocks[i], bytes);
          EXPECT_TRUE(bench.copy(in, to, users[i]).is_staged());
          EXPECT_TRUE(bench.copy(out, from, users[i]).is_staged());
          bench.synchronize(users[i]);
          if (destination != source) ++wrong[i];
        }
      });
    }
  }
  EXPECT_EQ(wrong, std::vector<std::size_t>(threads));
  const StagingStatistics statistics = bench.staging->statistics();
  EXPECT_EQ(statistics.copies_now + statistics.copies_enqueued, 2 * threads * rounds);
  EXPECT_EQ(statistics.bytes_now + statistics.bytes_enqueued, 2 * threads * rounds * bytes);
}

// --- What it holds

TEST(CudaStaging, CallsNothingOfTheDriverBeforeItsFirstCopy) {
  sim::FakeDriverBench bench;
  const std::uint64_t before = bench.driver.total_calls();
  const Staging staging(bench.cu, bench.contexts[0]);
  EXPECT_EQ(bench.driver.total_calls(), before);
  EXPECT_EQ(staging.statistics().ring_bytes, 0u);
}

TEST(CudaStaging, NeverPinsMoreThanItMayWhateverIsAsked) {
  for (const std::size_t ring :
       {std::size_t{1}, std::size_t{7}, std::size_t{100}, 4 * kib, 10 * kib, 33 * kib, 64 * kib}) {
    SCOPED_TRACE(ring);
    StagingOptions options = small_options();
    options.ring_bytes = ring;
    Bench bench(sim::bench_options(), options);
    const std::vector<std::byte> source = numbered(copy_bytes / 10);
    for (const Way way : {Way::now, Way::queued}) {
      bench.fill(0, bench.user);
      const StagingResult result = bench.in(way, source, bench.user);
      if (result.is_staged()) {
        EXPECT_EQ(bench.contents(bench.device, source.size(), bench.user), source);
      } else {
        EXPECT_EQ(result.kind, Kind::unavailable);
        EXPECT_LT(ring, 8u);
      }
      EXPECT_LE(bench.staging->statistics().ring_bytes, ring);
    }
  }
}

TEST(CudaStaging, IsSwitchedOffByNoBytesOrNoThreads) {
  for (const bool has_bytes : {false, true}) {
    StagingOptions options = small_options();
    (has_bytes ? options.threads : options.ring_bytes) = 0;
    Bench bench(sim::bench_options(), options);
    const std::vector<std::byte> source = numbered(copy_bytes);
    EXPECT_EQ(bench.in(Way::now, source, bench.user).kind, Kind::unavailable);
    EXPECT_EQ(bench.in(Way::queued, source, bench.user).kind, Kind::unavailable);
    EXPECT_EQ(bench.staging->statistics().ring_bytes, 0u);
    EXPECT_EQ(bench.driver.calls("cuMemHostAlloc"), 0u);
  }
}

TEST(CudaStaging, GoesByTheConfiguration) {
  Config config;
  const StagingOptions usual = staging_options(config);
  EXPECT_GE(usual.threads, 1u);
  EXPECT_LE(usual.threads, 12u);
  EXPECT_EQ(usual.ring_bytes, 112 * mib);
  config.staging_threads = 5;
  config.staging_bytes = 7 * mib;
  EXPECT_EQ(staging_options(config).threads, 5u);
  EXPECT_EQ(staging_options(config).ring_bytes, 7 * mib);
}

TEST(CudaStaging, MakesNothingInTheSteadyState) {
  // One thread, so that all lanes there are take part in every copy.
  Bench bench(sim::bench_options(), small_options(1));
  const std::vector<std::byte> source = numbered(copy_bytes);
  std::vector<std::byte> destination(copy_bytes);
  const auto all = [&] {
    for (const Way way : {Way::now, Way::queued}) {
      EXPECT_TRUE(bench.in(way, source, bench.user).is_staged());
      EXPECT_TRUE(bench.out(way, destination, bench.user).is_staged());
      bench.synchronize(bench.user);
    }
  };
  all();
  const std::size_t held = bench.staging->statistics().ring_bytes;
  bench.driver.clear_failures();
  for (int i = 0; i < 3; ++i) all();
  EXPECT_EQ(bench.staging->statistics().ring_bytes, held);
  std::set<std::string> called;
  for (const DriverEntryInfo& entry : driver_entries) {
    if (bench.driver.calls(entry.slot) > 0) called.emplace(entry.slot);
  }
  EXPECT_EQ(called,
            (std::set<std::string>{"cuEventQuery", "cuEventRecord", "cuEventSynchronize",
                                   "cuLaunchHostFunc", "cuMemcpyAsync", "cuStreamWaitEvent",
                                   "cuStreamSynchronize", "cuThreadExchangeStreamCaptureMode"}));
  // The test's own: three before each way's prompt copies, and behind each way.
  EXPECT_EQ(bench.driver.calls("cuStreamSynchronize"), 3u * 4);
}

TEST(CudaStaging, NeedsAsManyCallsAsThereAreChunksAndLanes) {
  Bench bench(sim::bench_options(), small_options(1));
  const std::vector<std::byte> source = numbered(32 * kib);
  ASSERT_TRUE(bench.in(Way::queued, source, bench.user).is_staged());
  bench.synchronize(bench.user);
  bench.driver.clear_failures();
  ASSERT_TRUE(bench.in(Way::queued, source, bench.user).is_staged());
  constexpr std::size_t lanes = 3, chunks = 16;
  EXPECT_EQ(bench.driver.calls("cuLaunchHostFunc"), chunks);
  EXPECT_EQ(bench.driver.calls("cuMemcpyAsync"), chunks);
  EXPECT_EQ(bench.driver.calls("cuEventRecord"), 1 + lanes);
  EXPECT_EQ(bench.driver.calls("cuStreamWaitEvent"), 2 * lanes);
  EXPECT_EQ(bench.driver.calls("cuEventQuery"), lanes);
  EXPECT_EQ(bench.driver.calls("cuEventSynchronize"), 0u);
  EXPECT_EQ(bench.driver.calls("cuStreamSynchronize"), 0u);
  bench.synchronize(bench.user);
}

TEST(CudaStaging, GivesItsRingBackAndTakesItAgain) {
  Bench bench;
  const std::size_t streams_before = bench.driver.live().streams;
  const std::vector<std::byte> source = numbered(copy_bytes);
  ASSERT_TRUE(bench.in(Way::now, source, bench.user).is_staged());
  ASSERT_TRUE(bench.in(Way::queued, source, bench.user).is_staged());
  bench.synchronize(bench.user);
  const std::size_t held = bench.staging->statistics().ring_bytes;
  EXPECT_GT(held, 0u);
  EXPECT_EQ(bench.staging->trim(), held);
  EXPECT_EQ(bench.staging->statistics().ring_bytes, 0u);
  EXPECT_EQ(bench.driver.live().streams, streams_before);
  EXPECT_EQ(bench.staging->trim(), 0u);
  ASSERT_TRUE(bench.in(Way::now, source, bench.user).is_staged());
  ASSERT_TRUE(bench.in(Way::queued, source, bench.user).is_staged());
  EXPECT_EQ(bench.contents(bench.device, copy_bytes, bench.user), source);
}

TEST(CudaStaging, KeepsWhatAHeldStreamStillNeedsWhenItTrims) {
  Bench bench;
  const std::vector<std::byte> source = numbered(copy_bytes);
  const std::uint64_t hold = bench.driver.hold(bench.user);
  ASSERT_TRUE(bench.in(Way::queued, source, bench.user).is_staged());
  const std::size_t held = bench.staging->statistics().ring_bytes;
  EXPECT_EQ(bench.staging->trim(), 0u);
  EXPECT_EQ(bench.staging->statistics().ring_bytes, held);
  bench.driver.resume(hold);
  EXPECT_EQ(bench.contents(bench.device, copy_bytes, bench.user), source);
  EXPECT_EQ(bench.staging->trim(), held);
}

TEST(CudaStaging, GivesEverythingBackAtItsEnd) {
  Bench bench;
  const sim::LiveHandles before = bench.driver.live();
  const std::size_t blocks_before = sim::leaks(bench.driver.device(0)).size();
  const std::vector<std::byte> source = numbered(copy_bytes);
  ASSERT_TRUE(bench.in(Way::now, source, bench.user).is_staged());
  ASSERT_TRUE(bench.in(Way::queued, source, bench.user).is_staged());
  EXPECT_NE(bench.driver.live(), before);
  bench.staging.reset();
  EXPECT_EQ(bench.driver.live(), before);
  EXPECT_EQ(sim::leaks(bench.driver.device(0)).size(), blocks_before);
  EXPECT_EQ(bench.contents(bench.device, copy_bytes, bench.user), source);
}

TEST(CudaStaging, CallsNothingAtItsEndOnceItIsAbandoned) {
  Bench bench;
  const std::vector<std::byte> source = numbered(copy_bytes);
  ASSERT_TRUE(bench.in(Way::now, source, bench.user).is_staged());
  const std::uint64_t hold = bench.driver.hold(bench.user);
  ASSERT_TRUE(bench.in(Way::queued, source, bench.user).is_staged());
  const std::uint64_t before = bench.driver.total_calls();
  bench.staging->abandon();
  bench.staging.reset();
  EXPECT_EQ(bench.driver.total_calls(), before);
  // What the driver still had to do finds everything in its place.
  bench.driver.resume(hold);
  EXPECT_EQ(bench.contents(bench.device, copy_bytes, bench.user), source);
}

// --- What fails

TEST(CudaStaging, CopiesWithTheThreadsItCanGet) {
  Bench bench;
  const std::vector<std::byte> source = numbered(copy_bytes);
  const test::ThreadFamine famine;
  ASSERT_TRUE(bench.in(Way::now, source, bench.user).is_staged());
  EXPECT_EQ(bench.contents(bench.device, copy_bytes, bench.user), source);
}

TEST(CudaStaging, CopiesWithTheMemoryItCanGetAndSaysWhenThereIsNone) {
  for (const Way way : {Way::now, Way::queued}) {
    for (std::uint64_t granted = 0; granted <= 3; ++granted) {
      Bench bench;
      const std::vector<std::byte> source = numbered(copy_bytes);
      bench.driver.clear_failures();
      bench.driver.fail_calls_from("cuMemHostAlloc", granted + 1, CUDA_ERROR_OUT_OF_MEMORY);
      const StagingResult result = bench.in(way, source, bench.user);
      EXPECT_EQ(result.kind, granted == 0 ? Kind::unavailable : Kind::staged);
      bench.driver.clear_failures();
      if (granted == 0) continue;
      EXPECT_EQ(bench.contents(bench.device, copy_bytes, bench.user), source);
    }
  }
}

TEST(CudaStaging, DisturbsNoCaptureOfSomebodyElse) {
  Bench bench;
  const CUstream captured = bench.stream();
  const std::vector<std::byte> source = numbered(copy_bytes);
  bench.driver.begin_capture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL);
  EXPECT_TRUE(
      bench.staging
          ->copy_now(StagedCopy::to_device(bench.device, source.data(), copy_bytes), bench.user)
          .is_staged());
  EXPECT_TRUE(bench.in(Way::queued, source, bench.user).is_staged());
  EXPECT_TRUE(bench.in(Way::queued, source, bench.user).is_staged());
  EXPECT_GT(bench.staging->statistics().ring_bytes, 0u);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  EXPECT_EQ(bench.cu.cuStreamIsCapturing(captured, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
  EXPECT_EQ(bench.cu.cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL) << "the caller's mode is the caller's";
  mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  EXPECT_EQ(bench.cu.cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  bench.driver.end_capture(captured);
  EXPECT_EQ(bench.contents(bench.device, copy_bytes, bench.user), source);
}

/// One copy, with the n-th call of a slot failing, on a new Staging or on one that has all it
/// needs.
struct Trial {
  Way way;
  StagedDirection direction;
  std::size_t threads;
  bool is_warm;

  /// False if there was no such call.
  [[nodiscard]] bool run(std::string_view slot, std::uint64_t n, bool is_held) const {
    Bench bench(sim::bench_options(),
                way == Way::small ? with_small_slot(threads) : small_options(threads));
    const sim::LiveHandles live = bench.driver.live();
    const std::size_t blocks = sim::leaks(bench.driver.device(0)).size();
    const std::vector<std::byte> wanted = numbered(copy_bytes);
    std::vector<std::byte> source = numbered(copy_bytes, 9);  // of the copy before
    std::vector<std::byte> destination(copy_bytes);
    const bool is_in = direction == StagedDirection::to_device;
    const auto copy = [&] {
      const StagedCopy in = StagedCopy::to_device(bench.device, source.data(), copy_bytes);
      const StagedCopy out = StagedCopy::to_host(destination.data(), bench.device, copy_bytes);
      if (way == Way::small) return bench.staging->copy_small_to_host(out);
      return way == Way::now ? bench.staging->copy_now(is_in ? in : out, bench.user)
                             : bench.staging->enqueue(is_in ? in : out, bench.user);
    };
    if (is_warm) {
      EXPECT_TRUE(copy().is_staged());
    }
    bench.fill(0x21, bench.user);
    bench.synchronize(bench.user);
    bench.driver.clear_failures();
    bench.driver.fail_call(slot, n, CUDA_ERROR_SYSTEM_NOT_READY);
    std::optional<std::uint64_t> hold;
    if (is_held) hold = bench.driver.hold(bench.user);
    std::ranges::fill(destination, std::byte{0x77});
    source = wanted;
    const StagingResult result = copy();
    const bool has_happened = bench.driver.calls(slot) >= n;
    bench.driver.clear_failures();
    if (result.kind == Kind::failed) {
      EXPECT_EQ(result.failure.call, slot);
      EXPECT_EQ(result.failure.result, CUDA_ERROR_SYSTEM_NOT_READY);
    } else {
      EXPECT_EQ(result.failure.call, nullptr);
    }
    if (!has_happened) {
      EXPECT_TRUE(result.is_staged());
    }
    if (result.kind == Kind::failed) {
      // The caller may free the source, and later work of the stream comes after the copy.
      std::ranges::fill(source, std::byte{0x66});
      EXPECT_EQ(bench.cu.cuMemcpyAsync(bench.snapshot, bench.device, copy_bytes, bench.user),
                CUDA_SUCCESS);
      bench.fill(0x42, bench.user);
    }
    if (hold) {
      bench.driver.resume(*hold);
      const std::vector<std::byte> untouched(copy_bytes, std::byte{0x77});
      bench.synchronize(bench.user);
      if (!result.is_staged()) {
        EXPECT_EQ(destination, untouched) << "somebody may have freed it";
      }
    }
    bench.synchronize(bench.user);
    if (result.kind == Kind::failed) {
      EXPECT_EQ(bench.contents(bench.device, copy_bytes, bench.user),
                std::vector<std::byte>(copy_bytes, std::byte{0x42}));
      const std::vector<std::byte> seen = bench.contents(bench.snapshot, copy_bytes, bench.user);
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < copy_bytes; ++i) {
        if (seen[i] != std::byte{0x21} && !(is_in && seen[i] == wanted[i])) ++wrong;
      }
      EXPECT_EQ(wrong, 0u) << "bytes are neither the old nor the new ones";
    }
    source = wanted;
    bench.fill(0x21, bench.user);
    bench.synchronize(bench.user);
    EXPECT_TRUE(copy().is_staged());
    bench.synchronize(bench.user);
    if (is_in) {
      EXPECT_EQ(bench.contents(bench.device, copy_bytes, bench.user), source);
    } else {
      EXPECT_EQ(destination, std::vector<std::byte>(copy_bytes, std::byte{0x21}));
    }
    bench.staging.reset();
    EXPECT_EQ(bench.driver.live(), live);
    EXPECT_EQ(sim::leaks(bench.driver.device(0)).size(), blocks);
    return has_happened;
  }
};

TEST(CudaStaging, LosesNothingWhenAnyCallFails) {
  std::size_t points = 0;
  for (const Way way : {Way::now, Way::small, Way::queued}) {
    for (const auto direction : {StagedDirection::to_device, StagedDirection::to_host}) {
      if (way == Way::small && direction == StagedDirection::to_device) continue;
      for (const std::size_t threads : {1u, 3u}) {
        for (const bool is_warm : {false, true}) {
          const Trial trial{way, direction, threads, is_warm};
          for (const DriverEntryInfo& entry : driver_entries) {
            for (std::uint64_t n = 1;; ++n) {
              SCOPED_TRACE(std::string(entry.slot) + " call " + std::to_string(n));
              if (!trial.run(entry.slot, n, way == Way::queued)) break;
              ++points;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(points, 200u);
  std::cout << points << " calls failed in turn\n";
}

TEST(CudaStaging, ASmallCopyToTheHostUsesOneSlot) {
  Bench bench(sim::bench_options(), with_small_slot());
  const std::vector<std::byte> wanted = numbered(copy_bytes);
  ASSERT_TRUE(bench.in(Way::now, wanted, bench.user).is_staged());
  bench.synchronize(bench.user);
  EXPECT_GT(bench.staging->trim(), 0u);
  std::vector<std::byte> destination(copy_bytes);
  const std::uint64_t before = bench.staging->statistics().bytes_now;
  const auto copy = [&] {
    std::ranges::fill(destination, std::byte{});
    return bench.staging->copy_small_to_host(
        StagedCopy::to_host(destination.data(), bench.device, copy_bytes));
  };
  ASSERT_TRUE(copy().is_staged());
  EXPECT_EQ(destination, wanted) << "the copy is complete when the call returns";
  EXPECT_EQ(bench.staging->statistics().ring_bytes, 64 * kib);
  EXPECT_EQ(bench.staging->statistics().bytes_now, before + copy_bytes);
  EXPECT_EQ(bench.staging->trim(), 64 * kib);
  EXPECT_EQ(bench.staging->statistics().ring_bytes, 0u);
  ASSERT_TRUE(copy().is_staged());
  EXPECT_EQ(destination, wanted);

  // Rows with gaps on both sides.
  StagedCopy rows = StagedCopy::to_host(destination.data(), bench.device, 100);
  rows.height = 7;
  rows.host_pitch_bytes = 130;
  rows.device_pitch_bytes = 1000;
  std::ranges::fill(destination, std::byte{0x77});
  ASSERT_TRUE(bench.staging->copy_small_to_host(rows).is_staged());
  for (std::size_t i = 0; i < 7 * std::size_t{130}; ++i) {
    const bool is_gap = i % 130 >= 100;
    ASSERT_EQ(destination[i], is_gap ? std::byte{0x77} : wanted[i / 130 * 1000 + i % 130]) << i;
  }
}

TEST(CudaStaging, ACopyThatDoesNotFitTheSmallSlotIsUnavailable) {
  const auto copy = [](std::size_t small_bytes, std::size_t bytes) {
    StagingOptions options = with_small_slot();
    options.small_bytes = small_bytes;
    Bench bench(sim::bench_options(), options);
    bench.fill(1, bench.user);
    bench.synchronize(bench.user);
    std::vector<std::byte> destination(bytes);
    return bench.staging
        ->copy_small_to_host(StagedCopy::to_host(destination.data(), bench.device, bytes))
        .kind;
  };
  EXPECT_EQ(copy(1000, 1000), Kind::staged);
  EXPECT_EQ(copy(1000, 1001), Kind::unavailable);
  EXPECT_EQ(copy(0, 1), Kind::unavailable);
  EXPECT_EQ(copy(with_small_slot().ring_bytes, 1), Kind::unavailable) << "the ring is too small";
}

// Threads that find the slot in use copy in another way.
TEST(CudaStaging, ThreadsShareTheSmallSlot) {
  Bench bench(sim::bench_options(), with_small_slot());
  const std::vector<std::byte> wanted = numbered(copy_bytes);
  ASSERT_TRUE(bench.in(Way::now, wanted, bench.user).is_staged());
  bench.synchronize(bench.user);
  std::atomic<std::size_t> staged = 0;
  std::vector<test::Thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      ASSERT_EQ(bench.cu.cuCtxSetCurrent(bench.contexts[0]), CUDA_SUCCESS);
      std::vector<std::byte> destination(copy_bytes);
      for (int round = 0; round < 50; ++round) {
        std::ranges::fill(destination, std::byte{});
        const StagingResult result = bench.staging->copy_small_to_host(
            StagedCopy::to_host(destination.data(), bench.device, copy_bytes));
        EXPECT_NE(result.kind, Kind::failed);
        if (!result.is_staged()) continue;
        EXPECT_EQ(destination, wanted);
        staged.fetch_add(1);
        if (round % 16 == 0) static_cast<void>(bench.staging->trim());
      }
    });
  }
  threads.clear();
  EXPECT_GT(staged.load(), 0u);
}

// A failure, and then the call that should have tidied up after it. What follows uses all lanes or
// only one, and trim() frees them all.
TEST(CudaStaging, RecoversItselfWhenTidyingUpFailsToo) {
  for (const std::size_t bytes_after : {copy_bytes, std::size_t{1}}) {
    for (const Way way : {Way::now, Way::queued}) {
      for (const char* tidying : {"cuStreamSynchronize", "cuEventRecord", "cuStreamWaitEvent"}) {
        for (std::uint64_t first = 1; first <= 10; ++first) {
          SCOPED_TRACE(tidying + std::string(" from ") + std::to_string(first));
          Bench bench;
          const std::vector<std::byte> source = numbered(copy_bytes);
          ASSERT_TRUE(bench.in(way, source, bench.user).is_staged());
          bench.synchronize(bench.user);
          bench.driver.clear_failures();
          bench.driver.fail_call("cuMemcpyAsync", 2, CUDA_ERROR_UNKNOWN);
          // Bench::in() waits itself before it copies.
          bench.driver.fail_calls_from(tidying, first + (way == Way::now ? 1 : 0),
                                       CUDA_ERROR_UNKNOWN);
          const StagingResult result = bench.in(way, source, bench.user);
          EXPECT_EQ(result.kind, Kind::failed);
          bench.driver.clear_failures();
          bench.fill(0x42, bench.user);
          EXPECT_EQ(bench.contents(bench.device, copy_bytes, bench.user),
                    std::vector<std::byte>(copy_bytes, std::byte{0x42}));
          bench.driver.device(0).synchronize();
          const std::vector<std::byte> after = numbered(bytes_after, 2);
          ASSERT_TRUE(bench.in(way, after, bench.user).is_staged());
          EXPECT_EQ(bench.contents(bench.device, bytes_after, bench.user), after);
          EXPECT_GT(bench.staging->trim(), 0u);
          EXPECT_EQ(bench.staging->statistics().ring_bytes, 0u) << "a lane is still not trusted";
        }
      }
    }
  }
}

TEST(CudaStaging, AFailedCopyOfAHeldStreamDelaysNoOtherStream) {
  for (const char* slot : {"cuStreamWaitEvent", "cuLaunchHostFunc"}) {
    for (std::uint64_t n = 1; n <= 3; ++n) {
      SCOPED_TRACE(slot + std::string(" call ") + std::to_string(n));
      Bench bench;
      const CUstream held = bench.stream();
      const CUdeviceptr elsewhere = bench.memory(copy_bytes);
      const std::vector<std::byte> source = numbered(copy_bytes);
      ASSERT_TRUE(bench.in(Way::queued, source, bench.user).is_staged());
      bench.synchronize(bench.user);
      const std::uint64_t hold = bench.driver.hold(held);
      bench.driver.clear_failures();
      bench.driver.fail_call(slot, n, CUDA_ERROR_UNKNOWN);
      const StagingResult failed =
          bench.staging->enqueue(StagedCopy::to_device(elsewhere, source.data(), copy_bytes), held);
      EXPECT_EQ(failed.kind, Kind::failed);
      bench.driver.clear_failures();
      const std::vector<std::byte> next = numbered(copy_bytes, 2);
      ASSERT_TRUE(bench.in(Way::queued, next, bench.user).is_staged());
      bench.synchronize(bench.user);
      bench.driver.resume(hold);
      bench.synchronize(held);
      EXPECT_EQ(bench.contents(bench.device, copy_bytes, bench.user), next);
    }
  }
}

// Host functions are not called any more then, so nothing may depend on them.
TEST(CudaStaging, EndsOnADeviceThatIsLost) {
  Bench bench;
  const std::vector<std::byte> source = numbered(copy_bytes);
  ASSERT_TRUE(bench.in(Way::now, source, bench.user).is_staged());
  const std::uint64_t hold = bench.driver.hold(bench.user);
  ASSERT_TRUE(bench.in(Way::queued, source, bench.user).is_staged());
  sim::set_faults(bench.driver.device(0), "fill#1=lost");
  EXPECT_NE(bench.cu.cuMemsetD8Async(bench.device, 1, 1, bench.user), CUDA_SUCCESS);
  bench.driver.resume(hold);
  const StagedCopy copy = StagedCopy::to_device(bench.device, source.data(), copy_bytes);
  EXPECT_NE(bench.staging->copy_now(copy, bench.user).kind, Kind::staged);
  EXPECT_NE(bench.staging->enqueue(copy, bench.user).kind, Kind::staged);
  bench.staging.reset();
}

}  // namespace
}  // namespace tern::cuda
