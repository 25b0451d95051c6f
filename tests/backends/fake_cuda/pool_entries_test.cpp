#include <gtest/gtest.h>

#include "support/fake_driver_bench.hpp"

namespace tern::sim {
namespace {

using namespace cuda;

TEST(FakeCudaPools, CountsWhatItsPoolHasGivenOut) {
  FakeDriverBench bench;
  const CUmemoryPool pool = bench.pool();
  const auto get = [&](CUmemPool_attribute attribute) {
    std::uint64_t value = 0;
    EXPECT_EQ(bench.cu.cuMemPoolGetAttribute(pool, attribute, &value), CUDA_SUCCESS);
    return value;
  };
  CUdeviceptr memory = 0;
  ASSERT_EQ(bench.cu.cuMemAllocFromPoolAsync(&memory, 4096, pool, nullptr), CUDA_SUCCESS);
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
  EXPECT_EQ(bench.cu.cuMemPoolSetAttribute(nullptr, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &value),
            CUDA_ERROR_INVALID_VALUE);
}

TEST(FakeCudaPools, MakesPoolsOfOnesOwn) {
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
  CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE;
  void* data = &owner;
  ASSERT_EQ(bench.cu.cuPointerGetAttributes(1, &attribute, &data, memory + 64), CUDA_SUCCESS);
  EXPECT_EQ(owner, pool);
  std::uint64_t used = 0;
  ASSERT_EQ(bench.cu.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used),
            CUDA_SUCCESS);
  EXPECT_EQ(used, 4096u);
  const CUmemoryPool other = bench.pool();
  ASSERT_EQ(bench.cu.cuMemPoolGetAttribute(other, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used),
            CUDA_SUCCESS);
  EXPECT_EQ(used, 0u);
  ASSERT_EQ(bench.cu.cuMemFreeAsync(memory, nullptr), CUDA_SUCCESS);

  ASSERT_EQ(bench.cu.cuMemPoolDestroy(pool), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemAllocFromPoolAsync(&memory, 64, pool, nullptr), CUDA_ERROR_INVALID_VALUE);
  // Of another device than the thread's.
  kind.location.id = 1;
  ASSERT_EQ(bench.cu.cuMemPoolCreate(&pool, &kind), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuMemAllocFromPoolAsync(&memory, 64, pool, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST(FakeCudaPools, APoolHoldsNoMoreThanItsMaximum) {
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

TEST(FakeCudaPools, EachPeakOfAPoolIsResetForItself) {
  FakeDriverBench bench;
  const CUmemoryPool pool = bench.pool();
  CUdeviceptr memory = 0;
  ASSERT_EQ(bench.cu.cuMemAllocFromPoolAsync(&memory, 4096, pool, nullptr), CUDA_SUCCESS);
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

TEST(FakeCudaPools, LetsPeersUseAPool) {
  for (const bool has_access : {false, true}) {
    FakeDriverOptions options = bench_options();
    options.has_peer_access = has_access;
    FakeDriverBench bench(options);
    const CUmemoryPool pool = bench.pool();
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

}  // namespace
}  // namespace tern::sim
