#include "backends/cuda/context.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "support/cuda_bench.hpp"

namespace tern::cuda {
namespace {

struct ContextBench {
  explicit ContextBench(const sim::FakeDriverOptions& options = sim::bench_options())
      : fake(options) {}

  CUcontext current() const {
    CUcontext now = nullptr;
    EXPECT_EQ(driver.table.cuCtxGetCurrent(&now), CUDA_SUCCESS);
    return now;
  }
  std::unique_ptr<Context> open(int ordinal = 0) const {
    return Context::try_open(driver, ordinal, "cuda:0").value();
  }

  sim::FakeDriver fake;
  const Driver driver = load_driver(fake_library());
};

TEST(CudaContext, IsCurrentInAVisitAndNotBehindIt) {
  const ContextBench bench;
  const auto first = bench.open(0), second = bench.open(1);
  EXPECT_EQ(bench.current(), nullptr);
  {
    const ContextScope scope(*first);
    ASSERT_TRUE(scope);
    EXPECT_EQ(bench.current(), first->handle());
    {
      const ContextScope inner(*second);
      EXPECT_EQ(bench.current(), second->handle());
    }
    EXPECT_EQ(bench.current(), first->handle());
  }
  // A thread without a context has none afterwards.
  EXPECT_EQ(bench.current(), nullptr);
}

TEST(CudaContext, PutsBackTheContextThatSomebodyElseMadeCurrent) {
  const ContextBench bench;
  const auto first = bench.open(0), second = bench.open(1);
  ASSERT_EQ(bench.driver.table.cuCtxSetCurrent(second->handle()), CUDA_SUCCESS);
  { const ContextScope scope(*first); }
  EXPECT_EQ(bench.current(), second->handle());
}

TEST(CudaContext, IsNotPushedWhereItIsCurrentAlready) {
  ContextBench bench;
  const auto context = bench.open();
  ASSERT_EQ(bench.driver.table.cuCtxSetCurrent(context->handle()), CUDA_SUCCESS);
  bench.fake.clear_failures();
  { const ContextScope scope(*context); }
  EXPECT_EQ(bench.fake.calls("cuCtxPushCurrent"), 0u);
  EXPECT_EQ(bench.fake.calls("cuCtxPopCurrent"), 0u);
  EXPECT_EQ(bench.current(), context->handle());
}

TEST(CudaContext, IsNotVisitedIfItCannotBeMadeCurrent) {
  ContextBench bench;
  const auto context = bench.open();
  bench.fake.fail_call("cuCtxPushCurrent", 1, CUDA_ERROR_UNKNOWN);
  {
    const ContextScope scope(*context);
    ASSERT_FALSE(scope);
    EXPECT_EQ(scope.failure().code(), ErrorCode::driver);
    EXPECT_EQ(scope.failure().string("call"), "cuCtxPushCurrent");
  }
  EXPECT_EQ(bench.fake.calls("cuCtxPopCurrent"), 0u);
  EXPECT_TRUE(ContextScope(*context));
}

TEST(CudaContext, NamesTheCallThatItCannotBeOpenedWithout) {
  ContextBench bench;
  for (const char* call : {"cuDeviceGet", "cuDevicePrimaryCtxRetain"}) {
    bench.fake.fail_call(call, 1, CUDA_ERROR_DEVICE_UNAVAILABLE);
    const auto refused = Context::try_open(bench.driver, 0, "cuda:0");
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.failure().string("call"), call);
    EXPECT_EQ(refused.failure().number("code"), 46u);
  }
}

TEST(CudaContext, TakesAnUnknownAttributeForZero) {
  sim::FakeDriverOptions options = sim::bench_options();
  options.attributes[CU_DEVICE_ATTRIBUTE_WARP_SIZE] = std::nullopt;
  const ContextBench bench(options);
  EXPECT_EQ(bench.open()->attribute(CU_DEVICE_ATTRIBUTE_WARP_SIZE), 0);
  EXPECT_GT(bench.open()->attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK), 0);
}

