#include "backends/cuda/cuda_copies.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/memory_tool.hpp"
#include "support/allocation_counter.hpp"
#include "support/cuda_bench.hpp"
#include "support/fake_memory_tool.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"

namespace tern::cuda {
namespace {

enum class End { pageable, pinned, registered, device, managed };
constexpr End ends[] = {End::pageable, End::pinned, End::registered, End::device, End::managed};
constexpr const char* name_of(End end) {
  constexpr const char* names[] = {"pageable", "pinned", "registered", "device", "managed"};
  return names[static_cast<std::size_t>(end)];
}

/// Memory of one kind, for one end of a copy.
class Memory {
 public:
  Memory(CudaBench& bench, End end, std::size_t bytes) : bench_(bench), end_(end), bytes_(bytes) {
    if (end == End::pageable || end == End::registered) {
      host_.resize(bytes);
      address_ = host_.data();
      if (end == End::registered) {
        EXPECT_EQ(why(bench.device().register_host(address_, bytes)), "");
      }
      return;
    }
    address_ = bench.memory(bytes, end == End::device    ? MemoryKind::device
                                   : end == End::managed ? MemoryKind::managed
                                                         : MemoryKind::pinned);
  }
  ~Memory() {
    if (end_ == End::registered) {
      EXPECT_EQ(why(bench_.device().unregister_host(address_)), "");
    }
    if (host_.empty()) {
      EXPECT_EQ(why(bench_.device().release(address_, {})), "");
    }
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  [[nodiscard]] std::byte* address() const { return static_cast<std::byte*>(address_); }
  [[nodiscard]] bool is_host() const { return end_ != End::device && end_ != End::managed; }
  void write(const std::vector<std::byte>& bytes) {
    if (!is_host()) return bench_.write(address_, bytes);
    std::memcpy(address_, bytes.data(), bytes.size());
  }
  std::vector<std::byte> read() {
    if (!is_host()) return bench_.read(address_, bytes_);
    return {address(), address() + bytes_};
  }

 private:
  CudaBench& bench_;
  const End end_;
  const std::size_t bytes_;
  std::vector<std::byte> host_;
  void* address_ = nullptr;
};

enum class Way { idle, held, legacy };

/// Copies between any two kinds of memory, and sees that the call never waits for the stream.
template <class Copy>
void copy_every_pair(std::size_t bytes, Copy copy) {
  // Destinations are read while the copy is held, which a memory tool would report.
  test::NeverPoisons never_poisons;
  const ScopedMemoryTool tool(never_poisons.if_needed());
  CudaBench bench(sim::bench_options(), small_staging());
  const std::vector<std::byte> source = numbered(bytes), before(bytes, std::byte{0x77});
  for (const Way how : {Way::idle, Way::held, Way::legacy}) {
    const NativeStream stream =
        how == Way::legacy ? bench.device().default_stream() : bench.stream();
    for (const End from_end : ends) {
      for (const End to_end : ends) {
        SCOPED_TRACE(std::string(name_of(from_end)) + " to " + name_of(to_end) + ", " +
                     std::to_string(static_cast<int>(how)));
        Memory from(bench, from_end, bytes), to(bench, to_end, bytes);
        from.write(source);
        to.write(before);
        std::optional<std::uint64_t> hold;
        // One that waits for a held stream is called a deadlock by the simulation.
        if (how == Way::held) hold = bench.fake.hold(CudaBench::raw(stream));
        const std::vector<std::byte> expected =
            copy(bench.device(), stream, to.address(), from.address(), source, before);
        if (hold) {
          if (to.is_host()) {
            EXPECT_EQ(to.read(), before) << "the copy did not wait for its turn";
          }
          bench.fake.resume(*hold);
        }
        EXPECT_EQ(why(bench.device().synchronize(stream)), "");
        EXPECT_TRUE(to.read() == expected);
      }
    }
  }
}

TEST(CudaCopies, BringEveryByteBetweenAnyTwoKindsAndNeverWaitForTheStream) {
  for (const std::size_t bytes : {1'000u, 300'000u}) {
    copy_every_pair(bytes, [](Backend& device, NativeStream stream, std::byte* to,
                              const std::byte* from, const auto& source, const auto&) {
      EXPECT_EQ(why(device.copy({stream}, to, from, source.size())), "");
      return source;
    });
  }
}

TEST(CudaCopies, BringRowsBetweenAnyTwoKindsAndNeverWaitForTheStream) {
  constexpr std::size_t height = 31;
  for (const std::size_t pitch : {128u, 10'000u}) {
    copy_every_pair(pitch * height,
                    [&](Backend& device, NativeStream stream, std::byte* to, const std::byte* from,
                        const auto& source, const auto& before) {
                      const std::size_t width = pitch - 28;
                      Copy2D copy{to, pitch, from, pitch - 8, width, height};
                      EXPECT_EQ(why(device.copy_2d({stream}, copy)), "");
                      std::vector<std::byte> expected = before;
                      for (std::size_t row = 0; row < height; ++row) {
                        std::memcpy(&expected[row * pitch], &source[row * (pitch - 8)], width);
                      }
                      return expected;
                    });
  }
}

TEST(CudaCopies, TakeRowsWithoutAGapForOneCopy) {
  CudaBench bench;
  void* const from = bench.memory(1000);
  void* const to = bench.memory(1000);
  const NativeStream stream = bench.stream();
  bench.write(from, numbered(1000));
  bench.fake.clear_failures();
  EXPECT_EQ(why(bench.device().copy_2d({stream}, {to, 100, from, 100, 100, 10})), "");
  EXPECT_EQ(bench.fake.calls("cuMemcpyAsync"), 1u);
  EXPECT_EQ(bench.fake.calls("cuMemcpy2DAsync"), 0u);
  EXPECT_EQ(why(bench.device().synchronize(stream)), "");
  EXPECT_EQ(bench.read(to, 1000), numbered(1000));
  // So is a single row, whatever its pitches.
  EXPECT_EQ(why(bench.device().copy_2d({stream}, {to, 700, from, 900, 500, 1})), "");
  EXPECT_EQ(bench.fake.calls("cuMemcpy2DAsync"), 0u);
}

TEST(CudaCopies, AreLeftToTheDriverWithoutStaging) {
  CudaBench bench;
  void* const memory = bench.memory(1 * mib);
  const NativeStream stream = bench.stream();
  const std::vector<std::byte> source = numbered(1 * mib);
  std::vector<std::byte> read(source.size());
  bench.fake.clear_failures();
  EXPECT_EQ(why(bench.device().copy({stream}, memory, source.data(), source.size())), "");
  EXPECT_EQ(why(bench.device().copy({stream}, read.data(), memory, source.size())), "");
  EXPECT_EQ(why(bench.device().copy_2d({stream}, {memory, 512, source.data(), 600, 500, 100})), "");
  EXPECT_EQ(why(bench.device().synchronize(stream)), "");
  EXPECT_TRUE(read == source);
  EXPECT_EQ(bench.fake.calls("cuMemcpyAsync"), 2u);
  EXPECT_EQ(bench.fake.calls("cuMemcpy2DAsync"), 1u);
  EXPECT_EQ(bench.fake.calls("cuMemHostAlloc"), 0u);
}

TEST(CudaCopies, GiveBackWhatStagingHasTakenWhicheverContextIsCurrent) {
  CudaBench bench(sim::bench_options(), small_staging());
  const std::vector<std::byte> source = numbered(1 * mib);
  void* const memory = bench.memory(source.size());
  const NativeStream stream = bench.stream();
  EXPECT_EQ(why(bench.device().copy({stream}, memory, source.data(), source.size())), "");
  const std::uint64_t hold = bench.fake.hold(CudaBench::raw(stream));
  EXPECT_EQ(why(bench.device().copy({stream}, memory, source.data(), source.size())), "");
  bench.fake.resume(hold);
  bench.synchronize();
  EXPECT_GT(bench.fake.calls("cuMemHostAlloc"), 1u);
  EXPECT_EQ(why(bench.device().release(memory, {})), "");
  bench.device().destroy_stream(stream);
  // This thread has no context of its own, as any thread may have none that ends a device.
  bench.backends.clear();
  sim::LiveHandles live = bench.fake.live();
  EXPECT_EQ(live.streams, 0u);
  EXPECT_EQ(live.events, 0u);
  EXPECT_TRUE(sim::leaks(bench.fake.device(0)).empty());
}

TEST(CudaCopies, DoNotQueryAStreamThatIsKnownToBeIdle) {
  CudaBench bench(sim::bench_options(), small_staging());
  const NativeStream stream = *bench.device().create_stream({});
  const std::vector<std::byte> written = numbered(4096);
  std::vector<std::byte> read(written.size());
  void* const memory = bench.memory(written.size());
  for (const bool is_idle : {false, true}) {
    const std::uint64_t queries = bench.fake.calls("cuStreamQuery");
    const Submission submission{.stream = stream, .is_idle = is_idle};
    EXPECT_EQ(why(bench.device().copy(submission, memory, written.data(), written.size())), "");
    EXPECT_EQ(why(bench.device().synchronize(stream)), "");
    read.assign(read.size(), {});
    EXPECT_EQ(why(bench.device().copy(submission, read.data(), memory, read.size())), "");
    EXPECT_EQ(why(bench.device().synchronize(stream)), "");
    EXPECT_EQ(read, written);
    EXPECT_EQ(bench.fake.calls("cuStreamQuery") - queries, is_idle ? 0u : 2u);
  }
  EXPECT_EQ(why(bench.device().release(memory, {})), "");
  bench.device().destroy_stream(stream);
}

TEST(CudaCopies, NameTheCallThatFailed) {
  CudaBench bench(sim::bench_options(), small_staging());
  Backend& device = bench.device();
  void* const memory = bench.memory(1 * mib);
  void* const other = bench.memory(1 * mib);
  bench.write(memory, numbered(1 * mib));
  bench.write(other, numbered(1 * mib));
  std::vector<std::byte> host(1 * mib), more(1 * mib);
  const NativeStream stream = bench.stream();
  const auto failing = [&](const char* call, auto body) {
    SCOPED_TRACE(call);
    bench.fake.fail_call(call, 1, CUDA_ERROR_UNKNOWN);
    const Result<void> refused = body();
    ASSERT_EQ(code(refused), "driver");
    EXPECT_EQ(refused.failure().string("call"), call);
    bench.fake.clear_failures();
    EXPECT_EQ(why(body()), "");
    EXPECT_EQ(why(device.synchronize(stream)), "");
  };
  failing("cuMemcpyAsync", [&] { return device.copy({stream}, memory, other, 1000); });
  failing("cuMemcpyAsync", [&] { return device.copy({stream}, host.data(), memory, 1 * mib); });
  failing("cuMemcpy2DAsync", [&] {
    return device.copy_2d({stream}, {memory, 100, other, 100, 90, 10});
  });
  failing("cuMemcpyPeerAsync",
          [&] { return device.copy_from_peer({stream}, memory, device, other, 10); });
  // From the host to the host on a stream with work in front: by a function of the host.
  const auto by_host = [&] {
    const std::uint64_t hold = bench.fake.hold(CudaBench::raw(stream));
    Result<void> result = device.copy({stream}, host.data(), more.data(), 1000);
    bench.fake.resume(hold);
    return result;
  };
  failing("cuLaunchHostFunc", by_host);
  const auto fill = [&](std::size_t width, std::size_t bytes) {
    return [&, width, bytes] {
      Pattern pattern;
      for (std::size_t i = 0; i < width; ++i) pattern.bytes[i] = static_cast<std::byte>(i + 1);
      pattern.width_bytes = width;
      return device.fill({stream}, memory, bytes, pattern);
    };
  };
  failing("cuMemsetD8Async", fill(1, 100));
  failing("cuMemsetD16Async", fill(2, 100));
  failing("cuMemsetD32Async", fill(4, 100));
  failing("cuMemsetD2D8Async", fill(3, 300));
  failing("cuMemcpyAsync", fill(3, 30'000));
  if (!test::HeapExhausted::is_possible()) return;
  const std::uint64_t hold = bench.fake.hold(CudaBench::raw(stream));
  std::optional<Result<void>> refused;
  {
    const test::HeapExhausted exhausted;
    refused = device.copy({stream}, host.data(), more.data(), 1000);
  }
  bench.fake.resume(hold);
  EXPECT_EQ(code(*refused), "out_of_memory");
}

// --- Fills

TEST(CudaCopies, FillWithEveryWidthAtEveryAddress) {
  CudaBench bench;
  constexpr std::size_t room = 16 * 700 + 64;
  void* const memory = bench.memory(room);
  const NativeStream stream = bench.stream();
  for (std::size_t width = 1; width <= Pattern::max_bytes; ++width) {
    for (const std::size_t offset : {0u, 1u, 2u, 4u}) {
      for (const std::size_t count : {1u, 700u}) {
        SCOPED_TRACE(std::to_string(width) + " bytes at " + std::to_string(offset) + ", " +
                     std::to_string(count) + " times");
        // The long ones take thousands of simulated fills each.
        if (count != 1 && offset > 1) continue;
        Pattern pattern;
        for (std::size_t i = 0; i < width; ++i) pattern.bytes[i] = static_cast<std::byte>(40 + i);
        pattern.width_bytes = width;
        bench.fill(memory, room, 0xee, stream);
        auto* const at = static_cast<std::byte*>(memory) + offset;
        EXPECT_EQ(why(bench.device().fill({stream}, at, count * width, pattern)), "");
        EXPECT_EQ(why(bench.device().synchronize(stream)), "");
        std::vector<std::byte> expected(room, std::byte{0xee});
        for (std::size_t i = 0; i < count * width; ++i) {
          expected[offset + i] = pattern.bytes[i % width];
        }
        EXPECT_TRUE(bench.read(memory, room) == expected);
      }
    }
  }
}

TEST(CudaCopies, FillWithTheShortestPatternThatRepeatsToTheSame) {
  CudaBench bench;
  void* const memory = bench.memory(4096);
  const NativeStream stream = bench.stream();
  const auto fill = [&](std::vector<int> bytes) {
    Pattern pattern;
    pattern.width_bytes = bytes.size();
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      pattern.bytes[i] = static_cast<std::byte>(bytes[i]);
    }
    bench.fake.clear_failures();
    EXPECT_EQ(why(bench.device().fill({stream}, memory, 48 * bytes.size(), pattern)), "");
  };
  fill({0, 0, 0, 0, 0, 0, 0, 0});
  EXPECT_EQ(bench.fake.calls("cuMemsetD8Async"), 1u);
  fill({1, 2, 1, 2, 1, 2});
  EXPECT_EQ(bench.fake.calls("cuMemsetD16Async"), 1u);
  fill({1, 2, 3, 4, 1, 2, 3, 4});
  EXPECT_EQ(bench.fake.calls("cuMemsetD32Async"), 1u);
  fill({1, 2, 3, 1, 2, 3});
  EXPECT_EQ(bench.fake.calls("cuMemsetD2D8Async"), 3u);
}

TEST(CudaCopies, DoNotFillMemoryThatTheDeviceDoesNotKnow) {
  CudaBench bench;
  std::vector<std::byte> memory(100);
  const NativeStream stream = bench.stream();
  const Result<void> refused = bench.device().fill({stream}, memory.data(), 100, {});
  ASSERT_EQ(code(refused), "invalid_argument");
  EXPECT_EQ(refused.failure().number("bytes"), 100u);
  ASSERT_EQ(why(bench.device().register_host(memory.data(), 100)), "");
  EXPECT_EQ(why(bench.device().unregister_host(memory.data())), "");
}

// --- Many at once

/// Copies of 16 bytes each, from the end of one block to the beginning of another.
struct Batch {
  Batch(CudaBench& bench, std::size_t count, MemoryKind source_kind = MemoryKind::device)
      : bytes(numbered(16 * count)) {
    from = bench.memory(bytes.size(), source_kind);
    to = bench.memory(bytes.size());
    bench.write(from, bytes);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t j = count - 1 - i;
      ranges.push_back(
          {static_cast<std::byte*>(to) + 16 * i, static_cast<const std::byte*>(from) + 16 * j, 16});
    }
  }
  [[nodiscard]] std::vector<std::byte> expected() const {
    std::vector<std::byte> made;
    for (std::size_t i = bytes.size(); i > 0; i -= 16) {
      made.insert(made.end(), &bytes[i - 16], &bytes[i - 16] + 16);
    }
    return made;
  }

  std::vector<std::byte> bytes;
  void* from = nullptr;
  void* to = nullptr;
  std::vector<CopyRange> ranges;
};

TEST(CudaCopies, MakeManyInOneCallOfWhicheverDriver) {
  const struct {
    int version;
    const char* slot;
    std::uint64_t calls;
  } drivers[] = {{13000, "cuMemcpyBatchAsync", 3},
                 {12080, "cuMemcpyBatchAsync_12080", 3},
                 {12070, "cuMemcpyAsync", 1200}};
  for (const auto& [version, slot, calls] : drivers) {
    sim::FakeDriverOptions options = sim::bench_options();
    options.driver_version = version;
    CudaBench bench(options);
    for (const MemoryKind kind : {MemoryKind::device, MemoryKind::pinned}) {
      const Batch batch(bench, 1200, kind);
      const NativeStream stream = bench.stream();
      bench.fake.clear_failures();
      EXPECT_EQ(why(bench.device().copy_batch({stream}, batch.ranges)), "");
      EXPECT_EQ(bench.fake.calls(slot), calls) << version;
      EXPECT_EQ(why(bench.device().synchronize(stream)), "");
      EXPECT_TRUE(bench.read(batch.to, batch.bytes.size()) == batch.expected());
    }
  }
}

TEST(CudaCopies, MakeManyOneByOneWhereTheDriverWouldNot) {
  CudaBench bench(sim::bench_options(), small_staging());
  const NativeStream stream = bench.stream();
  const auto one_by_one = [&](const char* what, NativeStream on, const Batch& batch) {
    bench.fake.clear_failures();
    EXPECT_EQ(why(bench.device().copy_batch({on}, batch.ranges)), "") << what;
    EXPECT_EQ(bench.fake.calls("cuMemcpyBatchAsync"), 0u) << what;
    EXPECT_EQ(why(bench.device().synchronize(on)), "");
    EXPECT_TRUE(bench.read(batch.to, batch.bytes.size()) == batch.expected()) << what;
  };
  one_by_one("the legacy stream", bench.device().default_stream(), Batch(bench, 3));
  one_by_one("a single one", stream, Batch(bench, 1));
  Batch mixed(bench, 4);
  const std::vector<std::byte> pageable = mixed.bytes;
  mixed.ranges[2].source = &pageable[16];
  one_by_one("pageable memory", stream, mixed);
  EXPECT_EQ(why(bench.device().copy_batch({stream}, {})), "");
}

TEST(CudaCopies, NeverMakeManyAtOnceIntoAGraph) {
  CudaBench bench;
  const Batch batch(bench, 4);
  const CUstream captured = bench.foreign_stream();
  const NativeStream stream =
      bench.device().borrow_stream({reinterpret_cast<std::uintptr_t>(captured)})->native;
  bench.capture(captured);
  bench.fake.clear_failures();
  // Nothing is captured by the fake: what matters is which call was tried.
  EXPECT_EQ(code(bench.device().copy_batch({stream}, batch.ranges)), "stream_misuse");
  EXPECT_EQ(bench.fake.calls("cuMemcpyBatchAsync"), 0u);
  EXPECT_EQ(bench.fake.calls("cuMemcpyAsync"), 1u);
  // Nor are copies of pageable memory staged there, or made by the host.
  std::vector<std::byte> host(100), more(100);
  EXPECT_EQ(code(bench.device().copy({stream}, batch.to, host.data(), 10)), "stream_misuse");
  EXPECT_EQ(code(bench.device().copy({stream}, more.data(), host.data(), 10)), "stream_misuse");
  EXPECT_EQ(bench.fake.calls("cuLaunchHostFunc"), 0u);
  EXPECT_EQ(bench.fake.calls("cuMemcpyAsync"), 3u);
  EXPECT_TRUE(bench.is_capturing(captured));
  bench.fake.end_capture(captured);
  bench.device().destroy_stream(stream);
  bench.end_foreign(captured);
}

TEST(CudaCopies, StopAtTheFirstOfManyThatFails) {
  for (const int version : {13000, 12070}) {
    sim::FakeDriverOptions options = sim::bench_options();
    options.driver_version = version;
    CudaBench bench(options);
    const Batch batch(bench, 600);
    const NativeStream stream = bench.stream();
    const char* const slot = version == 13000 ? "cuMemcpyBatchAsync" : "cuMemcpyAsync";
    bench.fake.clear_failures();
    bench.fake.fail_call(slot, 2, CUDA_ERROR_UNKNOWN);
    const Result<void> refused = bench.device().copy_batch({stream}, batch.ranges);
    ASSERT_EQ(code(refused), "driver");
    EXPECT_EQ(refused.failure().string("call"), slot);
    EXPECT_EQ(bench.fake.calls(slot), 2u);
    EXPECT_EQ(why(bench.device().synchronize(stream)), "");
  }
}

TEST(CudaCopies, LeaveOutThoseOfNothing) {
  CudaBench bench;
  const Device device(std::move(bench.backends[0]));
  const tern::Stream stream(device);
  auto* const memory = static_cast<std::byte*>(device.allocate(MemoryKind::device, 1000));
  const CopyRange ranges[] = {
      {memory, memory + 500, 0}, {nullptr, nullptr, 0}, {memory + 1, memory + 600, 0}};
  bench.fake.clear_failures();
  EXPECT_EQ(why(stream.try_copy_batch(ranges)), "");
  EXPECT_EQ(bench.fake.calls("cuMemcpyAsync") + bench.fake.calls("cuMemcpyBatchAsync"), 0u);
  device.release(memory);
}

// --- Peers

TEST(CudaCopies, BringBytesFromAPeer) {
  CudaBench bench;
  void* const there = bench.memory(10'000, MemoryKind::device, 1);
  void* const here = bench.memory(10'000);
  bench.write(there, numbered(10'000), 1);
  const NativeStream stream = bench.stream();
  EXPECT_EQ(why(bench.device().copy_from_peer({stream}, here, bench.device(1), there, 10'000)), "");
  EXPECT_EQ(why(bench.device().synchronize(stream)), "");
  EXPECT_EQ(bench.read(here, 10'000), numbered(10'000));
}

TEST(CudaCopies, AVectorMayBeTheSourceAndThenTheDestinationUnderAMemoryTool) {
  test::FakeMemoryTool fake_tool;
  const ScopedMemoryTool scoped(&fake_tool);
  sim::FakeDriverOptions options = sim::bench_options();
  options.sim.policy = sim::Policy::lazy;
  CudaBench bench(options, small_staging());
  const Device device(bench.open(0, small_staging()).value());
  Stream stream(device);
  const std::vector<std::byte> expected = numbered(4000);
  std::vector<std::byte> memory = expected;
  auto* const block = device.allocate(MemoryKind::device, memory.size());
  stream.copy(block, memory.data(), memory.size());
  stream.copy(memory.data(), block, memory.size());
  EXPECT_EQ(fake_tool.poisoned_bytes(), 0u);
  stream.synchronize();
  EXPECT_EQ(memory, expected);
  device.release(block);
}

}  // namespace
}  // namespace tern::cuda
