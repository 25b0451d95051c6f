#include "backends/sim/driver_table.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "support/fake_driver_bench.hpp"
#include "support/thread.hpp"

namespace tern::sim {
namespace {

using namespace cuda;

CUdeviceptr number(const void* address) { return reinterpret_cast<CUdeviceptr>(address); }

// --- Every entry, once
// ----------------------------------------------------------------------------

/// A program that calls every entry there is and gives everything back, whatever fails on the way:
/// an entry that failed is called once more when it is a release.
class Walk {
 public:
  explicit Walk(const DriverTable& table) : cu(table) {}

  /// The first result that was no success, with the call that gave it.
  CUresult run() {
    const CUresult result = steps();
    while (!undo_.empty()) {
      const std::function<CUresult()> release = std::move(undo_.back());
      undo_.pop_back();
      CUresult released = release();
      if (released != CUDA_SUCCESS) {
        first_ = first_ == CUDA_SUCCESS ? released : first_;
        released = release();
        EXPECT_EQ(released, CUDA_SUCCESS);
      }
    }
    return result == CUDA_SUCCESS ? first_ : result;
  }

 private:
#define TERN_STEP(call) \
  if (const CUresult result = cu.call; result != CUDA_SUCCESS) return result
#define TERN_UNDO(call) undo_.emplace_back([=, this] { return cu.call; })

  CUresult steps() {
    TERN_STEP(cuInit(0));
    int value = 0;
    char text[64] = {};
    std::size_t size = 0;
    TERN_STEP(cuDriverGetVersion(&value));
    const char* name = nullptr;
    TERN_STEP(cuGetErrorName(CUDA_ERROR_NOT_READY, &name));
    TERN_STEP(cuGetErrorString(CUDA_ERROR_NOT_READY, &name));
    TERN_STEP(cuDeviceGetCount(&value));
    CUdevice device = 7;
    TERN_STEP(cuDeviceGet(&device, 0));
    TERN_STEP(cuDeviceGetName(text, sizeof text, device));
    TERN_STEP(cuDeviceGetPCIBusId(text, sizeof text, device));
    TERN_STEP(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, device));
    TERN_STEP(cuDeviceTotalMem(&size, device));
    CUuuid uuid;
    TERN_STEP(cuDeviceGetUuid(&uuid, device));
    TERN_STEP(cuDeviceCanAccessPeer(&value, 0, 1));
    TERN_STEP(cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1));
    return contexts();
  }

  CUresult contexts() {
    CUcontext peer = nullptr;
    TERN_STEP(cuDevicePrimaryCtxRetain(&context_, 0));
    TERN_UNDO(cuDevicePrimaryCtxRelease(0));
    TERN_STEP(cuDevicePrimaryCtxRetain(&peer, 1));
    TERN_UNDO(cuDevicePrimaryCtxRelease(1));
    TERN_STEP(cuCtxPushCurrent(context_));
    TERN_UNDO(cuCtxPopCurrent(nullptr));
    unsigned flags = 0;
    int is_active = 0, least = 0, greatest = 0;
    CUcontext current = nullptr;
    CUdevice device = 7;
    unsigned long long id = 0;
    TERN_STEP(cuDevicePrimaryCtxGetState(0, &flags, &is_active));
    TERN_STEP(cuCtxGetCurrent(&current));
    TERN_STEP(cuCtxSetCurrent(current));
    TERN_STEP(cuCtxGetDevice(&device));
    TERN_STEP(cuCtxGetStreamPriorityRange(&least, &greatest));
    TERN_STEP(cuCtxEnablePeerAccess(peer, 0));
    TERN_STEP(cuCtxDisablePeerAccess(peer));
    TERN_STEP(cuCtxGetId(context_, &id));
    return streams(peer);
  }

