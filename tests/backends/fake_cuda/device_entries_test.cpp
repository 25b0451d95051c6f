#include <gtest/gtest.h>

#include <cstring>

#include "support/fake_driver_bench.hpp"
#include "support/thread.hpp"

namespace tern::sim {
namespace {

using namespace cuda;

TEST(FakeCudaDevices, WantsToBeInitialised) {
  FakeDriver driver(bench_options());
  const DriverTable& cu = driver.table();
  int value = 0;
  CUcontext context = nullptr;
  EXPECT_EQ(cu.cuDeviceGetCount(&value), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(cu.cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(cu.cuMemFree(0), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(cu.cuInit(1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuDriverGetVersion(&value), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuInit(0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuDeviceGetCount(&value), CUDA_SUCCESS);
  EXPECT_EQ(value, 2);
}

TEST(FakeCudaDevices, WantsAContextOfItsOwnOnEveryThread) {
  FakeDriverBench bench;
  CUdeviceptr memory = 0;
  test::Thread([&] {
    EXPECT_EQ(bench.cu.cuMemAlloc(&memory, 64), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(bench.cu.cuCtxPopCurrent(nullptr), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(bench.cu.cuCtxPushCurrent(nullptr), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(bench.cu.cuCtxPushCurrent(reinterpret_cast<CUcontext>(64)),
              CUDA_ERROR_INVALID_CONTEXT);
  }).join();
  CUcontext context = nullptr;
  ASSERT_EQ(bench.cu.cuCtxPushCurrent(bench.contexts[1]), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuCtxPopCurrent(&context), CUDA_SUCCESS);
  EXPECT_EQ(context, bench.contexts[1]);
  EXPECT_EQ(bench.cu.cuCtxGetCurrent(&context), CUDA_SUCCESS);
  EXPECT_EQ(context, bench.contexts[0]);
  EXPECT_EQ(bench.cu.cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuMemAlloc(&memory, 64), CUDA_ERROR_INVALID_CONTEXT);
}

TEST(FakeCudaDevices, AnswersQuestionsAboutDevices) {
  FakeDriverBench bench;
  int value = 7;
  char text[4] = "xxx";
  EXPECT_EQ(bench.cu.cuDeviceGet(&value, 2), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(bench.cu.cuDeviceGet(&value, -1), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(bench.cu.cuDeviceGet(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuDeviceGetName(text, sizeof text, 0), CUDA_SUCCESS);
  EXPECT_EQ(std::strlen(text), 3u);
  EXPECT_EQ(bench.cu.cuDeviceGetName(text, 0, 0), CUDA_ERROR_INVALID_VALUE);
  std::size_t total = 0;
  EXPECT_EQ(bench.cu.cuDeviceTotalMem(&total, 1), CUDA_SUCCESS);
  EXPECT_EQ(total, 64 * mib);
#define TERN_CUDA_ATTRIBUTE(name, number) \
  EXPECT_EQ(bench.cu.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_##name, 0), CUDA_SUCCESS);
  TERN_FOR_EACH_CUDA_ATTRIBUTE(TERN_CUDA_ATTRIBUTE)
#undef TERN_CUDA_ATTRIBUTE
  EXPECT_EQ(bench.cu.cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(999), 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuDeviceCanAccessPeer(&value, 0, 1), CUDA_SUCCESS);
  EXPECT_EQ(value, 1);
  EXPECT_EQ(bench.cu.cuDeviceCanAccessPeer(&value, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(value, 0);
  EXPECT_EQ(bench.cu.cuDeviceCanAccessPeer(&value, 0, 2), CUDA_ERROR_INVALID_DEVICE);
  const char* name = nullptr;
  EXPECT_EQ(bench.cu.cuGetErrorName(CUDA_ERROR_NOT_READY, &name), CUDA_SUCCESS);
  EXPECT_STREQ(name, "CUDA_ERROR_NOT_READY");
  EXPECT_EQ(bench.cu.cuGetErrorName(static_cast<CUresult>(12345), &name), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(name, nullptr);
}

TEST(FakeCudaDevices, KnowsOtherAttributesIfItIsToldSo) {
  FakeDriverOptions options = bench_options();
  options.attributes = {{CU_DEVICE_ATTRIBUTE_INTEGRATED, 1},
                        {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 0},
                        {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 0},
                        {CU_DEVICE_ATTRIBUTE_WARP_SIZE, {}}};
  FakeDriverBench bench(options);
  int value = 0;
  EXPECT_EQ(bench.cu.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_INTEGRATED, 0), CUDA_SUCCESS);
  EXPECT_EQ(value, 1);
  EXPECT_EQ(bench.cu.cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0),
            CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr memory = 0;
  EXPECT_EQ(bench.cu.cuMemAllocManaged(&memory, 64, CU_MEM_ATTACH_GLOBAL),
            CUDA_ERROR_NOT_SUPPORTED);
}

TEST(FakeCudaDevices, RefusesEverythingInTheContextOfALostDevice) {
  FakeDriverOptions options = bench_options();
  options.sim.faults = "fill#1=fault";
  FakeDriverBench bench(options);
  const CUstream stream = bench.stream();
  const CUevent event = bench.event();
  const CUdeviceptr memory = bench.memory();
  EXPECT_EQ(bench.cu.cuMemsetD8Async(memory, 1, 8, stream), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuStreamSynchronize(stream), CUDA_ERROR_LAUNCH_FAILED);
  CUdeviceptr none = 0;
  unsigned flags = 0;
  EXPECT_EQ(bench.cu.cuMemAlloc(&none, 64), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(bench.cu.cuStreamGetFlags(stream, &flags), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(bench.cu.cuEventQuery(event), CUDA_ERROR_LAUNCH_FAILED);
  // What is given back is taken, although the answer is the same.
  EXPECT_EQ(bench.cu.cuMemFree(memory), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(bench.cu.cuEventDestroy(event), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(bench.cu.cuStreamDestroy(stream), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_EQ(bench.driver.live(), (LiveHandles{.contexts = 2}));
  EXPECT_TRUE(leaks(bench.driver.device(0)).empty());
  // The other device is well.
  ASSERT_EQ(bench.cu.cuCtxSetCurrent(bench.contexts[1]), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuMemFree(bench.memory()), CUDA_SUCCESS);
}

TEST(FakeCudaDevices, GivesKernelsTheMemoryOfPeersOnlyWithAccess) {
  FakeDriverBench bench;
  const CUfunction kernel = bench.kernel("add_one");
  ASSERT_EQ(bench.cu.cuCtxPushCurrent(bench.contexts[1]), CUDA_SUCCESS);
  CUdeviceptr abroad = bench.memory(64);
  ASSERT_EQ(bench.cu.cuMemsetD32Async(abroad, 1, 16, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
  std::uint32_t count = 16;
  EXPECT_EQ(bench.launch(kernel, nullptr, {&abroad, &count}), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  EXPECT_EQ(bench.found(), "TERN-S402");
  EXPECT_EQ(bench.cu.cuCtxEnablePeerAccess(bench.contexts[0], 0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(bench.cu.cuCtxEnablePeerAccess(nullptr, 0), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(bench.cu.cuCtxEnablePeerAccess(bench.contexts[1], 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuCtxEnablePeerAccess(bench.contexts[1], 0), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuCtxEnablePeerAccess(bench.contexts[1], 0),
            CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
  EXPECT_EQ(bench.launch(kernel, nullptr, {&abroad, &count}), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuCtxDisablePeerAccess(bench.contexts[0]), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(bench.cu.cuCtxDisablePeerAccess(bench.contexts[1]), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuCtxDisablePeerAccess(bench.contexts[1]), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  EXPECT_EQ(bench.launch(kernel, nullptr, {&abroad, &count}), CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
}

TEST(FakeCudaDevices, HasNoPeerAccessIfItIsToldSo) {
  FakeDriverOptions options = bench_options();
  options.has_peer_access = false;
  FakeDriverBench bench(options);
  int value = 7;
  EXPECT_EQ(bench.cu.cuDeviceCanAccessPeer(&value, 0, 1), CUDA_SUCCESS);
  EXPECT_EQ(value, 0);
  EXPECT_EQ(bench.cu.cuCtxEnablePeerAccess(bench.contexts[1], 0),
            CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
}

}  // namespace
}  // namespace tern::sim
