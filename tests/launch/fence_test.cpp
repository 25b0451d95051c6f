#include "tern/launch/fence.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/cuda_bench.hpp"
#include "support/fake_backend.hpp"
#include "support/thorough.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/buffer/foreign.hpp"
#include "tern/device/stream.hpp"
#include "tern/launch/launch_recorder.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/guard_resource.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern {
namespace {

template <class T>
std::string code(const Result<T>& result) {
  return result ? "success" : std::string(name(result.failure().code()));
}

// --- On a device that checks the order

class FenceTest : public testing::Test {
 protected:
  void TearDown() override {
    device.synchronize();
    for (const Finding& finding : sim::findings(device)) ADD_FAILURE() << finding.text();
  }

  Device device = sim::open({.policy = sim::Policy::lazy});
  Stream ours{device, {.name = "ours"}}, theirs{device, {.name = "theirs"}};
  std::byte* memory = static_cast<std::byte*>(device.allocate(MemoryKind::device, 64));
};

TEST_F(FenceTest, OrdersForeignWorkAfterOursAndOursAfterForeignWork) {
  ours.fill(memory, 64, std::byte{1});
  fence_to(theirs, ours);
  theirs.fill(memory, 64, std::byte{2});  // whatever their library does
  fence_from(theirs, ours);
  std::byte seen{};
  ours.copy(&seen, memory, 1);
  ours.synchronize();
  EXPECT_EQ(seen, std::byte{2});
  device.release(memory);
}

TEST_F(FenceTest, DoesNothingOnOneStream) {
  ours.fill(memory, 64, std::byte{1});
  sim::set_faults(device, "");
  fence_to(ours, ours);
  fence_from(ours, ours);
  EXPECT_EQ(sim::calls(device, "record") + sim::calls(device, "wait"), 0u);
}

TEST_F(FenceTest, RefusesStreamsThatTakeNoWorkAndOtherBackends) {
  const Device host = open_device("host");
  const Stream elsewhere(host);
  StreamRef gone;
  {
    const Stream ended(device);
    gone = ended;
  }
  EXPECT_EQ(code(try_fence_to(gone, ours)), "stream_misuse");
  EXPECT_EQ(code(try_fence_from(gone, ours)), "stream_misuse");
  EXPECT_EQ(code(try_fence_from(theirs, StreamRef())), "stream_misuse");
  const Result<void> refused = try_fence_from(elsewhere, ours, {"train.cpp", "step", 12});
  ASSERT_EQ(code(refused), "device_mismatch");
  EXPECT_EQ(refused.failure().site().line, 12u);
  EXPECT_EQ(code(try_fence_to(NativeStream{8}, StreamRef())), "stream_misuse");
  EXPECT_EQ(code(try_fence_to(NativeStream{8}, ours)), "unsupported") << "none has a handle here";
}

TEST_F(FenceTest, LeavesNothingWhereADriverCallFails) {
  ours.fill(memory, 64, std::byte{1});
  for (const char* fault : {"record#1=fail", "wait#1=fail"}) {
    sim::set_faults(device, fault);
    EXPECT_FALSE(try_fence_to(theirs, ours)) << fault;
    sim::set_faults(device, "");
    EXPECT_TRUE(try_fence_to(theirs, ours)) << fault;
    ours.fill(memory, 64, std::byte{1});
  }
}

TEST(FenceLoop, AnyNumberOfFencesMakesAFewEvents) {
  constexpr int fences = test::is_sanitized ? 10'000 : 1'000'000;
  const test::FakeDevice fake;
  const Stream ours(fake.device), theirs(fake.device);
  const std::size_t before = fake.ledger->count(test::Call::create_event);
  for (int i = 0; i < fences; ++i) {
    fence_to(theirs, ours);
    fence_from(theirs, ours);
    // Whoever calls a library so often also waits for what it did.
    ours.synchronize();
  }
  EXPECT_LE(fake.ledger->count(test::Call::create_event) - before, 8u);
}

// --- By the driver's own handle, and beside captures

class ForeignStreamTest : public testing::Test {
 protected:
  static NativeStream native(cuda::CUstream stream) {
    return {reinterpret_cast<std::uintptr_t>(stream)};
  }
  /// Whatever a library does on its stream with memory of ours.
  void fill(cuda::CUstream on, void* at, unsigned char value) {
    const cuda::CudaBench::Elsewhere elsewhere(bench);
    EXPECT_EQ(bench.cu.cuMemsetD8Async(reinterpret_cast<std::uintptr_t>(at), value, 64, on),
              cuda::CUDA_SUCCESS);
  }