TEST(CudaContext, KeepsTheFirstErrorThatPoisonsIt) {
  ContextBench bench;
  const auto context = bench.open();
  EXPECT_TRUE(context->check(CUDA_SUCCESS, "cuMemAlloc"));
  EXPECT_EQ(code(context->check(CUDA_ERROR_UNKNOWN, "cuMemAlloc")), "driver");
  EXPECT_TRUE(context->can_call());
  EXPECT_EQ(code(context->check(CUDA_ERROR_ILLEGAL_ADDRESS, "cuEventQuery")), "device_lost");
  EXPECT_TRUE(context->is_lost());
  EXPECT_FALSE(context->can_call());
  const Result<void> later = context->check(CUDA_ERROR_LAUNCH_FAILED, "cuMemFree");
  EXPECT_EQ(later.failure().string("call"), "cuEventQuery");
  const std::uint64_t calls = bench.fake.total_calls();
  const ContextScope scope(*context);
  ASSERT_FALSE(scope);
  EXPECT_EQ(scope.failure().string("call"), "cuEventQuery");
  EXPECT_EQ(scope.failure().number("code"), 700u);
  EXPECT_EQ(bench.fake.total_calls(), calls);
}

TEST(CudaContext, IsLostIfSomebodyResetsTheDevice) {
  ContextBench bench;
  const auto context = bench.open();
  bench.fake.reset(0);
  CUcontext now = nullptr;
  {
    const ContextScope scope(*context);
    if (scope) {
      std::size_t free = 0, total = 0;
      EXPECT_EQ(
          code(context->check(bench.driver.table.cuMemGetInfo(&free, &total), "cuMemGetInfo")),
          "device_lost");
    }
  }
  EXPECT_TRUE(context->is_lost());
  EXPECT_EQ(bench.driver.table.cuCtxGetCurrent(&now), CUDA_SUCCESS);
  EXPECT_EQ(now, nullptr);
}

TEST(CudaContext, RefusesVisitsWhileTheProcessEnds) {
  ContextBench bench;
  const auto context = bench.open();
  const EndingProcess ending;
  const std::uint64_t calls = bench.fake.total_calls();
  const ContextScope scope(*context);
  ASSERT_FALSE(scope);
  EXPECT_EQ(scope.failure().code(), ErrorCode::after_shutdown);
  EXPECT_FALSE(context->can_call());
  EXPECT_EQ(bench.fake.total_calls(), calls);
}

TEST(CudaContext, SaysHowMuchMemoryIsLeftWhenThereIsTooLittle) {
  ContextBench bench;
  const auto context = bench.open();
  const ContextScope scope(*context);
  const Result<void> refused = context->check(CUDA_ERROR_OUT_OF_MEMORY, "cuMemAlloc", 12345);
  EXPECT_EQ(refused.failure().number("requested"), 12345u);
  EXPECT_EQ(refused.failure().number("total"), 64 * mib);
  EXPECT_EQ(refused.failure().number("free"), 64 * mib);
}

TEST(CudaContext, LeavesTheCaptureModeOfTheThreadAsItWas) {
  ContextBench bench;
  const DriverTable& cu = bench.driver.table;
  const auto context = bench.open();
  const auto mode = [&] {
    CUstreamCaptureMode now = CU_STREAM_CAPTURE_MODE_RELAXED;
    EXPECT_EQ(cu.cuThreadExchangeStreamCaptureMode(&now), CUDA_SUCCESS);
    CUstreamCaptureMode found = now;
    EXPECT_EQ(cu.cuThreadExchangeStreamCaptureMode(&now), CUDA_SUCCESS);
    return found;
  };
  CUstreamCaptureMode own = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
  ASSERT_EQ(cu.cuThreadExchangeStreamCaptureMode(&own), CUDA_SUCCESS);
  {
    const ContextScope scope(*context);
    EXPECT_EQ(mode(), CU_STREAM_CAPTURE_MODE_RELAXED);
    const ContextScope inner(*context);
    EXPECT_EQ(mode(), CU_STREAM_CAPTURE_MODE_RELAXED);
  }
  EXPECT_EQ(mode(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  // Where it could not be changed, nothing is put back.
  bench.fake.fail_call("cuThreadExchangeStreamCaptureMode", 1, CUDA_ERROR_UNKNOWN);
  { const ContextScope scope(*context); }
  EXPECT_EQ(mode(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

}  // namespace
}  // namespace tern::cuda