  CUresult streams(CUcontext peer) {
    CUstream stream = nullptr;
    CUevent first = nullptr, last = nullptr;
    TERN_STEP(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -1));
    TERN_UNDO(cuStreamDestroy(stream));
    unsigned flags = 0;
    int priority = 0;
    CUcontext context = nullptr;
    unsigned long long id = 0;
    CUdevice device = 7;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    TERN_STEP(cuStreamGetFlags(stream, &flags));
    TERN_STEP(cuStreamGetPriority(stream, &priority));
    TERN_STEP(cuStreamGetCtx(stream, &context));
    TERN_STEP(cuStreamGetId(stream, &id));
    TERN_STEP(cuStreamGetDevice(stream, &device));
    TERN_STEP(cuStreamIsCapturing(stream, &status));
    TERN_STEP(cuStreamGetCaptureInfo(stream, &status, nullptr, nullptr, nullptr, nullptr));
    TERN_STEP(cuThreadExchangeStreamCaptureMode(&mode));
    TERN_STEP(cuEventCreate(&first, CU_EVENT_DEFAULT));
    TERN_UNDO(cuEventDestroy(first));
    TERN_STEP(cuEventCreate(&last, CU_EVENT_DEFAULT));
    TERN_UNDO(cuEventDestroy(last));
    TERN_STEP(cuEventRecord(first, stream));
    TERN_STEP(cuStreamWaitEvent(stream, first, 0));
    TERN_STEP(cuLaunchHostFunc(
        stream, [](void*) {}, nullptr));
    TERN_STEP(cuEventRecord(last, stream));
    TERN_STEP(cuEventSynchronize(last));
    TERN_STEP(cuEventQuery(last));
    float milliseconds = 0;
    TERN_STEP(cuEventElapsedTime(&milliseconds, first, last));
    TERN_STEP(cuStreamSynchronize(stream));
    TERN_STEP(cuStreamQuery(stream));
    TERN_UNDO(cuCtxSynchronize());
    return memory(stream, peer);
  }

  CUresult memory(CUstream stream, CUcontext peer) {
    std::size_t free = 0, total = 0;
    CUdeviceptr plain = 0, base = 0, pooled = 0;
    void* pinned = nullptr;
    TERN_STEP(cuMemGetInfo(&free, &total));
    TERN_STEP(cuMemAlloc(&plain, 4096));
    TERN_UNDO(cuMemFree(plain));
    TERN_STEP(cuMemGetAddressRange(&base, &total, plain + 8));
    TERN_STEP(cuMemHostAlloc(&pinned, 4096, host_alloc_portable));
    TERN_UNDO(cuMemFreeHost(pinned));
    TERN_STEP(cuMemHostRegister(host_.data(), host_.size(), 0));
    TERN_UNDO(cuMemHostUnregister(host_.data()));
    TERN_UNDO(cuCtxSynchronize());
    TERN_STEP(cuMemHostGetDevicePointer(&base, pinned, 0));
    unsigned flags = 0;
    TERN_STEP(cuMemHostGetFlags(&flags, pinned));
    CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    void* data = &flags;
    TERN_STEP(cuPointerGetAttribute(data, attribute, plain));
    TERN_STEP(cuPointerGetAttributes(1, &attribute, &data, plain));
    TERN_STEP(cuMemAllocAsync(&pooled, 4096, stream));
    TERN_UNDO(cuMemFreeAsync(pooled, stream));
    TERN_STEP(cuMemsetD8Async(plain, 1, 64, stream));
    TERN_STEP(cuMemsetD16Async(plain, 1, 32, stream));
    TERN_STEP(cuMemsetD32Async(plain, 1, 1024, stream));
    TERN_STEP(cuMemsetD2D8Async(plain, 64, 1, 32, 4, stream));
    TERN_STEP(cuMemsetD2D16Async(plain, 64, 1, 32, 4, stream));
    TERN_STEP(cuMemsetD2D32Async(plain, 64, 1, 16, 4, stream));
    TERN_STEP(cuMemcpyAsync(number(pinned), plain, 4096, stream));
    TERN_STEP(cuMemcpyPeerAsync(pooled, context_, plain, context_, 4096, stream));
    static_cast<void>(peer);
    CUDA_MEMCPY2D copy;
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = plain;
    copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    copy.dstDevice = pooled;
    copy.srcPitch = copy.dstPitch = 64;
    copy.WidthInBytes = 16;
    copy.Height = 4;
    TERN_STEP(cuMemcpy2DAsync(&copy, stream));
    CUdeviceptr to = pooled, from = plain;
    std::size_t bytes = 64, start = 0, failed = 0;
    CUmemcpyAttributes how;
    how.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    TERN_STEP(cuMemcpyBatchAsync_12080(&to, &from, &bytes, 1, &how, &start, 1, &failed, stream));
    TERN_STEP(cuMemcpyBatchAsync(&to, &from, &bytes, 1, &how, &start, 1, stream));
    CUmemoryPool pool = nullptr;
    std::uint64_t threshold = 1 << 20;
    TERN_STEP(cuDeviceGetDefaultMemPool(&pool, 0));
    TERN_STEP(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    TERN_STEP(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    TERN_STEP(cuMemPoolTrimTo(pool, 0));
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                 CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    TERN_STEP(cuMemPoolSetAccess(pool, &access, 1));
    CUmemPoolProps kind;
    kind.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemoryPool own = nullptr;
    CUdeviceptr from_own = 0;
    TERN_STEP(cuMemPoolCreate(&own, &kind));
    TERN_STEP(cuMemAllocFromPoolAsync(&from_own, 64, own, stream));
    TERN_STEP(cuMemFreeAsync(from_own, stream));
    TERN_STEP(cuMemPoolDestroy(own));
    return virtual_memory(stream);
  }

  CUresult virtual_memory(CUstream stream) {
    CUmemAllocationProp properties;
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    std::size_t granularity = 0;
    CUdeviceptr address = 0;
    CUmemGenericAllocationHandle pages = 0;
    TERN_STEP(
        cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    TERN_STEP(cuMemAddressReserve(&address, 2 * granularity, 0, 0, 0));
    TERN_UNDO(cuMemAddressFree(address, 2 * granularity));
    TERN_STEP(cuMemCreate(&pages, granularity, &properties, 0));
    TERN_UNDO(cuMemRelease(pages));
    TERN_STEP(cuMemMap(address, granularity, 0, pages, 0));
    TERN_UNDO(cuMemUnmap(address, granularity));
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                 CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    TERN_STEP(cuMemSetAccess(address, granularity, &access, 1));
    unsigned long long granted = 0;
    TERN_STEP(cuMemGetAccess(&granted, &access.location, address));
    TERN_STEP(cuMemsetD8Async(address, 1, 64, stream));
    TERN_UNDO(cuCtxSynchronize());
    return managed_memory(stream);
  }

  CUresult managed_memory(CUstream stream) {
    CUdeviceptr managed = 0;
    TERN_STEP(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
    TERN_UNDO(cuMemFree(managed));
    TERN_UNDO(cuCtxSynchronize());
    const CUmemLocation here{CU_MEM_LOCATION_TYPE_DEVICE, 0};
    TERN_STEP(cuMemAdvise_8000(managed, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
    TERN_STEP(cuMemAdvise(managed, 4096, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, here));
    TERN_STEP(cuMemPrefetchAsync_8000(managed, 4096, 0, stream));
    TERN_STEP(cuMemPrefetchAsync(managed, 4096, here, 0, stream));
    CUmemLocation place = here;
    std::size_t size = 4096, first = 0;
    TERN_STEP(cuMemDiscardBatchAsync(&managed, &size, 1, 0, stream));
    TERN_STEP(cuMemDiscardAndPrefetchBatchAsync(&managed, &size, 1, &place, &first, 1, 0, stream));
    TERN_STEP(cuMemPrefetchBatchAsync(&managed, &size, 1, &place, &first, 1, 0, stream));
    int answer = 0;
    void* data = &answer;
    std::size_t data_bytes = sizeof answer;
    CUmem_range_attribute attribute = CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY;
    TERN_STEP(cuMemRangeGetAttribute(&answer, sizeof answer, attribute, managed, 4096));
    TERN_STEP(cuMemRangeGetAttributes(&data, &data_bytes, &attribute, 1, managed, 4096));
    TERN_STEP(cuStreamAttachMemAsync(stream, managed, 0, CU_MEM_ATTACH_GLOBAL));
    return kernels(stream, managed);
  }

  CUresult kernels(CUstream stream, CUdeviceptr memory) {
    const std::string_view names[] = {"add_one", "sum"};
    const std::string image = FakeDriver::image(names);
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    TERN_STEP(cuModuleLoadDataEx(&module, image.c_str(), 0, nullptr, nullptr));
    TERN_UNDO(cuModuleUnload(module));
    TERN_STEP(cuModuleGetFunction(&function, module, "add_one"));
    unsigned functions = 0;
    CUfunction all[2] = {};
    const char* name = nullptr;
    TERN_STEP(cuModuleGetFunctionCount(&functions, module));
    TERN_STEP(cuModuleEnumerateFunctions(all, 2, module));
    TERN_STEP(cuFuncGetName(&name, all[1]));
    std::size_t offset = 0, parameter_bytes = 0;
    TERN_STEP(cuFuncGetParamInfo(function, 1, &offset, &parameter_bytes));
    int min_grid = 0, block = 0;
    TERN_STEP(cuOccupancyMaxPotentialBlockSize(&min_grid, &block, function, nullptr, 0, 0));
    EXPECT_EQ(functions, 2u);
    EXPECT_STREQ(name, "sum");
    EXPECT_EQ(offset, 8u);
    EXPECT_EQ(parameter_bytes, 4u);
    EXPECT_GT(block, 0);
    TERN_STEP(cuMemsetD32Async(memory, 1, 16, stream));
    std::uint32_t count = 16;
    void* arguments[] = {&memory, &count};
    TERN_STEP(cuLaunchKernel(function, 1, 1, 1, 16, 1, 1, 0, stream, arguments, nullptr));
    CUlaunchConfig config;
    config.gridDimX = config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = config.blockDimY = config.blockDimZ = 1;
    config.hStream = stream;
    TERN_STEP(cuLaunchKernelEx(&config, function, arguments, nullptr));
    TERN_STEP(cuStreamSynchronize(stream));
    EXPECT_EQ(*reinterpret_cast<std::uint32_t*>(memory), 3u);
    return CUDA_SUCCESS;
  }
#undef TERN_STEP
#undef TERN_UNDO

  const DriverTable& cu;
  CUcontext context_ = nullptr;
  std::vector<std::byte> host_ = std::vector<std::byte>(4096);
  std::vector<std::function<CUresult()>> undo_;
  CUresult first_ = CUDA_SUCCESS;
};

TEST(DriverTable, FillsEverySlotAndHasEachOfThemExercised) {
  FakeDriver driver(bench_options());
  Walk walk(driver.table());
  EXPECT_EQ(walk.run(), CUDA_SUCCESS);
  std::size_t exercised = 0;
  for (const DriverEntryInfo& entry : driver_entries) {
    EXPECT_GT(driver.calls(entry.slot), 0u) << entry.slot << " is not exercised";
    if (driver.calls(entry.slot) > 0) ++exercised;
  }
  std::cout << exercised << " of " << driver_entries.size() << " entries exercised\n";
  EXPECT_EQ(driver.live(), LiveHandles{});
  EXPECT_TRUE(leaks(driver.device(0)).empty());
  EXPECT_TRUE(findings(driver.device(0)).empty());
}

TEST(DriverTable, LosesNothingWhenAnyCallOfAnyEntryFails) {
  std::vector<std::uint64_t> calls;
  {
    FakeDriver driver(bench_options());
    EXPECT_EQ(Walk(driver.table()).run(), CUDA_SUCCESS);
    for (const DriverEntryInfo& entry : driver_entries) calls.push_back(driver.calls(entry.slot));
  }
  for (std::size_t entry = 0; entry < driver_entries.size(); ++entry) {
    for (std::uint64_t n = 1; n <= calls[entry]; ++n) {
      SCOPED_TRACE(std::string(driver_entries[entry].slot) + " call " + std::to_string(n));
      FakeDriver driver(bench_options());
      driver.fail_call(driver_entries[entry].slot, n, CUDA_ERROR_SYSTEM_NOT_READY);
      EXPECT_EQ(Walk(driver.table()).run(), CUDA_ERROR_SYSTEM_NOT_READY);
      EXPECT_EQ(driver.live(), LiveHandles{});
      EXPECT_TRUE(leaks(driver.device(0)).empty());
      EXPECT_TRUE(findings(driver.device(0)).empty());
    }
  }
}

TEST(DriverTable, LosesNothingWhenAnyPrimitiveOfTheDeviceFails) {
  const std::pair<const char*, CUresult> faults[] = {
      {"allocate#%=oom", CUDA_ERROR_OUT_OF_MEMORY}, {"map#%=fail", CUDA_ERROR_UNKNOWN},
      {"pin#%=refuse", CUDA_ERROR_NOT_PERMITTED},   {"copy#%=fail", CUDA_ERROR_UNKNOWN},
      {"fill#%=fail", CUDA_ERROR_UNKNOWN},          {"launch#%=fail", CUDA_ERROR_UNKNOWN},
      {"load#%=fail", CUDA_ERROR_UNKNOWN},          {"record#%=fail", CUDA_ERROR_UNKNOWN},
      {"wait#%=fail", CUDA_ERROR_UNKNOWN},          {"sync#%=fail", CUDA_ERROR_UNKNOWN},
      {"stream#%=fail", CUDA_ERROR_UNKNOWN},        {"info#%=fail", CUDA_ERROR_UNKNOWN},
      {"query#%=fail", CUDA_ERROR_UNKNOWN},         {"release#%=fail", CUDA_ERROR_UNKNOWN},
      {"query#%=not_ready", CUDA_SUCCESS}};
  for (const auto& [rule, expected] : faults) {
    for (int n = 1;; ++n) {
      std::string plan = rule;
      const std::string fault_class = plan.substr(0, plan.find('#'));
      plan.replace(plan.find('%'), 1, std::to_string(n));
      SCOPED_TRACE(plan);
      FakeDriverOptions options = bench_options();
      options.sim.faults = plan;
      FakeDriver driver(options);
      const CUresult result = Walk(driver.table()).run();
      if (sim::calls(driver.device(0), fault_class) < static_cast<std::uint64_t>(n)) {
        EXPECT_EQ(result, CUDA_SUCCESS);
        break;
      }
      EXPECT_EQ(result, expected);
      EXPECT_EQ(driver.live(), LiveHandles{});
      EXPECT_TRUE(leaks(driver.device(0)).empty());
      EXPECT_TRUE(findings(driver.device(0)).empty());
    }
  }
}

// --- What every call checks
// -----------------------------------------------------------------------

TEST(DriverTable, WantsToBeInitialised) {
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

TEST(DriverTable, WantsAContextOfItsOwnOnEveryThread) {
  FakeDriverBench bench;
  CUdeviceptr memory = 0;
  test::Thread([&] {
    EXPECT_EQ(bench.cu.cuMemAlloc(&memory, 64), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(bench.cu.cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(bench.cu.cuCtxPopCurrent(nullptr), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(bench.cu.cuCtxPushCurrent(nullptr), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(bench.cu.cuCtxPushCurrent(reinterpret_cast<CUcontext>(64)),
              CUDA_ERROR_INVALID_CONTEXT);
  }).join();
  CUcontext context = nullptr;
  CUdevice device = 7;
  ASSERT_EQ(bench.cu.cuCtxPushCurrent(bench.contexts[1]), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuCtxGetDevice(&device), CUDA_SUCCESS);
  EXPECT_EQ(device, 1);
  EXPECT_EQ(bench.cu.cuCtxPopCurrent(&context), CUDA_SUCCESS);
  EXPECT_EQ(context, bench.contexts[1]);
  EXPECT_EQ(bench.cu.cuCtxGetCurrent(&context), CUDA_SUCCESS);
  EXPECT_EQ(context, bench.contexts[0]);
  EXPECT_EQ(bench.cu.cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuMemAlloc(&memory, 64), CUDA_ERROR_INVALID_CONTEXT);
}

TEST(DriverTable, EndsAContextWithItsLastRelease) {
  FakeDriverBench bench;
  CUcontext again = nullptr;
  const CUevent event = bench.event();
  ASSERT_EQ(bench.cu.cuDevicePrimaryCtxRetain(&again, 0), CUDA_SUCCESS);
  EXPECT_EQ(again, bench.contexts[0]);
  EXPECT_EQ(bench.cu.cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuEventQuery(event), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuEventQuery(event), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  unsigned flags = 7;
  int is_active = 7;
  EXPECT_EQ(bench.cu.cuDevicePrimaryCtxGetState(0, &flags, &is_active), CUDA_SUCCESS);
  EXPECT_EQ(is_active, 0);
  EXPECT_EQ(bench.driver.live(), (LiveHandles{.contexts = 1}));
}

TEST(DriverTable, AnswersQuestionsAboutDevices) {
  FakeDriverBench bench;
  int value = 7;
  char text[4] = "xxx";
  EXPECT_EQ(bench.cu.cuDeviceGet(&value, 2), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(bench.cu.cuDeviceGet(&value, -1), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(bench.cu.cuDeviceGet(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuDeviceGetName(text, sizeof text, 0), CUDA_SUCCESS);
  EXPECT_EQ(std::strlen(text), 3u);
  EXPECT_EQ(bench.cu.cuDeviceGetName(text, 0, 0), CUDA_ERROR_INVALID_VALUE);
  CUuuid first, second;
  EXPECT_EQ(bench.cu.cuDeviceGetUuid(&first, 0), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuDeviceGetUuid(&second, 1), CUDA_SUCCESS);
  EXPECT_NE(std::memcmp(&first, &second, sizeof first), 0);
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

TEST(DriverTable, KnowsOtherAttributesIfItIsToldSo) {
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

// --- Streams and events
// ---------------------------------------------------------------------------

TEST(DriverTable, GivesADestroyedStreamsHandleToTheNextOneWithAnotherId) {
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

TEST(DriverTable, GivesADestroyedEventsHandleToTheNextOneWithoutItsRecord) {
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
  bench.driver.let_go(hold);
}

TEST(DriverTable, RefusesHandlesThatAreNone) {
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

TEST(DriverTable, DescribesStreams) {
  FakeDriverBench bench;
  CUstream stream = nullptr;
  int priority = 7, least = 7, greatest = 7;
  unsigned flags = 7;
  ASSERT_EQ(bench.cu.cuCtxGetStreamPriorityRange(&least, &greatest), CUDA_SUCCESS);
  EXPECT_GT(least, greatest);
  ASSERT_EQ(bench.cu.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -99),
            CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuStreamGetPriority(stream, &priority), CUDA_SUCCESS);
  EXPECT_EQ(priority, greatest);
  EXPECT_EQ(bench.cu.cuStreamGetFlags(stream, &flags), CUDA_SUCCESS);
  EXPECT_EQ(flags, CU_STREAM_NON_BLOCKING);
  ASSERT_EQ(bench.cu.cuCtxSetCurrent(bench.contexts[1]), CUDA_SUCCESS);
  CUcontext context = nullptr;
  CUdevice device = 7;
  EXPECT_EQ(bench.cu.cuStreamGetCtx(stream, &context), CUDA_SUCCESS);
  EXPECT_EQ(context, bench.contexts[0]);
  EXPECT_EQ(bench.cu.cuStreamGetDevice(stream, &device), CUDA_SUCCESS);
  EXPECT_EQ(device, 0);
}

TEST(DriverTable, KnowsTheStreamsThatAreNoHandles) {
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

TEST(DriverTable, SaysNotReadyUntilTheStreamIsDone) {
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
  bench.driver.let_go(hold);
  ASSERT_EQ(bench.cu.cuEventSynchronize(end), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuStreamQuery(stream), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuEventElapsedTime(&milliseconds, start, end), CUDA_SUCCESS);
  EXPECT_GT(milliseconds, 0.0f);
  EXPECT_LT(milliseconds, 1.0f);
  const CUevent untimed = bench.event();
  ASSERT_EQ(bench.cu.cuEventRecord(untimed, stream), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuEventElapsedTime(&milliseconds, start, untimed), CUDA_ERROR_INVALID_HANDLE);
}

TEST(DriverTable, KeepsEventsToTheirDevices) {
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

TEST(DriverTable, AllowsNoCallInAHostFunction) {
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

// --- Captures
// -------------------------------------------------------------------------------------

TEST(DriverTable, RefusesWorkOnACapturingStream) {
  FakeDriverBench bench;
  const CUstream stream = bench.stream(), other = bench.stream();
  const CUevent event = bench.event();
  const CUdeviceptr memory = bench.memory();
  bench.driver.begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  std::uint64_t id = 0;
  std::size_t nodes = 7;
  EXPECT_EQ(bench.cu.cuStreamGetCaptureInfo(stream, &status, &id, nullptr, nullptr, &nodes),
            CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  EXPECT_NE(id, 0u);
  EXPECT_EQ(nodes, 0u);
  EXPECT_EQ(bench.cu.cuStreamIsCapturing(other, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
  EXPECT_EQ(bench.cu.cuMemsetD8Async(memory, 0, 8, stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUdeviceptr pooled = 0;
  EXPECT_EQ(bench.cu.cuMemAllocAsync(&pooled, 8, stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(bench.cu.cuEventRecord(event, stream), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
  EXPECT_EQ(bench.cu.cuEventSynchronize(event), CUDA_ERROR_CAPTURED_EVENT);
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

TEST(DriverTable, BreaksAGlobalCaptureOfAnotherThreadUnlessRelaxed) {
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

TEST(DriverTable, LeavesAnotherThreadsLocalCaptureAlone) {
  FakeDriverBench bench;
  const CUstream stream = bench.stream();
  test::Thread([&] {
    bench.driver.begin_capture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  }).join();
  EXPECT_EQ(bench.cu.cuMemFree(bench.memory()), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  bench.driver.end_capture(stream);
  bench.driver.begin_capture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  CUdeviceptr none = 0;
  EXPECT_EQ(bench.cu.cuMemAlloc(&none, 64), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

TEST(DriverTable, KeepsTheDefaultStreamOutOfABlockingCapture) {
  FakeDriverBench bench;
  const CUstream stream = bench.stream(CU_STREAM_DEFAULT);
  const CUdeviceptr memory = bench.memory();
  bench.driver.begin_capture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  EXPECT_EQ(bench.cu.cuMemsetD8Async(memory, 0, 8, nullptr), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(bench.cu.cuStreamIsCapturing(nullptr, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  EXPECT_EQ(bench.cu.cuStreamSynchronize(nullptr), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
}

// --- Memory
// ---------------------------------------------------------------------------------------

TEST(DriverTable, RunsOutOfMemoryAndSaysHowMuchIsFree) {
  FakeDriverBench bench;
  const std::size_t free = bench.free_bytes();
  EXPECT_EQ(free, 64 * mib);
  CUdeviceptr none = 0;
  EXPECT_EQ(bench.cu.cuMemAlloc(&none, 65 * mib), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(bench.cu.cuMemAlloc(&none, ~std::size_t{0}), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(bench.cu.cuMemAllocAsync(&none, 65 * mib, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(bench.cu.cuMemAlloc(&none, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemAlloc(nullptr, 64), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(none, 0u);
  const CUdeviceptr memory = bench.memory(16 * mib);
  EXPECT_EQ(memory % 512, 0u);
  EXPECT_EQ(bench.free_bytes(), 48 * mib);
  EXPECT_EQ(bench.cu.cuMemFree(memory), CUDA_SUCCESS);
  EXPECT_EQ(bench.free_bytes(), free);
}

TEST(DriverTable, FreesOnlyWhatItGaveAndOnlyOnce) {
  FakeDriverBench bench;
  const CUdeviceptr memory = bench.memory();
  void* pinned = nullptr;
  ASSERT_EQ(bench.cu.cuMemHostAlloc(&pinned, 64, 0), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuMemFree(0), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuMemFree(memory + 256), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemFree(number(pinned)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemFreeHost(reinterpret_cast<void*>(memory)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemFreeAsync(memory + 8, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemFree(memory), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuMemFree(memory), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemFreeHost(pinned), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuMemFreeHost(pinned), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr base = 0;
  EXPECT_EQ(bench.cu.cuMemGetAddressRange(&base, nullptr, memory), CUDA_ERROR_NOT_FOUND);
}

TEST(DriverTable, RegistersHostMemoryOnce) {
  FakeDriverBench bench;
  std::vector<std::byte> host(8192);
  void* pinned = nullptr;
  ASSERT_EQ(bench.cu.cuMemHostAlloc(&pinned, 64, host_alloc_write_combined), CUDA_SUCCESS);
  unsigned flags = 0;
  EXPECT_EQ(bench.cu.cuMemHostGetFlags(&flags, pinned), CUDA_SUCCESS);
  EXPECT_EQ(flags, host_alloc_write_combined);
  EXPECT_EQ(bench.cu.cuMemHostGetFlags(&flags, host.data()), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemHostAlloc(&pinned, 64, 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemHostUnregister(host.data()), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  EXPECT_EQ(bench.cu.cuMemHostRegister(host.data(), 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemHostRegister(host.data(), 64, 16), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(bench.cu.cuMemHostRegister(host.data() + 1024, 1024, 0), CUDA_SUCCESS);
  for (const std::ptrdiff_t at : {512, 1024, 2047}) {
    EXPECT_EQ(bench.cu.cuMemHostRegister(host.data() + at, 1024, 0),
              CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  }
  EXPECT_EQ(bench.cu.cuMemHostRegister(host.data() + 2048, 1024, 0), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuMemHostRegister(pinned, 64, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  CUdeviceptr address = 0;
  EXPECT_EQ(bench.cu.cuMemHostGetDevicePointer(&address, host.data() + 1100, 0), CUDA_SUCCESS);
  EXPECT_EQ(address, number(host.data() + 1100));
  EXPECT_EQ(bench.cu.cuMemHostGetDevicePointer(&address, host.data(), 0), CUDA_ERROR_INVALID_VALUE);
  unsigned type = 0;
  EXPECT_EQ(bench.cu.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                           number(host.data() + 1100)),
            CUDA_SUCCESS);
  EXPECT_EQ(type, CU_MEMORYTYPE_HOST);
  EXPECT_EQ(bench.cu.cuMemHostUnregister(host.data() + 1024), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuMemHostUnregister(host.data() + 1024),
            CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

TEST(DriverTable, KnowsWhereAnAddressBelongs) {
  FakeDriverBench bench;
  const CUdeviceptr plain = bench.memory(4096), managed = bench.managed(4096);
  CUdeviceptr pooled = 0;
  void* pinned = nullptr;
  ASSERT_EQ(bench.cu.cuMemAllocAsync(&pooled, 4096, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuMemHostAlloc(&pinned, 4096, 0), CUDA_SUCCESS);
  const auto ask = [&](CUpointer_attribute attribute, CUdeviceptr address) {
    std::uint64_t answer = 0;
    EXPECT_EQ(bench.cu.cuPointerGetAttribute(&answer, attribute, address), CUDA_SUCCESS);
    return answer;
  };
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, plain), CU_MEMORYTYPE_DEVICE);
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, managed), CU_MEMORYTYPE_DEVICE);
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, number(pinned)), CU_MEMORYTYPE_HOST);
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_IS_MANAGED, managed), 1u);
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_IS_MANAGED, plain), 0u);
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, plain), 1u);
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, pooled), 0u);
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, plain + 99), plain);
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_RANGE_SIZE, plain + 99), 4096u);
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_HOST_POINTER, managed), managed);
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, plain + 9), plain + 9);
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_CONTEXT, plain), number(bench.contexts[0]));
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_MAPPED, plain), 1u);
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, plain), 0u);
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(bench.cu.cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, pooled), number(pool));
  // A block that follows at the same address is another one.
  const std::uint64_t id = ask(CU_POINTER_ATTRIBUTE_BUFFER_ID, plain);
  ASSERT_EQ(bench.cu.cuMemFree(plain), CUDA_SUCCESS);
  ASSERT_EQ(bench.memory(4096), plain);
  EXPECT_NE(ask(CU_POINTER_ATTRIBUTE_BUFFER_ID, plain), id);

  int answer = 0;
  std::byte heap[8] = {};
  EXPECT_EQ(bench.cu.cuPointerGetAttribute(&answer, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, number(heap)),
            CUDA_ERROR_INVALID_VALUE);
  std::uint64_t pointer = 1;
  EXPECT_EQ(bench.cu.cuPointerGetAttribute(&pointer, CU_POINTER_ATTRIBUTE_HOST_POINTER, plain),
            CUDA_ERROR_INVALID_VALUE);
  unsigned type = 7;
  int ordinal = 7;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  void* data[] = {&type, &ordinal};
  EXPECT_EQ(bench.cu.cuPointerGetAttributes(2, attributes, data, number(heap)), CUDA_SUCCESS);
  EXPECT_EQ(type, 0u);
  EXPECT_EQ(ordinal, device_invalid);
  EXPECT_EQ(bench.cu.cuPointerGetAttributes(2, attributes, data, plain), CUDA_SUCCESS);
  EXPECT_EQ(ordinal, 0);
  attributes[0] = static_cast<CUpointer_attribute>(5);
  EXPECT_EQ(bench.cu.cuPointerGetAttributes(2, attributes, data, plain), CUDA_ERROR_INVALID_VALUE);
}

TEST(DriverTable, CountsWhatItsPoolHasGivenOut) {
  FakeDriverBench bench;
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(bench.cu.cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
  const auto get = [&](CUmemPool_attribute attribute) {
    std::uint64_t value = 0;
    EXPECT_EQ(bench.cu.cuMemPoolGetAttribute(pool, attribute, &value), CUDA_SUCCESS);
    return value;
  };
  CUdeviceptr memory = 0;
  ASSERT_EQ(bench.cu.cuMemAllocAsync(&memory, 4096, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 4096u);
  ASSERT_EQ(bench.cu.cuMemFreeAsync(memory, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0u);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_HIGH), 4096u);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC), 1u);
  std::uint64_t value = 5;
  EXPECT_EQ(bench.cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &value),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value),
            CUDA_SUCCESS);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 5u);
  value = 0;
  EXPECT_EQ(bench.cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &value),
            CUDA_SUCCESS);
  EXPECT_EQ(get(CU_MEMPOOL_ATTR_USED_MEM_HIGH), 0u);
  EXPECT_EQ(bench.cu.cuMemPoolTrimTo(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST(DriverTable, MakesPoolsOfOnesOwn) {
  FakeDriverBench bench;
  CUmemPoolProps kind;
  CUmemoryPool pool = nullptr;
  EXPECT_EQ(bench.cu.cuMemPoolCreate(&pool, &kind), CUDA_ERROR_INVALID_VALUE);
  kind.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.location = {CU_MEM_LOCATION_TYPE_DEVICE, 9};
  EXPECT_EQ(bench.cu.cuMemPoolCreate(&pool, &kind), CUDA_ERROR_INVALID_DEVICE);
  kind.location.id = 0;
  EXPECT_EQ(bench.cu.cuMemPoolCreate(nullptr, &kind), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(bench.cu.cuMemPoolCreate(&pool, &kind), CUDA_SUCCESS);

  CUdeviceptr memory = 0;
  ASSERT_EQ(bench.cu.cuMemAllocFromPoolAsync(&memory, 4096, pool, nullptr), CUDA_SUCCESS);
  CUmemoryPool owner = nullptr;
  ASSERT_EQ(
      bench.cu.cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, memory + 64),
      CUDA_SUCCESS);
  EXPECT_EQ(owner, pool);
  std::uint64_t used = 0;
  ASSERT_EQ(bench.cu.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used),
            CUDA_SUCCESS);
  EXPECT_EQ(used, 4096u);
  CUmemoryPool shared = nullptr;
  ASSERT_EQ(bench.cu.cuDeviceGetDefaultMemPool(&shared, 0), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuMemPoolGetAttribute(shared, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used),
            CUDA_SUCCESS);
  EXPECT_EQ(used, 0u);
  ASSERT_EQ(bench.cu.cuMemFreeAsync(memory, nullptr), CUDA_SUCCESS);

  EXPECT_EQ(bench.cu.cuMemPoolDestroy(shared), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(bench.cu.cuMemPoolDestroy(pool), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemAllocFromPoolAsync(&memory, 64, pool, nullptr), CUDA_ERROR_INVALID_VALUE);
  // Of another device than the thread's.
  kind.location.id = 1;
  ASSERT_EQ(bench.cu.cuMemPoolCreate(&pool, &kind), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuMemAllocFromPoolAsync(&memory, 64, pool, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST(DriverTable, APoolHoldsNoMoreThanItsMaximum) {
  FakeDriverBench bench;
  CUmemPoolProps kind;
  kind.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  kind.maxSize = 8192;
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(bench.cu.cuMemPoolCreate(&pool, &kind), CUDA_SUCCESS);
  CUdeviceptr memory = 0, more = 0;
  ASSERT_EQ(bench.cu.cuMemAllocFromPoolAsync(&memory, 8192, pool, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuMemAllocFromPoolAsync(&more, 1, pool, nullptr), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(bench.cu.cuMemFreeAsync(memory, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuMemAllocFromPoolAsync(&more, 1, pool, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuMemFreeAsync(more, nullptr), CUDA_SUCCESS);
}

TEST(DriverTable, EachPeakOfAPoolIsResetForItself) {
  FakeDriverBench bench;
  CUmemoryPool pool = nullptr;
  ASSERT_EQ(bench.cu.cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
  CUdeviceptr memory = 0;
  ASSERT_EQ(bench.cu.cuMemAllocAsync(&memory, 4096, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuMemFreeAsync(memory, nullptr), CUDA_SUCCESS);
  std::uint64_t value = 0;
  ASSERT_EQ(bench.cu.cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &value),
            CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &value),
            CUDA_SUCCESS);
  EXPECT_EQ(value, 4096u);
  ASSERT_EQ(bench.cu.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &value),
            CUDA_SUCCESS);
  EXPECT_EQ(value, 0u);
}

TEST(DriverTable, LetsPeersUseAPool) {
  for (const bool has_access : {false, true}) {
    FakeDriverOptions options = bench_options();
    options.has_peer_access = has_access;
    FakeDriverBench bench(options);
    CUmemoryPool pool = nullptr;
    ASSERT_EQ(bench.cu.cuDeviceGetDefaultMemPool(&pool, 0), CUDA_SUCCESS);
    const auto set = [&](int device, CUmemAccess_flags flags) {
      const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};
      return bench.cu.cuMemPoolSetAccess(pool, &access, 1);
    };
    EXPECT_EQ(set(1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
              has_access ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(set(9, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_ERROR_INVALID_DEVICE);
    EXPECT_EQ(set(0, CU_MEM_ACCESS_FLAGS_PROT_NONE), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(bench.cu.cuMemPoolSetAccess(pool, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(bench.cu.cuMemPoolSetAccess(nullptr, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  }
}

TEST(DriverTable, ChecksWhatIsCopiedAndFilled) {
  FakeDriverBench bench;
  const CUdeviceptr memory = bench.memory();
  EXPECT_EQ(bench.cu.cuMemsetD16Async(memory + 1, 0, 1, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemsetD32Async(memory + 2, 0, 1, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemsetD32Async(memory, 0, ~std::size_t{0}, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemsetD8Async(0, 0, 8, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemsetD8Async(memory, 0, 0, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuMemsetD2D8Async(memory, 4, 0, 8, 2, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemsetD2D16Async(memory, 5, 0, 2, 2, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemcpyAsync(memory, 0, 8, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemcpyAsync(memory, memory + 4, 8, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemcpyAsync(0, 0, 0, nullptr), CUDA_SUCCESS);
  CUDA_MEMCPY2D copy;
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = memory;
  copy.dstDevice = memory + 2048;
  copy.WidthInBytes = 16;
  copy.Height = 2;
  copy.srcPitch = 16;
  copy.dstPitch = 8;
  EXPECT_EQ(bench.cu.cuMemcpy2DAsync(&copy, nullptr), CUDA_ERROR_INVALID_VALUE);
  copy.dstPitch = 16;
  copy.dstXInBytes = 1;
  EXPECT_EQ(bench.cu.cuMemcpy2DAsync(&copy, nullptr), CUDA_ERROR_INVALID_VALUE);
  copy.dstXInBytes = 0;
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  EXPECT_EQ(bench.cu.cuMemcpy2DAsync(&copy, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemcpy2DAsync(nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.found(), "");
}

TEST(DriverTable, CopiesAndFillsRows) {
  FakeDriverBench bench;
  const CUdeviceptr memory = bench.memory(256);
  void* pinned = nullptr;
  ASSERT_EQ(bench.cu.cuMemHostAlloc(&pinned, 256, 0), CUDA_SUCCESS);
  const auto* bytes = static_cast<const unsigned char*>(pinned);
  ASSERT_EQ(bench.cu.cuMemsetD8Async(memory, 1, 256, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuMemsetD2D16Async(memory + 16, 64, 0x0302, 4, 3, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuMemsetD2D32Async(memory + 192, 8, 0x07060504, 2, 8, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuMemcpyAsync(number(pinned), memory, 256, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  for (std::size_t i = 0; i < 192; ++i) {
    const std::size_t x = i % 64;
    const unsigned expected = x < 16 || x >= 24 ? 1 : x % 2 == 0 ? 2 : 3;
    ASSERT_EQ(bytes[i], expected) << i;
  }
  for (std::size_t i = 192; i < 256; ++i) ASSERT_EQ(bytes[i], 4 + i % 4) << i;

  CUDA_MEMCPY2D copy;
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = memory;
  copy.srcXInBytes = 16;
  copy.srcY = 1;
  copy.srcPitch = 64;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = pinned;
  copy.dstPitch = 4;
  copy.WidthInBytes = 4;
  copy.Height = 2;
  ASSERT_EQ(bench.cu.cuMemcpy2DAsync(&copy, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(std::string(bytes, bytes + 8), "\2\3\2\3\2\3\2\3");
  EXPECT_EQ(bench.found(), "");
}

TEST(DriverTable, CopiesBatches) {
  FakeDriverBench bench;
  const CUstream stream = bench.stream();
  const CUdeviceptr memory = bench.memory(256);
  std::array<unsigned char, 64> source = {}, steady = {};
  source.fill(9);
  steady.fill(9);
  CUdeviceptr to[] = {memory, memory + 64};
  CUdeviceptr from[] = {number(steady.data()), number(source.data())};
  std::size_t bytes[] = {64, 64};
  std::size_t starts[] = {0, 1};
  CUmemcpyAttributes how[2];
  how[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  how[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
  const auto batch = [&](std::size_t count, std::size_t attributes, CUstream on,
                         std::size_t* failed) {
    return bench.cu.cuMemcpyBatchAsync_12080(to, from, bytes, count, how, starts, attributes,
                                             failed, on);
  };
  std::size_t failed = 7;
  const std::uint64_t hold = bench.driver.hold(stream);
  ASSERT_EQ(batch(2, 2, stream, &failed), CUDA_SUCCESS);
  // The source was read during the call, so it may change before the stream gets there.
  source.fill(1);
  bench.driver.let_go(hold);
  std::array<unsigned char, 128> result = {};
  ASSERT_EQ(bench.cu.cuMemcpyAsync(number(result.data()), memory, 128, stream), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
  for (const unsigned char byte : result) ASSERT_EQ(byte, 9);

  EXPECT_EQ(batch(2, 1, nullptr, &failed), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(failed, ~std::size_t{0});
  EXPECT_EQ(batch(0, 1, stream, &failed), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(batch(1, 2, stream, &failed), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(batch(2, 0, stream, &failed), CUDA_ERROR_INVALID_VALUE);
  starts[1] = 2;
  EXPECT_EQ(batch(2, 2, stream, &failed), CUDA_ERROR_INVALID_VALUE);
  starts[1] = 0;
  EXPECT_EQ(batch(2, 2, stream, &failed), CUDA_ERROR_INVALID_VALUE);
  starts[1] = 1;
  how[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
  EXPECT_EQ(batch(2, 2, stream, &failed), CUDA_ERROR_INVALID_VALUE);
  how[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  to[1] = 0;
  EXPECT_EQ(batch(2, 2, stream, &failed), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(failed, 1u);
  EXPECT_EQ(bench.found(), "");
}

// --- Virtual memory
// -------------------------------------------------------------------------------

struct Virtual : testing::Test {
  Virtual() {
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    EXPECT_EQ(cu.cuMemAddressReserve(&address, 4 * page_bytes, 0, 0, 0), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemCreate(&pages, page_bytes, &properties, 0), CUDA_SUCCESS);
  }
  CUresult access(CUdeviceptr at, std::size_t bytes, int device, CUmemAccess_flags flags) {
    const CUmemAccessDesc desc{{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};
    return cu.cuMemSetAccess(at, bytes, &desc, 1);
  }

  FakeDriverBench bench;
  const DriverTable& cu = bench.cu;
  CUmemAllocationProp properties;
  CUdeviceptr address = 0;
  CUmemGenericAllocationHandle pages = 0;
};
using DriverTableVirtualMemory = Virtual;

TEST_F(DriverTableVirtualMemory, ChecksSizesAndProperties) {
  std::size_t bytes = 0;
  EXPECT_EQ(
      cu.cuMemGetAllocationGranularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
      CUDA_SUCCESS);
  EXPECT_EQ(bytes, page_bytes);
  CUdeviceptr at = 0;
  CUmemGenericAllocationHandle made = 0;
  EXPECT_EQ(cu.cuMemAddressReserve(&at, 4096, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemAddressReserve(&at, 0, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemAddressReserve(&at, page_bytes, 3, 0, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemAddressReserve(&at, page_bytes, 2 * page_bytes, 0, 0),
            CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cu.cuMemAddressReserve(&at, page_bytes, 0, 0, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemAddressReserve(&at, 512 * mib, 0, 0, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cu.cuMemCreate(&made, 4096, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemCreate(&made, 64 * mib, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cu.cuMemCreate(&made, page_bytes, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  EXPECT_EQ(cu.cuMemCreate(&made, page_bytes, &properties, 0), CUDA_ERROR_NOT_SUPPORTED);
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  properties.location.id = 2;
  EXPECT_EQ(cu.cuMemCreate(&made, page_bytes, &properties, 0), CUDA_ERROR_INVALID_DEVICE);
  properties.location = {CU_MEM_LOCATION_TYPE_HOST, 0};
  EXPECT_EQ(cu.cuMemCreate(&made, page_bytes, &properties, 0), CUDA_ERROR_NOT_SUPPORTED);
  properties.type = CU_MEM_ALLOCATION_TYPE_INVALID;
  EXPECT_EQ(cu.cuMemCreate(&made, page_bytes, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemRelease(0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(DriverTableVirtualMemory, MapsWholeHandlesAndUnmapsWholeMappings) {
  EXPECT_EQ(cu.cuMemMap(address, 2 * page_bytes, 0, pages, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cu.cuMemMap(address, page_bytes, page_bytes, pages, 0), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(cu.cuMemMap(address + 4096, page_bytes, 0, pages, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemMap(address, page_bytes, 0, 77, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemMap(bench.memory(page_bytes), page_bytes, 0, pages, 0),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cu.cuMemMap(address, page_bytes, 0, pages, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemMap(address, page_bytes, 0, pages, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemAddressFree(address, 4 * page_bytes), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemUnmap(address, page_bytes / 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemUnmap(address + page_bytes, page_bytes), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemRelease(pages), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemRelease(pages), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.free_bytes(), 64 * mib - 2 * page_bytes);
  EXPECT_EQ(cu.cuMemUnmap(address, page_bytes), CUDA_SUCCESS);
  EXPECT_EQ(bench.free_bytes(), 64 * mib - page_bytes);
  EXPECT_EQ(cu.cuMemAddressFree(address, page_bytes), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemAddressFree(address, 4 * page_bytes), CUDA_SUCCESS);
}

TEST_F(DriverTableVirtualMemory, GivesNoAccessUntilItIsSet) {
  const CUdeviceptr plain = bench.memory();
  const CUfunction kernel = bench.kernel("add_one");
  std::uint32_t count = 4;
  unsigned long long flags = 7;
  const CUmemLocation here{CU_MEM_LOCATION_TYPE_DEVICE, 0};
  ASSERT_EQ(cu.cuMemMap(address, page_bytes, 0, pages, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemGetAccess(&flags, &here, address + 8), CUDA_SUCCESS);
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
  EXPECT_EQ(cu.cuMemsetD8Async(address, 1, 8, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu.cuMemcpyAsync(plain, address, 8, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(access(address, 2 * page_bytes, 0, CU_MEM_ACCESS_FLAGS_PROT_READ),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(access(address, page_bytes, 9, CU_MEM_ACCESS_FLAGS_PROT_READ),
            CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cu.cuMemSetAccess(address, page_bytes, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(access(address, page_bytes, 0, CU_MEM_ACCESS_FLAGS_PROT_READ), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemsetD8Async(address, 1, 8, nullptr), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(access(address, page_bytes, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemsetD8Async(address, 1, 64, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemcpyAsync(plain, address, 8, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(bench.launch(kernel, nullptr, {&address, &count}), CUDA_SUCCESS);
  // Access ends with the mapping.
  ASSERT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuMemUnmap(address, page_bytes), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuMemMap(address, page_bytes, 0, pages, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemsetD8Async(address, 1, 8, nullptr), CUDA_ERROR_INVALID_VALUE);
  // A kernel that touches it is found out later, and the context is of no more use.
  EXPECT_EQ(bench.launch(kernel, nullptr, {&address, &count}), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(DriverTableVirtualMemory, IsUnmappedOnlyBehindItsLastUse) {
  const CUstream stream = bench.stream();
  ASSERT_EQ(cu.cuMemMap(address, page_bytes, 0, pages, 0), CUDA_SUCCESS);
  ASSERT_EQ(access(address, page_bytes, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE), CUDA_SUCCESS);
  ASSERT_EQ(cu.cuMemsetD8Async(address, 1, 8, stream), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemUnmap(address, page_bytes), CUDA_ERROR_ASSERT);
  EXPECT_EQ(bench.found(), "TERN-S102");
  ASSERT_EQ(cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemUnmap(address, page_bytes), CUDA_SUCCESS);
}

// --- Managed memory
// -------------------------------------------------------------------------------

TEST(DriverTable, RemembersAdviceAndPrefetches) {
  FakeDriverBench bench;
  const CUdeviceptr managed = bench.managed(8192);
  const auto get = [&](CUmem_range_attribute attribute) {
    int value = 7;
    EXPECT_EQ(bench.cu.cuMemRangeGetAttribute(&value, sizeof value, attribute, managed, 4096),
              CUDA_SUCCESS);
    return value;
  };
  const CUmemLocation host{CU_MEM_LOCATION_TYPE_HOST, 0}, peer{CU_MEM_LOCATION_TYPE_DEVICE, 1},
      numa{CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  EXPECT_EQ(get(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION), device_invalid);
  EXPECT_EQ(get(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION), device_invalid);
  ASSERT_EQ(bench.cu.cuMemAdvise(managed, 4096, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, peer),
            CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuMemAdvise_8000(managed, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, 0),
            CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuMemAdvise_8000(managed, 4096, CU_MEM_ADVISE_SET_ACCESSED_BY, device_cpu),
            CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuMemAdvise(managed, 4096, CU_MEM_ADVISE_SET_ACCESSED_BY, peer), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuMemPrefetchAsync(managed, 4096, host, 0, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(get(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY), 1);
  EXPECT_EQ(get(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION), 1);
  EXPECT_EQ(get(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE), CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(get(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID), 1);
  EXPECT_EQ(get(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION), device_cpu);
  EXPECT_EQ(get(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE), CU_MEM_LOCATION_TYPE_HOST);
  int accessors[4] = {7, 7, 7, 7};
  EXPECT_EQ(bench.cu.cuMemRangeGetAttribute(accessors, sizeof accessors,
                                            CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, managed, 4096),
            CUDA_SUCCESS);
  EXPECT_EQ(accessors[0], device_cpu);
  EXPECT_EQ(accessors[1], 1);
  EXPECT_EQ(accessors[2], device_invalid);
  ASSERT_EQ(bench.cu.cuMemPrefetchAsync_8000(managed, 4096, 0, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(get(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION), 0);

  const CUdeviceptr plain = bench.memory();
  int value = 0;
  EXPECT_EQ(bench.cu.cuMemAdvise(plain, 64, CU_MEM_ADVISE_SET_READ_MOSTLY, host),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemAdvise(managed, 4096, CU_MEM_ADVISE_SET_ACCESSED_BY, numa),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemAdvise_8000(managed, 4096, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 9),
            CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(bench.cu.cuMemAdvise(managed, 4096, static_cast<CUmem_advise>(9), host),
            CUDA_ERROR_INVALID_VALUE);

  // Batches want a stream of their own, ranges, and locations that begin in order.
  const CUstream stream = bench.stream();
  CUdeviceptr ranges[] = {managed, managed + 4096 / 2};
  std::size_t sizes[] = {2048, 2048};
  CUmemLocation places[] = {host, {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
  std::size_t starts[] = {0, 1};
  EXPECT_EQ(bench.cu.cuMemPrefetchBatchAsync(ranges, sizes, 2, places, starts, 2, 0, stream),
            CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuMemDiscardBatchAsync(ranges, sizes, 2, 0, stream), CUDA_SUCCESS);
  EXPECT_EQ(
      bench.cu.cuMemDiscardAndPrefetchBatchAsync(ranges, sizes, 2, places, starts, 1, 0, stream),
      CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_EQ(get(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION), device_cpu);
  const auto refused = [&](CUresult as, std::size_t count, std::size_t place_count,
                           unsigned long long flags, CUstream on) {
    EXPECT_EQ(bench.cu.cuMemPrefetchBatchAsync(ranges, sizes, count, places, starts, place_count,
                                               flags, on),
              as);
    EXPECT_EQ(bench.cu.cuMemDiscardAndPrefetchBatchAsync(ranges, sizes, count, places, starts,
                                                         place_count, flags, on),
              as);
  };
  refused(CUDA_ERROR_INVALID_VALUE, 2, 2, 0, nullptr);
  refused(CUDA_ERROR_INVALID_VALUE, 2, 2, 1, stream);
  refused(CUDA_ERROR_INVALID_VALUE, 0, 1, 0, stream);
  refused(CUDA_ERROR_INVALID_VALUE, 2, 0, 0, stream);
  refused(CUDA_ERROR_INVALID_VALUE, 1, 2, 0, stream);
  starts[1] = 0;
  refused(CUDA_ERROR_INVALID_VALUE, 2, 2, 0, stream);
  starts[1] = 2;
  refused(CUDA_ERROR_INVALID_VALUE, 2, 2, 0, stream);
  starts[1] = 1;
  places[1].id = 9;
  refused(CUDA_ERROR_INVALID_DEVICE, 2, 2, 0, stream);
  sizes[0] = 0;
  refused(CUDA_ERROR_INVALID_VALUE, 2, 1, 0, stream);
  EXPECT_EQ(bench.cu.cuMemDiscardBatchAsync(ranges, sizes, 2, 0, stream), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemDiscardBatchAsync(nullptr, sizes, 2, 0, stream),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemDiscardBatchAsync(ranges, sizes, 2, 0, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemPrefetchAsync(plain, 64, host, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemPrefetchAsync(managed, 64, host, 1, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemPrefetchAsync_8000(managed, 64, 9, nullptr), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(
      bench.cu.cuMemRangeGetAttribute(&value, 2, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, managed, 64),
      CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(
      bench.cu.cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, plain, 64),
      CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuStreamAttachMemAsync(nullptr, managed, 0, CU_MEM_ATTACH_SINGLE),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuStreamAttachMemAsync(bench.stream(), managed, 64, CU_MEM_ATTACH_GLOBAL),
            CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr none = 0;
  EXPECT_EQ(bench.cu.cuMemAllocManaged(&none, 64, CU_MEM_ATTACH_SINGLE), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.found(), "");
}

TEST(DriverTable, PrefetchesOnlyWhereManagedMemoryIsShared) {
  FakeDriverOptions options = bench_options();
  options.sim.concurrent_managed = false;
  FakeDriverBench bench(options);
  EXPECT_EQ(bench.cu.cuMemPrefetchAsync_8000(bench.managed(), 64, 0, nullptr),
            CUDA_ERROR_INVALID_DEVICE);
}

// --- Peers
// ----------------------------------------------------------------------------------------

TEST(DriverTable, GivesKernelsTheMemoryOfPeersOnlyWithAccess) {
  FakeDriverBench bench;
  const CUfunction kernel = bench.kernel("add_one");
  ASSERT_EQ(bench.cu.cuCtxPushCurrent(bench.contexts[1]), CUDA_SUCCESS);
  CUdeviceptr abroad = bench.memory(64);
  ASSERT_EQ(bench.cu.cuMemsetD32Async(abroad, 1, 16, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuCtxSynchronize(), CUDA_SUCCESS);
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

TEST(DriverTable, CopiesBetweenPeersEitherWay) {
  FakeDriverBench bench;
  const CUstream stream = bench.stream();
  const CUdeviceptr here = bench.memory(64);
  ASSERT_EQ(bench.cu.cuCtxPushCurrent(bench.contexts[1]), CUDA_SUCCESS);
  const CUdeviceptr abroad = bench.memory(64);
  ASSERT_EQ(bench.cu.cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuMemsetD8Async(here, 5, 64, stream), CUDA_SUCCESS);
  EXPECT_EQ(
      bench.cu.cuMemcpyPeerAsync(abroad, bench.contexts[0], here, bench.contexts[0], 64, stream),
      CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemcpyPeerAsync(abroad, nullptr, here, bench.contexts[0], 64, stream),
            CUDA_ERROR_INVALID_CONTEXT);
  ASSERT_EQ(
      bench.cu.cuMemcpyPeerAsync(abroad, bench.contexts[1], here, bench.contexts[0], 64, stream),
      CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuMemcpyAsync(here, abroad, 32, stream), CUDA_SUCCESS);
  CUDA_MEMCPY2D copy;
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.srcDevice = abroad;
  copy.dstDevice = here;
  copy.srcPitch = copy.dstPitch = 16;
  copy.WidthInBytes = 8;
  copy.Height = 4;
  ASSERT_EQ(bench.cu.cuMemcpy2DAsync(&copy, stream), CUDA_SUCCESS);
  std::array<unsigned char, 64> result = {};
  ASSERT_EQ(bench.cu.cuMemcpyAsync(number(result.data()), here, 64, stream), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuStreamSynchronize(stream), CUDA_SUCCESS);
  for (const unsigned char byte : result) ASSERT_EQ(byte, 5);
  EXPECT_EQ(bench.found(), "");
}

TEST(DriverTable, HasNoPeerAccessIfItIsToldSo) {
  FakeDriverOptions options = bench_options();
  options.has_peer_access = false;
  FakeDriverBench bench(options);
  int value = 7;
  EXPECT_EQ(bench.cu.cuDeviceCanAccessPeer(&value, 0, 1), CUDA_SUCCESS);
  EXPECT_EQ(value, 0);
  EXPECT_EQ(
      bench.cu.cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 0),
      CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(bench.cu.cuCtxEnablePeerAccess(bench.contexts[1], 0),
            CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
}

// --- Kernels
// --------------------------------------------------------------------------------------

TEST(DriverTable, LoadsOnlyImagesOfItsOwn) {
  FakeDriverBench bench;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  const std::string_view unknown[] = {"sum", "nothing"};
  const std::string bad = FakeDriver::image(unknown);
  EXPECT_EQ(bench.cu.cuModuleLoadDataEx(&module,
                                        "\x7f"
                                        "ELF",
                                        0, nullptr, nullptr),
            CUDA_ERROR_INVALID_IMAGE);
  EXPECT_EQ(bench.cu.cuModuleLoadDataEx(&module, bad.c_str(), 0, nullptr, nullptr),
            CUDA_ERROR_NO_BINARY_FOR_GPU);
  EXPECT_EQ(bench.cu.cuModuleLoadDataEx(&module, nullptr, 0, nullptr, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  const CUfunction sum = bench.kernel("sum");
  EXPECT_EQ(bench.driver.live().modules, 1u);
  const std::string_view good[] = {"sum"};
  ASSERT_EQ(
      bench.cu.cuModuleLoadDataEx(&module, FakeDriver::image(good).c_str(), 0, nullptr, nullptr),
      CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuModuleGetFunction(&function, module, "add_one"), CUDA_ERROR_NOT_FOUND);
  ASSERT_EQ(bench.cu.cuModuleGetFunction(&function, module, "sum"), CUDA_SUCCESS);
  EXPECT_NE(function, sum);
  EXPECT_EQ(bench.cu.cuModuleUnload(module), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuModuleUnload(module), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(bench.cu.cuModuleGetFunction(&function, module, "sum"), CUDA_ERROR_INVALID_HANDLE);
  CUdeviceptr from = bench.memory(), to = bench.memory();
  std::uint32_t count = 0;
  EXPECT_EQ(bench.launch(function, nullptr, {&from, &to, &count}), CUDA_ERROR_INVALID_HANDLE);
}

TEST(DriverTable, ChecksLaunches) {
  FakeDriverBench bench;
  const CUfunction kernel = bench.kernel("add_one");
  CUdeviceptr memory = bench.memory();
  std::uint32_t count = 0;
  void* arguments[] = {&memory, &count};
  const auto launch = [&](unsigned grid, unsigned block, void** values, void** extra) {
    return bench.cu.cuLaunchKernel(kernel, grid, 1, 1, block, 1, 1, 0, nullptr, values, extra);
  };
  EXPECT_EQ(launch(1, 1024, arguments, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(launch(0, 1, arguments, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(1, 0, arguments, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(1, 1025, arguments, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(1, 1, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(1, 1, arguments, arguments), CUDA_ERROR_INVALID_VALUE);
  void* holes[] = {&memory, nullptr};
  EXPECT_EQ(launch(1, 1, holes, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.launch(nullptr, nullptr, {}), CUDA_ERROR_INVALID_HANDLE);
  CUlaunchConfig config;
  EXPECT_EQ(bench.cu.cuLaunchKernelEx(nullptr, kernel, arguments, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuLaunchKernelEx(&config, kernel, arguments, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  // A kernel and its stream belong to one device, and it is the current one.
  ASSERT_EQ(bench.cu.cuCtxSetCurrent(bench.contexts[1]), CUDA_SUCCESS);
  EXPECT_EQ(launch(1, 1, arguments, nullptr), CUDA_ERROR_INVALID_HANDLE);
}

TEST(DriverTable, TakesAnAddressWithoutARangeForItsWholeBlock) {
  FakeDriverBench bench;
  const CUfunction bare = bench.kernel("bare");
  const CUstream a = bench.stream(), b = bench.stream();
  CUdeviceptr memory = bench.memory();
  EXPECT_EQ(bench.launch(bare, a, {&memory}), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuMemsetD8Async(memory + 4000, 1, 8, b), CUDA_ERROR_ASSERT);
  EXPECT_EQ(bench.found(), "TERN-S101");
}

TEST(DriverTable, RefusesEverythingInTheContextOfALostDevice) {
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

// --- A program
// ------------------------------------------------------------------------------------

/// Two streams: one fills and changes a block of the pool, the other sums it up. Gives the sum.
std::uint32_t sum_on_two_streams(FakeDriverBench& bench, bool has_wait, CUresult* launched) {
  const DriverTable& cu = bench.cu;
  const CUstream produce = bench.stream(), consume = bench.stream();
  const CUevent ready = bench.event(), done = bench.event();
  const CUfunction add_one = bench.kernel("add_one"), sum = bench.kernel("sum");
  std::uint32_t count = 100;
  CUdeviceptr column = 0, total = bench.memory(4);
  void* pinned = nullptr;
  EXPECT_EQ(cu.cuMemHostAlloc(&pinned, 4, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemAllocAsync(&column, 4 * count, produce), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemsetD32Async(column, 41, count, produce), CUDA_SUCCESS);
  EXPECT_EQ(bench.launch(add_one, produce, {&column, &count}), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuEventRecord(ready, produce), CUDA_SUCCESS);
  if (has_wait) {
    EXPECT_EQ(cu.cuStreamWaitEvent(consume, ready, 0), CUDA_SUCCESS);
  }
  *launched = bench.launch(sum, consume, {&column, &total, &count});
  if (*launched == CUDA_SUCCESS) {
    EXPECT_EQ(cu.cuMemcpyAsync(number(pinned), total, 4, consume), CUDA_SUCCESS);
  }
  EXPECT_EQ(cu.cuEventRecord(done, consume), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamWaitEvent(produce, done, 0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemFreeAsync(column, produce), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuStreamSynchronize(produce), CUDA_SUCCESS);
  std::uint32_t result = 0;
  std::memcpy(&result, pinned, sizeof result);
  EXPECT_EQ(cu.cuMemFreeHost(pinned), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemFree(total), CUDA_SUCCESS);
  return result;
}

TEST(DriverTable, RunsAProgramOnTwoStreams) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    FakeDriverOptions options = bench_options();
    options.sim.seed = seed;
    options.sim.policy = Policy::mix;
    FakeDriverBench bench(options);
    CUresult launched = CUDA_ERROR_UNKNOWN;
    EXPECT_EQ(sum_on_two_streams(bench, true, &launched), 4200u);
    EXPECT_EQ(launched, CUDA_SUCCESS);
    EXPECT_EQ(bench.found(), "");
    EXPECT_TRUE(leaks(bench.driver.device(0)).empty());
  }
}

TEST(DriverTable, FindsTheWaitThatAProgramForgot) {
  FakeDriverBench bench;
  CUresult launched = CUDA_SUCCESS;
  static_cast<void>(sum_on_two_streams(bench, false, &launched));
  EXPECT_EQ(launched, CUDA_ERROR_ASSERT);
  const std::vector<Finding> all = findings(bench.driver.device(0));
  ASSERT_EQ(all.size(), 1u);
  const std::string text = all[0].text();
  // The pool's block is used on a stream that does not come after its allocation.
  EXPECT_NE(text.find("call:2 in cuLaunchKernel"), std::string::npos) << text;
  EXPECT_NE(text.find("kernel \"sum\""), std::string::npos) << text;
}

TEST(DriverTable, RunsOnInModeCollect) {
  FakeDriverOptions options = bench_options();
  options.sim.mode = Mode::collect;
  FakeDriverBench bench(options);
  CUresult launched = CUDA_ERROR_UNKNOWN;
  static_cast<void>(sum_on_two_streams(bench, false, &launched));
  EXPECT_EQ(launched, CUDA_SUCCESS);
  EXPECT_NE(bench.found(), "");
}

}  // namespace
}  // namespace tern::sim
