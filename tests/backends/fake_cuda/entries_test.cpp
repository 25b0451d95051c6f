#include "backends/fake_cuda/entries.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <iostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/fake_driver_bench.hpp"

namespace tern::sim {
namespace {

using namespace cuda;

CUdeviceptr device_address(const void* address) { return reinterpret_cast<CUdeviceptr>(address); }

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
    TERN_STEP(cuDeviceGetCount(&value));
    CUdevice device = 7;
    TERN_STEP(cuDeviceGet(&device, 0));
    TERN_STEP(cuDeviceGetName(text, sizeof text, device));
    TERN_STEP(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, device));
    TERN_STEP(cuDeviceTotalMem(&size, device));
    TERN_STEP(cuDeviceCanAccessPeer(&value, 0, 1));
    return contexts();
  }

  CUresult contexts() {
    CUcontext peer = nullptr;
    TERN_STEP(cuDevicePrimaryCtxRetain(&context_, 0));
    TERN_STEP(cuDevicePrimaryCtxRetain(&peer, 1));
    TERN_STEP(cuCtxPushCurrent(context_));
    TERN_UNDO(cuCtxPopCurrent(nullptr));
    int least = 0, greatest = 0;
    CUcontext current = nullptr;
    TERN_STEP(cuCtxGetCurrent(&current));
    TERN_STEP(cuCtxSetCurrent(current));
    TERN_STEP(cuCtxGetStreamPriorityRange(&least, &greatest));
    TERN_STEP(cuCtxEnablePeerAccess(peer, 0));
    TERN_STEP(cuCtxDisablePeerAccess(peer));
    return streams(peer);
  }

  CUresult streams(CUcontext peer) {
    CUstream stream = nullptr;
    CUevent first = nullptr, last = nullptr;
    TERN_STEP(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -1));
    TERN_UNDO(cuStreamDestroy(stream));
    unsigned flags = 0;
    CUcontext context = nullptr;
    unsigned long long id = 0;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    TERN_STEP(cuStreamGetFlags(stream, &flags));
    TERN_STEP(cuStreamGetCtx(stream, &context));
    TERN_STEP(cuStreamGetId(stream, &id));
    TERN_STEP(cuStreamIsCapturing(stream, &status));
    TERN_STEP(cuCtxSynchronize());
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
    TERN_UNDO(cuStreamSynchronize(stream));
    return memory(stream, peer);
  }

  CUresult memory(CUstream stream, CUcontext peer) {
    std::size_t free = 0, total = 0;
    CUdeviceptr plain = 0, base = 0, pooled = 0;
    void* pinned = nullptr;
    TERN_STEP(cuMemGetInfo(&free, &total));
    TERN_STEP(cuMemAlloc(&plain, 4096));
    TERN_UNDO(cuMemFree(plain));
    TERN_STEP(cuMemHostAlloc(&pinned, 4096, host_alloc_portable));
    TERN_UNDO(cuMemFreeHost(pinned));
    TERN_STEP(cuMemHostRegister(host_.data(), host_.size(), 0));
    TERN_UNDO(cuMemHostUnregister(host_.data()));
    TERN_UNDO(cuStreamSynchronize(stream));
    TERN_STEP(cuMemHostGetDevicePointer(&base, pinned, 0));
    unsigned flags = 0;
    CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    void* data = &flags;
    TERN_STEP(cuPointerGetAttributes(1, &attribute, &data, plain));
    CUmemPoolProps kind;
    kind.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemoryPool pool = nullptr;
    TERN_STEP(cuMemPoolCreate(&pool, &kind));
    TERN_UNDO(cuMemPoolDestroy(pool));
    TERN_STEP(cuMemAllocFromPoolAsync(&pooled, 4096, pool, stream));
    TERN_UNDO(cuMemFreeAsync(pooled, stream));
    TERN_STEP(cuMemsetD8Async(plain, 1, 64, stream));
    TERN_STEP(cuMemsetD16Async(plain, 1, 32, stream));
    TERN_STEP(cuMemsetD32Async(plain, 1, 1024, stream));
    TERN_STEP(cuMemsetD2D8Async(plain, 64, 1, 32, 4, stream));
    TERN_STEP(cuMemcpyAsync(device_address(pinned), plain, 4096, stream));
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
    std::uint64_t threshold = 1 << 20;
    TERN_STEP(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    TERN_STEP(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                 CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    TERN_STEP(cuMemPoolSetAccess(pool, &access, 1));
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
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle shared = 0, imported = 0;
    TERN_STEP(cuMemCreate(&shared, granularity, &properties, 0));
    TERN_UNDO(cuMemRelease(shared));
    int file = -1;
    TERN_STEP(
        cuMemExportToShareableHandle(&file, shared, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    undo_.emplace_back([file] {
      close(file);
      return CUDA_SUCCESS;
    });
    TERN_STEP(cuMemImportFromShareableHandle(
        &imported, reinterpret_cast<void*>(static_cast<std::intptr_t>(file)),
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    TERN_UNDO(cuMemRelease(imported));
    TERN_STEP(cuMemMap(address, granularity, 0, pages, 0));
    TERN_UNDO(cuMemUnmap(address, granularity));
    const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                 CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    TERN_STEP(cuMemSetAccess(address, granularity, &access, 1));
    TERN_STEP(cuMemsetD8Async(address, 1, 64, stream));
    TERN_UNDO(cuStreamSynchronize(stream));
    return managed_memory(stream);
  }

  CUresult managed_memory(CUstream stream) {
    CUdeviceptr managed = 0;
    TERN_STEP(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
    TERN_UNDO(cuMemFree(managed));
    TERN_UNDO(cuStreamSynchronize(stream));
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
    TERN_STEP(cuMemRangeGetAttributes(&data, &data_bytes, &attribute, 1, managed, 4096));
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
    TERN_STEP(cuStreamSynchronize(stream));
    EXPECT_EQ(*reinterpret_cast<std::uint32_t*>(memory), 2u);
    return graphs(stream, memory);
  }

  CUresult graphs(CUstream stream, CUdeviceptr memory) {
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    TERN_STEP(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    is_captured_ = true;
    undo_.emplace_back([stream, this] { return end_capture(stream); });
    TERN_STEP(cuMemsetD32Async(memory, 3, 16, stream));
    TERN_STEP(cuStreamEndCapture(stream, &graph));
    is_captured_ = false;
    TERN_UNDO(cuGraphDestroy(graph));
    TERN_STEP(cuGraphInstantiateWithFlags(&executable, graph, 0));
    TERN_UNDO(cuGraphExecDestroy(executable));
    TERN_STEP(cuGraphLaunch(executable, stream));
    TERN_STEP(cuStreamSynchronize(stream));
    EXPECT_EQ(*reinterpret_cast<std::uint32_t*>(memory), 3u);
    return CUDA_SUCCESS;
  }

  CUresult end_capture(CUstream stream) {
    if (is_captured_) {
      const CUresult ended = cu.cuStreamEndCapture(stream, &left_);
      // A device that fails ends the capture all the same.
      if (ended != CUDA_SUCCESS && ended != CUDA_ERROR_ILLEGAL_STATE) return ended;
      is_captured_ = false;
    }
    if (left_ == nullptr) return CUDA_SUCCESS;
    const CUresult destroyed = cu.cuGraphDestroy(left_);
    if (destroyed == CUDA_SUCCESS) left_ = nullptr;
    return destroyed;
  }
#undef TERN_STEP
#undef TERN_UNDO

  const DriverTable& cu;
  CUcontext context_ = nullptr;
  std::vector<std::byte> host_ = std::vector<std::byte>(4096);
  std::vector<std::function<CUresult()>> undo_;
  CUresult first_ = CUDA_SUCCESS;
  bool is_captured_ = false;
  CUgraph left_ = nullptr;
};

/// Contexts stay retained: the CUDA backend never releases one.
LiveHandles live_but_contexts(const FakeDriver& driver) {
  LiveHandles live = driver.live();
  live.contexts = 0;
  return live;
}

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
  EXPECT_EQ(live_but_contexts(driver), LiveHandles{});
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
      EXPECT_EQ(live_but_contexts(driver), LiveHandles{});
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
      EXPECT_EQ(live_but_contexts(driver), LiveHandles{});
      EXPECT_TRUE(leaks(driver.device(0)).empty());
      EXPECT_TRUE(findings(driver.device(0)).empty());
    }
  }
}

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
  EXPECT_EQ(cu.cuMemAllocFromPoolAsync(&column, 4 * count, bench.pool(), produce), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuMemsetD32Async(column, 41, count, produce), CUDA_SUCCESS);
  EXPECT_EQ(bench.launch(add_one, produce, {&column, &count}), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuEventRecord(ready, produce), CUDA_SUCCESS);
  if (has_wait) {
    EXPECT_EQ(cu.cuStreamWaitEvent(consume, ready, 0), CUDA_SUCCESS);
  }
  *launched = bench.launch(sum, consume, {&column, &total, &count});
  if (*launched == CUDA_SUCCESS) {
    EXPECT_EQ(cu.cuMemcpyAsync(device_address(pinned), total, 4, consume), CUDA_SUCCESS);
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
