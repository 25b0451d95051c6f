#include <gtest/gtest.h>

#include <vector>

#include "support/fake_driver_bench.hpp"

namespace tern::sim {
namespace {

using namespace cuda;

CUdeviceptr number(const void* address) { return reinterpret_cast<CUdeviceptr>(address); }

TEST(FakeCudaMemory, RunsOutOfMemoryAndSaysHowMuchIsFree) {
  FakeDriverBench bench;
  const std::size_t free = bench.free_bytes();
  EXPECT_EQ(free, 64 * mib);
  CUdeviceptr none = 0;
  EXPECT_EQ(bench.cu.cuMemAlloc(&none, 65 * mib), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(bench.cu.cuMemAlloc(&none, ~std::size_t{0}), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(bench.cu.cuMemAllocFromPoolAsync(&none, 65 * mib, bench.pool(), nullptr),
            CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(bench.cu.cuMemAlloc(&none, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemAlloc(nullptr, 64), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(none, 0u);
  const CUdeviceptr memory = bench.memory(16 * mib);
  EXPECT_EQ(memory % 512, 0u);
  EXPECT_EQ(bench.free_bytes(), 48 * mib);
  EXPECT_EQ(bench.cu.cuMemFree(memory), CUDA_SUCCESS);
  EXPECT_EQ(bench.free_bytes(), free);
}

TEST(FakeCudaMemory, FreesOnlyWhatItGaveAndOnlyOnce) {
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
}

TEST(FakeCudaMemory, RegistersHostMemoryOnce) {
  FakeDriverBench bench;
  std::vector<std::byte> host(8192);
  void* pinned = nullptr;
  ASSERT_EQ(bench.cu.cuMemHostAlloc(&pinned, 64, host_alloc_write_combined), CUDA_SUCCESS);
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
  CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
  void* answer = &type;
  EXPECT_EQ(bench.cu.cuPointerGetAttributes(1, &attribute, &answer, number(host.data() + 1100)),
            CUDA_SUCCESS);
  EXPECT_EQ(type, CU_MEMORYTYPE_HOST);
  EXPECT_EQ(bench.cu.cuMemHostUnregister(host.data() + 1024), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuMemHostUnregister(host.data() + 1024),
            CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

TEST(FakeCudaMemory, KnowsWhereAnAddressBelongs) {
  FakeDriverBench bench;
  const CUdeviceptr plain = bench.memory(4096), managed = bench.managed(4096);
  CUdeviceptr pooled = 0;
  void* pinned = nullptr;
  const CUmemoryPool pool = bench.pool();
  ASSERT_EQ(bench.cu.cuMemAllocFromPoolAsync(&pooled, 4096, pool, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuMemHostAlloc(&pinned, 4096, 0), CUDA_SUCCESS);
  const auto ask = [&](CUpointer_attribute attribute, CUdeviceptr address) {
    std::uint64_t answer = 0;
    void* data = &answer;
    EXPECT_EQ(bench.cu.cuPointerGetAttributes(1, &attribute, &data, address), CUDA_SUCCESS);
    return answer;
  };
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, plain), CU_MEMORYTYPE_DEVICE);
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, managed), CU_MEMORYTYPE_DEVICE);
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, number(pinned)), CU_MEMORYTYPE_HOST);
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_IS_MANAGED, managed), 1u);
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_IS_MANAGED, plain), 0u);
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, plain + 99), plain);
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_RANGE_SIZE, plain + 99), 4096u);
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, plain), 0u);
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, pooled), number(pool));

  std::byte heap[8] = {};
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

}  // namespace
}  // namespace tern::sim
