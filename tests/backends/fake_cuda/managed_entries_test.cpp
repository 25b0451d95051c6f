#include <gtest/gtest.h>

#include "support/fake_driver_bench.hpp"

namespace tern::sim {
namespace {

using namespace cuda;

CUresult ask(const FakeDriverBench& bench, void* data, std::size_t data_bytes,
             CUmem_range_attribute attribute, CUdeviceptr address) {
  return bench.cu.cuMemRangeGetAttributes(&data, &data_bytes, &attribute, 1, address, 4096);
}

TEST(FakeCudaManaged, RemembersAdviceAndPrefetches) {
  FakeDriverBench bench;
  const CUdeviceptr managed = bench.managed(8192);
  const auto get = [&](CUmem_range_attribute attribute) {
    int value = 7;
    EXPECT_EQ(ask(bench, &value, sizeof value, attribute, managed), CUDA_SUCCESS);
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
  EXPECT_EQ(ask(bench, accessors, sizeof accessors, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, managed),
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
  EXPECT_EQ(ask(bench, &value, 2, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, managed),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(ask(bench, &value, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, plain),
            CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr none = 0;
  EXPECT_EQ(bench.cu.cuMemAllocManaged(&none, 64, CU_MEM_ATTACH_SINGLE), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.found(), "");
}

TEST(FakeCudaManaged, PrefetchesOnlyWhereManagedMemoryIsShared) {
  FakeDriverOptions options = bench_options();
  options.sim.concurrent_managed = false;
  FakeDriverBench bench(options);
  EXPECT_EQ(bench.cu.cuMemPrefetchAsync_8000(bench.managed(), 64, 0, nullptr),
            CUDA_ERROR_INVALID_DEVICE);
}

}  // namespace
}  // namespace tern::sim
