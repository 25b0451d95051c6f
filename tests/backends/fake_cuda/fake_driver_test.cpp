#include "backends/fake_cuda/fake_driver.hpp"

#include <gtest/gtest.h>

#include <string>

#include "support/fake_driver_bench.hpp"
#include "support/thread.hpp"
#include "tern/core/error.hpp"

namespace tern::sim {
namespace {

using namespace cuda;

TEST(FakeDriver, IsTheOnlyOneAndLeavesATableThatSaysItIsOver) {
  DriverTable table;
  {
    const FakeDriver driver;
    table = driver.table();
    EXPECT_EQ(table.cuInit(0), CUDA_SUCCESS);
    EXPECT_THROW(FakeDriver{}, CapacityReached);
    EXPECT_EQ(table.cuInit(0), CUDA_SUCCESS);
  }
  EXPECT_EQ(table.cuInit(0), CUDA_ERROR_DEINITIALIZED);
  void* function = nullptr;
  EXPECT_EQ(FakeDriver::get_proc_address()("cuInit", &function, 2000, 1, nullptr),
            CUDA_ERROR_DEINITIALIZED);
  const FakeDriver next;
  int count = 0;
  EXPECT_EQ(table.cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
}

TEST(FakeDriver, ForgetsWhatAnEarlierOneKeptForAThread) {
  { FakeDriverBench bench; }
  const FakeDriver driver;
  ASSERT_EQ(driver.table().cuInit(0), CUDA_SUCCESS);
  CUcontext context = reinterpret_cast<CUcontext>(1);
  EXPECT_EQ(driver.table().cuCtxGetCurrent(&context), CUDA_SUCCESS);
  EXPECT_EQ(context, nullptr);
}

TEST(FakeDriver, HasNoDeviceIfItIsToldSo) {
  const FakeDriver driver({.device_count = 0});
  EXPECT_EQ(driver.table().cuInit(0), CUDA_ERROR_NO_DEVICE);
}

TEST(FakeDriver, HidesWhatIsNewerThanItself) {
  for (const int version : {11030, 11060, 12000, 12020, 12080, 13000}) {
    const FakeDriver driver({.driver_version = version});
    const DriverTable& table = driver.table();
#define TERN_DRIVER_ENTRY(entry, name, since, need, parameters) \
  EXPECT_EQ(table.entry != nullptr, since <= version) << #entry << " with " << version;
    TERN_FOR_EACH_DRIVER_ENTRY(TERN_DRIVER_ENTRY)
#undef TERN_DRIVER_ENTRY
    int said = 0;
    EXPECT_EQ(table.cuDriverGetVersion(&said), CUDA_SUCCESS);
    EXPECT_EQ(said, version);
  }
}

TEST(FakeDriver, HidesSingleSlots) {
  const FakeDriver driver({.hidden = {"cuStreamGetId", "cuMemAdvise"}});
  EXPECT_EQ(driver.table().cuStreamGetId, nullptr);
  EXPECT_EQ(driver.table().cuMemAdvise, nullptr);
  EXPECT_NE(driver.table().cuMemAdvise_8000, nullptr);
  void* function = &function;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  EXPECT_EQ(FakeDriver::get_proc_address()("cuStreamGetId", &function, 12000, 1, &status),
            CUDA_SUCCESS);
  EXPECT_EQ(function, nullptr);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
}

TEST(FakeDriver, RefusesNamesItDoesNotKnow) {
  EXPECT_THROW(FakeDriver({.hidden = {"cuNothing"}}), InvalidArgument);
  EXPECT_THROW(FakeDriver({.sim = {.faults = "nonsense"}}), InvalidArgument);
  FakeDriver driver;
  EXPECT_THROW(driver.fail_call("cuMemAlloc_v2", 1, CUDA_ERROR_UNKNOWN), InvalidArgument);
  EXPECT_THROW(driver.fail_calls_from("", 1, CUDA_ERROR_UNKNOWN), InvalidArgument);
  EXPECT_THROW(static_cast<void>(driver.calls("cuNothing")), InvalidArgument);
  EXPECT_THROW(driver.begin_capture(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL), InvalidArgument);
  EXPECT_THROW(static_cast<void>(driver.hold(nullptr)), InvalidArgument);
  EXPECT_THROW(driver.reset(7), InvalidArgument);
}

TEST(FakeDriver, AnswersALoaderAsTheDriverDoes) {
  const FakeDriver driver({.driver_version = 12080});
  const auto ask = [](const char* name, int version, void** function) {
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    *function = &status;
    const CUresult result = FakeDriver::get_proc_address()(name, function, version, 1, &status);
    return std::pair(result, status);
  };
  void* old_shape = nullptr;
  void* new_shape = nullptr;
  void* none = nullptr;
  using Answer = std::pair<CUresult, CUdriverProcAddressQueryResult>;
  EXPECT_EQ(ask("cuMemAdvise", 8000, &old_shape), Answer(CUDA_SUCCESS, {}));
  EXPECT_EQ(ask("cuMemAdvise", 12020, &new_shape), Answer(CUDA_SUCCESS, {}));
  EXPECT_NE(old_shape, new_shape);
  EXPECT_EQ(old_shape, reinterpret_cast<void*>(driver.table().cuMemAdvise_8000));
  EXPECT_EQ(new_shape, reinterpret_cast<void*>(driver.table().cuMemAdvise));
  EXPECT_EQ(ask("cuMemAdvise", 12010, &new_shape), Answer(CUDA_SUCCESS, {}));
  EXPECT_EQ(new_shape, old_shape);
  EXPECT_EQ(ask("cuMemcpyBatchAsync", 12020, &none),
            Answer(CUDA_SUCCESS, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT));
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(ask("cuMemPrefetchAsync_v2", 12080, &none),
            Answer(CUDA_SUCCESS, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND));
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(ask("cuInit", 13000, &none).first, CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(none, nullptr);
  // At this version the name has a shape that is not ours.
  EXPECT_EQ(ask("cuStreamGetCtx", 12050, &none).first, CUDA_SUCCESS);
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(ask("cuStreamGetCtx", 12040, &none).first, CUDA_SUCCESS);
  EXPECT_NE(none, nullptr);
}

TEST(FakeDriver, FailsTheCallItIsToldTo) {
  FakeDriverBench bench;
  int count = 0;
  ASSERT_EQ(bench.cu.cuDeviceGetCount(&count), CUDA_SUCCESS);
  bench.driver.fail_call("cuDeviceGetCount", 2, CUDA_ERROR_SYSTEM_NOT_READY);
  EXPECT_EQ(bench.cu.cuDeviceGetCount(&count), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuDeviceGetCount(&count), CUDA_ERROR_SYSTEM_NOT_READY);
  EXPECT_EQ(bench.cu.cuDeviceGetCount(&count), CUDA_SUCCESS);
  EXPECT_EQ(bench.driver.calls("cuDeviceGetCount"), 4u);
  bench.driver.fail_calls_from("cuDeviceGetCount", 2, CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(bench.cu.cuDeviceGetCount(&count), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuDeviceGetCount(&count), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(bench.cu.cuDeviceGetCount(&count), CUDA_ERROR_UNKNOWN);
  bench.driver.clear_failures();
  EXPECT_EQ(bench.driver.total_calls(), 0u);
  EXPECT_EQ(bench.cu.cuDeviceGetCount(&count), CUDA_SUCCESS);
  EXPECT_EQ(bench.driver.total_calls(), 1u);
}

TEST(FakeDriver, SaysWhatIsStillAlive) {
  FakeDriverBench bench;
  EXPECT_EQ(bench.driver.live(), (LiveHandles{.contexts = 2}));
  const CUstream stream = bench.stream();
  const CUevent event = bench.event();
  static_cast<void>(bench.kernel("sum"));
  EXPECT_EQ(bench.driver.live(),
            (LiveHandles{.streams = 1, .events = 1, .modules = 1, .contexts = 2}));
  EXPECT_EQ(bench.cu.cuStreamDestroy(stream), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuEventDestroy(event), CUDA_SUCCESS);
  EXPECT_EQ(bench.driver.live(), (LiveHandles{.modules = 1, .contexts = 2}));
}

TEST(FakeDriver, ResetTakesEverythingWithIt) {
  FakeDriverBench bench;
  const std::size_t free = bench.free_bytes();
  const CUstream stream = bench.stream();
  const CUdeviceptr memory = bench.memory();
  void* pinned = nullptr;
  ASSERT_EQ(bench.cu.cuMemHostAlloc(&pinned, 64, 0), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuMemsetD8Async(memory, 1, 64, stream), CUDA_SUCCESS);
  bench.driver.reset(0);
  EXPECT_EQ(bench.cu.cuMemFree(memory), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(bench.driver.live(), (LiveHandles{.contexts = 1}));
  ASSERT_EQ(bench.cu.cuDevicePrimaryCtxRetain(&bench.contexts[0], 0), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(bench.free_bytes(), free);
  EXPECT_EQ(bench.found(), "");
  EXPECT_TRUE(leaks(bench.driver.device(0)).empty());
}

TEST(FakeDriver, SharesTheWorldBetweenThreads) {
  FakeDriverBench bench;
  const CUmemoryPool pool = bench.pool();
  const auto work = [&bench, pool] {
    ASSERT_EQ(bench.cu.cuCtxSetCurrent(bench.contexts[0]), CUDA_SUCCESS);
    for (int i = 0; i < 50; ++i) {
      const CUstream stream = bench.stream();
      const CUevent event = bench.event();
      CUdeviceptr memory = 0;
      ASSERT_EQ(bench.cu.cuMemAllocFromPoolAsync(&memory, 256, pool, stream), CUDA_SUCCESS);
      ASSERT_EQ(bench.cu.cuMemsetD8Async(memory, 1, 256, stream), CUDA_SUCCESS);
      ASSERT_EQ(bench.cu.cuMemFreeAsync(memory, stream), CUDA_SUCCESS);
      ASSERT_EQ(bench.cu.cuEventRecord(event, stream), CUDA_SUCCESS);
      ASSERT_EQ(bench.cu.cuEventSynchronize(event), CUDA_SUCCESS);
      ASSERT_EQ(bench.cu.cuEventDestroy(event), CUDA_SUCCESS);
      ASSERT_EQ(bench.cu.cuStreamDestroy(stream), CUDA_SUCCESS);
    }
  };
  test::Thread other(work);
  work();
  other.join();
  EXPECT_EQ(bench.driver.live(), (LiveHandles{.contexts = 2}));
  EXPECT_EQ(bench.found(), "");
}

}  // namespace
}  // namespace tern::sim