  cuda::CudaBench bench;
  Device device{bench.open(0).value()};
  Stream ours{device};
  cuda::CUstream theirs = bench.foreign_stream();
};

TEST_F(ForeignStreamTest, IsPutInOrderByItsHandle) {
  auto* const memory = static_cast<std::byte*>(device.allocate(MemoryKind::device, 64));
  ours.fill(memory, 64, std::byte{1});
  fence_to(native(theirs), ours);
  fill(theirs, memory, 2);
  fence_from(native(theirs), ours);
  std::byte* const seen = static_cast<std::byte*>(device.allocate(MemoryKind::pinned, 64));
  ours.copy(seen, memory, 64);
  ours.synchronize();
  EXPECT_EQ(seen[63], std::byte{2});
  device.release(seen);
  device.release(memory);
}

TEST_F(ForeignStreamTest, MakesAFewEventsHoweverOftenItIsFenced) {
  auto* const memory = static_cast<std::byte*>(device.allocate(MemoryKind::device, 64));
  bench.fake.clear_failures();
  const std::uint64_t before = bench.fake.calls("cuEventCreate");
  for (int i = 0; i < 1000; ++i) {
    ours.fill(memory, 64, std::byte{1});
    fence_to(native(theirs), ours);
    fill(theirs, memory, 2);
    fence_from(native(theirs), ours);
    ours.synchronize();
    const cuda::CudaBench::Elsewhere elsewhere(bench);
    EXPECT_EQ(bench.cu.cuStreamSynchronize(theirs), cuda::CUDA_SUCCESS);
  }
  EXPECT_LE(bench.fake.calls("cuEventCreate") - before, 12u);
  device.release(memory);
}

TEST_F(ForeignStreamTest, SaysWhetherItIsBeingCaptured) {
  const Stream borrowed = Stream::borrow(device, native(theirs));
  EXPECT_FALSE(borrowed.is_capturing());
  bench.capture(theirs);
  EXPECT_TRUE(borrowed.is_capturing());
  EXPECT_FALSE(ours.is_capturing());
  bench.fake.end_capture(theirs);
  EXPECT_FALSE(borrowed.is_capturing());
  EXPECT_FALSE(open_device("host").default_stream().is_capturing());
  EXPECT_EQ(code(StreamRef().try_is_capturing()), "stream_misuse");
  bench.fake.fail_call("cuStreamIsCapturing", 1, cuda::CUDA_ERROR_INVALID_HANDLE);
  EXPECT_FALSE(borrowed.try_is_capturing());
}

TEST_F(ForeignStreamTest, IsRefusedWhileItIsCapturedAndTheCaptureStaysGood) {
  const Buffer used = Buffer::allocate(device, Shape{64}, DType::byte, {.stream = ours});
  const Stream borrowed = Stream::borrow(device, native(theirs));
  LaunchRecorder recorder(borrowed);
  recorder.use(used, Access::discard);
  bench.capture(theirs);
  const std::uint64_t records = bench.fake.calls("cuEventRecord");
  const std::uint64_t waits = bench.fake.calls("cuStreamWaitEvent");
  const Result<void> to = try_fence_to(native(theirs), ours, {"train.cpp", "step", 12});
  ASSERT_EQ(code(to), "stream_misuse");
  EXPECT_NE(to.failure().text().find("being captured into a graph"), std::string::npos);
  EXPECT_EQ(to.failure().site().line, 12u);
  EXPECT_EQ(code(try_fence_from(native(theirs), ours)), "stream_misuse");
  EXPECT_EQ(code(try_fence_from(borrowed, ours)), "stream_misuse");
  EXPECT_EQ(code(try_fence_to(borrowed, ours)), "stream_misuse");
  EXPECT_EQ(code(recorder.try_preflight()), "stream_misuse");
  EXPECT_EQ(recorder.pointer(0), nullptr) << "no address without a scope";
  EXPECT_EQ(bench.fake.calls("cuEventRecord"), records);
  EXPECT_EQ(bench.fake.calls("cuStreamWaitEvent"), waits);
  EXPECT_TRUE(bench.is_capturing(theirs));
  bench.fake.end_capture(theirs);
  EXPECT_EQ(code(recorder.try_preflight()), "success") << "when the capture is over";
  recorder.commit();
}

TEST_F(ForeignStreamTest, IsNotDrawnIntoACaptureByMarksAndUses) {
  auto* const memory = device.allocate(MemoryKind::device, 64);
  auto* const other = static_cast<std::byte*>(device.allocate(MemoryKind::device, 64));
  const Stream borrowed = Stream::borrow(device, native(theirs));
  fill(theirs, memory, 1);
  bench.capture(theirs);
  const std::uint64_t records = bench.fake.calls("cuEventRecord");
  const std::uint64_t waits = bench.fake.calls("cuStreamWaitEvent");
  // Lent in the order of a stream that is captured: what it has now is not known.
  const Buffer lent = borrow(device, memory, 64, {.stream = borrowed});
  EXPECT_EQ(code(lent.try_use(ours, Access::read)), "stream_misuse");
  const Mark mark = borrowed.mark();
  EXPECT_EQ(code(ours.try_wait(mark)), "stream_misuse");
  EXPECT_EQ(code(Device::try_wait(mark)), "stream_misuse");
  ours.fill(other, 64, std::byte{3});
  EXPECT_EQ(code(borrowed.try_wait(ours.mark())), "stream_misuse");
  EXPECT_EQ(bench.fake.calls("cuStreamWaitEvent"), waits) << "the driver has not heard of it";
  EXPECT_TRUE(bench.is_capturing(theirs));
  bench.fake.end_capture(theirs);
  EXPECT_LE(bench.fake.calls("cuEventRecord"), records + 1) << "of ours only";
  EXPECT_EQ(code(ours.try_wait(mark)), "success");
  device.synchronize();
}

TEST_F(ForeignStreamTest, MayEndInTheMiddleOfACapture) {
  {
    const Stream borrowed = Stream::borrow(device, native(theirs));
    static_cast<void>(borrowed.mark());
    bench.capture(theirs);
  }
  EXPECT_TRUE(bench.is_capturing(theirs));
  bench.fake.end_capture(theirs);
}

// --- The end of what it has used

/// A buffer that was used on a stream of others, which they capture into a graph as it ends.
void end_while_captured(const std::function<ResourceHandle(const Device&)>& make) {
  cuda::CudaBench bench;
  const cuda::CUstream theirs = bench.foreign_stream();
  const Device device(bench.open(0).value());
  {
    const ResourceHandle resource = make(device);
    const Stream stream =
        Stream::borrow(device, NativeStream{reinterpret_cast<std::uintptr_t>(theirs)});
    for (const StreamRef first : {StreamRef(stream), StreamRef()}) {
      Buffer buffer(device, Shape{256}, DType::u32, {.resource = resource, .stream = first});
      buffer.ensure_allocated();
      buffer.fill(std::uint32_t{1}, stream);
      bench.capture(theirs, cuda::CU_STREAM_CAPTURE_MODE_RELAXED);
      buffer = Buffer();
      EXPECT_EQ(reclaim_deferred().count, 1u);
      EXPECT_TRUE(bench.is_capturing(theirs));
      bench.fake.end_capture(theirs);
      EXPECT_EQ(reclaim_deferred().count, 0u);
      EXPECT_EQ(resource->statistics().live_bytes, 0u);
      EXPECT_EQ(resource->statistics().failed_frees, 0u);
    }
  }
  bench.end_foreign(theirs);
}

TEST(CapturedStream, OrdersNoFreeOfADriverThatWaitsUntilItIsNot) {
  end_while_captured([](const Device& device) { return std::make_shared<DirectResource>(device); });
}

TEST(CapturedStream, OrdersNoFreeOfADriverUntilItIsNot) {
  end_while_captured([](const Device& device) { return std::make_shared<AsyncResource>(device); });
}

TEST(CapturedStream, OrdersNoFreeOfAGuardUntilItIsNot) {
  end_while_captured([](const Device& device) {
    return std::make_shared<GuardResource>(std::make_shared<PoolResource>(device));
  });
}

}  // namespace
}  // namespace tern
