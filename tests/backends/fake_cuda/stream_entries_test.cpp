#include <gtest/gtest.h>

#include "support/fake_driver_bench.hpp"
#include "support/thread.hpp"

namespace tern::sim {
namespace {

using namespace cuda;

TEST(FakeCudaStreams, GivesADestroyedStreamsHandleToTheNextOneWithAnotherId) {
  FakeDriverBench bench;
  const CUstream first = bench.stream();
  unsigned long long first_id = 0, second_id = 0;
  ASSERT_EQ(bench.cu.cuStreamGetId(first, &first_id), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuStreamDestroy(first), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuStreamQuery(first), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(bench.cu.cuStreamDestroy(first), CUDA_ERROR_INVALID_HANDLE);
  const CUstream second = bench.stream();
  EXPECT_EQ(first, second);
  ASSERT_EQ(bench.cu.cuStreamGetId(second, &second_id), CUDA_SUCCESS);
  EXPECT_NE(first_id, second_id);
}

TEST(FakeCudaStreams, LosesACaptureToAQuestionForTheIdOrAWaitForTheContext) {
  FakeDriverBench bench;
  const CUstream stream = bench.stream(), other = bench.stream();
  const auto status = [&] {
    CUstreamCaptureStatus now = CU_STREAM_CAPTURE_STATUS_NONE;
    EXPECT_EQ(bench.cu.cuStreamIsCapturing(stream, &now), CUDA_SUCCESS);
    return now;
  };
  unsigned long long id = 0;
  for (const auto mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
    bench.driver.begin_capture(stream, mode);
    EXPECT_EQ(bench.cu.cuStreamGetId(other, &id), CUDA_SUCCESS);
    EXPECT_EQ(status(), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    EXPECT_EQ(bench.cu.cuStreamGetId(stream, &id), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(status(), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    bench.driver.end_capture(stream);
    bench.driver.begin_capture(stream, mode);
    EXPECT_EQ(bench.cu.cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(status(), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    bench.driver.end_capture(stream);
  }
}

TEST(FakeCudaStreams, WaitsForAllWorkOfTheContextAlsoOfDestroyedStreams) {
  FakeDriverBench bench;
  const CUstream stream = bench.stream();
  bool has_run = false;
  ASSERT_EQ(bench.cu.cuLaunchHostFunc(
                stream, [](void* flag) { *static_cast<bool*>(flag) = true; }, &has_run),
            CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuStreamDestroy(stream), CUDA_SUCCESS);
  EXPECT_FALSE(has_run) << "the schedule is lazy";
  EXPECT_EQ(bench.cu.cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_TRUE(has_run);
}

TEST(FakeCudaStreams, TellsWhatAHandleIsWithoutACurrentContext) {
  FakeDriverBench bench;
  const CUstream stream = bench.stream();
  test::Thread([&] {
    unsigned long long id = 0;
    CUcontext context = nullptr;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    EXPECT_EQ(bench.cu.cuStreamGetId(stream, &id), CUDA_SUCCESS);
    EXPECT_EQ(bench.cu.cuStreamGetCtx(stream, &context), CUDA_SUCCESS);
    EXPECT_EQ(bench.cu.cuStreamIsCapturing(stream, &status), CUDA_SUCCESS);
    EXPECT_EQ(context, bench.contexts[0]);
    for (const std::uintptr_t special : {std::uintptr_t{0}, stream_legacy, stream_per_thread}) {
      const auto handle = reinterpret_cast<CUstream>(special);
      EXPECT_EQ(bench.cu.cuStreamGetId(handle, &id), CUDA_ERROR_INVALID_CONTEXT);
      EXPECT_EQ(bench.cu.cuStreamIsCapturing(handle, &status), CUDA_ERROR_INVALID_CONTEXT);
    }
  }).join();
}

TEST(FakeCudaStreams, GivesADestroyedEventsHandleToTheNextOneWithoutItsRecord) {
  FakeDriverBench bench;
  const CUstream stream = bench.stream();
  const CUevent first = bench.event();
  const std::uint64_t hold = bench.driver.hold(stream);
  ASSERT_EQ(bench.cu.cuEventRecord(first, stream), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuEventQuery(first), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(bench.cu.cuEventDestroy(first), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuEventQuery(first), CUDA_ERROR_INVALID_HANDLE);
  const CUevent second = bench.event();
  EXPECT_EQ(first, second);
  EXPECT_EQ(bench.cu.cuEventQuery(second), CUDA_SUCCESS);
  bench.driver.resume(hold);
}

TEST(FakeCudaStreams, RefusesHandlesThatAreNone) {
  FakeDriverBench bench;
  const CUstream stream = bench.stream();
  const CUevent event = bench.event();
  const auto as_stream = reinterpret_cast<CUstream>(event);
  const auto as_event = reinterpret_cast<CUevent>(stream);
  CUdeviceptr memory = bench.memory();
  EXPECT_EQ(bench.cu.cuStreamDestroy(nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(bench.cu.cuStreamSynchronize(as_stream), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(bench.cu.cuStreamWaitEvent(stream, as_event, 0), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(bench.cu.cuStreamWaitEvent(stream, event, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuEventRecord(as_event, stream), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(bench.cu.cuEventRecord(event, as_stream), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(bench.cu.cuEventSynchronize(nullptr), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(bench.cu.cuMemsetD8Async(memory, 0, 8, as_stream), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(bench.cu.cuMemcpyAsync(memory, memory + 8, 8, as_stream), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(bench.cu.cuLaunchHostFunc(stream, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuStreamCreateWithPriority(nullptr, 0, 0), CUDA_ERROR_INVALID_VALUE);
  CUstream made = nullptr;
  EXPECT_EQ(bench.cu.cuStreamCreateWithPriority(&made, 2, 0), CUDA_ERROR_INVALID_VALUE);
  CUevent other = nullptr;
  EXPECT_EQ(bench.cu.cuEventCreate(&other, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuEventCreate(&other, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuEventCreate(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST(FakeCudaStreams, DescribesStreams) {
  FakeDriverBench bench;
  CUstream stream = nullptr;
  int least = 7, greatest = 7;
  unsigned flags = 7;
  ASSERT_EQ(bench.cu.cuCtxGetStreamPriorityRange(&least, &greatest), CUDA_SUCCESS);
  EXPECT_GT(least, greatest);
  ASSERT_EQ(bench.cu.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -99),
            CUDA_SUCCESS);
  EXPECT_EQ(bench.driver.priority(stream), greatest);
  EXPECT_EQ(bench.cu.cuStreamGetFlags(stream, &flags), CUDA_SUCCESS);
  EXPECT_EQ(flags, CU_STREAM_NON_BLOCKING);
  ASSERT_EQ(bench.cu.cuCtxSetCurrent(bench.contexts[1]), CUDA_SUCCESS);
  CUcontext context = nullptr;
  EXPECT_EQ(bench.cu.cuStreamGetCtx(stream, &context), CUDA_SUCCESS);
  EXPECT_EQ(context, bench.contexts[0]);
}

TEST(FakeCudaStreams, KnowsTheStreamsThatAreNoHandles) {
  FakeDriverBench bench;
  const auto legacy = reinterpret_cast<CUstream>(stream_legacy);
  const auto own = reinterpret_cast<CUstream>(stream_per_thread);
  const auto id_of = [&](CUstream stream) {
    unsigned long long id = 0;
    EXPECT_EQ(bench.cu.cuStreamGetId(stream, &id), CUDA_SUCCESS);
    return id;
  };
  EXPECT_EQ(id_of(nullptr), id_of(legacy));
  EXPECT_EQ(id_of(own), id_of(own));
  EXPECT_NE(id_of(nullptr), id_of(own));
  unsigned long long other = 0;
  test::Thread([&] {
    ASSERT_EQ(bench.cu.cuCtxSetCurrent(bench.contexts[0]), CUDA_SUCCESS);
    other = id_of(own);
  }).join();
  EXPECT_NE(other, id_of(own));
  // The default stream of a device and its blocking streams take turns.
  const CUdeviceptr memory = bench.memory();
  const CUstream blocking = bench.stream(CU_STREAM_DEFAULT);
  EXPECT_EQ(bench.cu.cuMemsetD8Async(memory, 1, 8, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuMemsetD8Async(memory, 1, 8, blocking), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuMemsetD8Async(memory, 1, 8, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuMemsetD8Async(memory, 1, 8, bench.stream()), CUDA_ERROR_ASSERT);
}

TEST(FakeCudaStreams, SaysNotReadyUntilTheStreamIsDone) {
  FakeDriverBench bench;
  const CUstream stream = bench.stream();
  const CUevent start = bench.event(CU_EVENT_DEFAULT), end = bench.event(CU_EVENT_DEFAULT);
  float milliseconds = -1;
  EXPECT_EQ(bench.cu.cuEventElapsedTime(&milliseconds, start, end), CUDA_ERROR_INVALID_HANDLE);
  ASSERT_EQ(bench.cu.cuEventRecord(start, stream), CUDA_SUCCESS);
  const std::uint64_t hold = bench.driver.hold(stream);
  const CUdeviceptr memory = bench.memory(1 << 20);
  ASSERT_EQ(bench.cu.cuMemsetD8Async(memory, 1, 1 << 20, stream), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuEventRecord(end, stream), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(bench.cu.cuEventElapsedTime(&milliseconds, start, end), CUDA_ERROR_NOT_READY);
  bench.driver.resume(hold);
  ASSERT_EQ(bench.cu.cuEventSynchronize(end), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuStreamQuery(stream), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuEventElapsedTime(&milliseconds, start, end), CUDA_SUCCESS);
  EXPECT_GT(milliseconds, 0.0f);
  EXPECT_LT(milliseconds, 1.0f);
  const CUevent untimed = bench.event();
  ASSERT_EQ(bench.cu.cuEventRecord(untimed, stream), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuEventElapsedTime(&milliseconds, start, untimed), CUDA_ERROR_INVALID_HANDLE);
}

TEST(FakeCudaStreams, KeepsEventsToTheirDevices) {
  FakeDriverBench bench;
  const CUevent here = bench.event(CU_EVENT_DEFAULT);
  const CUstream stream = bench.stream();
  ASSERT_EQ(bench.cu.cuCtxSetCurrent(bench.contexts[1]), CUDA_SUCCESS);
  const CUstream abroad = bench.stream();
  EXPECT_EQ(bench.cu.cuEventRecord(here, abroad), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(bench.cu.cuEventRecord(here, stream), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuStreamWaitEvent(abroad, here, 0), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuEventSynchronize(here), CUDA_SUCCESS);
}

struct Inside {
  const DriverTable* cu = nullptr;
  CUresult result = CUDA_SUCCESS;
  CUresult version = CUDA_ERROR_UNKNOWN;
};

TEST(FakeCudaStreams, AllowsNoCallInAHostFunction) {
  FakeDriverBench bench;
  const CUstream stream = bench.stream();
  Inside inside{&bench.cu};
  ASSERT_EQ(bench.cu.cuLaunchHostFunc(
                stream,
                [](void* context) {
                  auto& in = *static_cast<Inside*>(context);
                  CUcontext current = nullptr;
                  int version = 0;
                  in.result = in.cu->cuCtxGetCurrent(&current);
                  in.version = in.cu->cuDriverGetVersion(&version);
                },
                &inside),
            CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(inside.result, CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(inside.version, CUDA_SUCCESS);
  EXPECT_EQ(bench.found(), "TERN-S404");
}

TEST(FakeCudaStreams, RefusesWorkOnACapturingStream) {
  FakeDriverBench bench;
  const CUstream stream = bench.stream(), other = bench.stream();
  const CUevent event = bench.event();
  const CUdeviceptr memory = bench.memory();
  const CUmemoryPool pool = bench.pool();
  bench.driver.begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  EXPECT_EQ(bench.cu.cuStreamIsCapturing(stream, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_EQ(bench.cu.cuStreamIsCapturing(other, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(bench.cu.cuMemsetD8Async(memory, 0, 8, stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUdeviceptr pooled = 0;
  EXPECT_EQ(bench.cu.cuMemAllocFromPoolAsync(&pooled, 8, pool, stream),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(bench.cu.cuEventRecord(event, stream), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
  EXPECT_EQ(bench.cu.cuEventSynchronize(event), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuStreamWaitEvent(other, event, 0), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(bench.cu.cuStreamQuery(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(bench.cu.cuStreamIsCapturing(stream, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  EXPECT_EQ(bench.cu.cuMemsetD8Async(memory, 0, 8, stream), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  bench.driver.end_capture(stream);
  EXPECT_EQ(bench.cu.cuMemsetD8Async(memory, 0, 8, stream), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuEventRecord(event, stream), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuEventSynchronize(event), CUDA_SUCCESS);
}

TEST(FakeCudaStreams, BreaksAGlobalCaptureOfAnotherThreadUnlessRelaxed) {
  FakeDriverBench bench;
  const CUstream stream = bench.stream();
  test::Thread([&] { bench.driver.begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL); }).join();
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  ASSERT_EQ(bench.cu.cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
  const CUdeviceptr memory = bench.memory();
  EXPECT_EQ(bench.cu.cuMemFree(memory), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
  EXPECT_EQ(bench.cu.cuStreamIsCapturing(stream, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  CUdeviceptr none = 0;
  EXPECT_EQ(bench.cu.cuMemAlloc(&none, 64), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(bench.cu.cuStreamIsCapturing(stream, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  mode = static_cast<CUstreamCaptureMode>(9);
  EXPECT_EQ(bench.cu.cuThreadExchangeStreamCaptureMode(&mode), CUDA_ERROR_INVALID_VALUE);
}

TEST(FakeCudaStreams, LeavesAnotherThreadsLocalCaptureAlone) {
  FakeDriverBench bench;
  const CUstream stream = bench.stream();
  test::Thread([&] {
    bench.driver.begin_capture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  }).join();
  EXPECT_EQ(bench.cu.cuMemFree(bench.memory()), CUDA_SUCCESS);
  bench.driver.end_capture(stream);
  bench.driver.begin_capture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  CUdeviceptr none = 0;
  EXPECT_EQ(bench.cu.cuMemAlloc(&none, 64), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

TEST(FakeCudaStreams, KeepsTheDefaultStreamOutOfABlockingCapture) {
  FakeDriverBench bench;
  const CUstream stream = bench.stream(CU_STREAM_DEFAULT);
  const CUdeviceptr memory = bench.memory();
  bench.driver.begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  EXPECT_EQ(bench.cu.cuMemsetD8Async(memory, 0, 8, nullptr), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(bench.cu.cuStreamIsCapturing(nullptr, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(bench.cu.cuStreamSynchronize(nullptr), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
}

}  // namespace
}  // namespace tern::sim
