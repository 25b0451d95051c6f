// Thrust, CUB and CCCL of the installed toolkit on memory of Tern. scripts/gpu-test compiles this
// with nvcc, runs it, and shows its last line.

#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE  // CCCL before 3.1
#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cub/device/device_scan.cuh>
#include <cuda/memory_resource>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "tern/backends/catalog.hpp"
#include "tern/device/stream.hpp"
#include "tern/interop/cuda_mr.hpp"
#include "tern/interop/thrust.hpp"
#include "tern/memory/budget.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/pool_resource.hpp"

namespace {

using DeviceMemory = tern::CudaMrAdapter<cuda::mr::device_accessible>;
static_assert(cuda::mr::resource_with<DeviceMemory, cuda::mr::device_accessible>);
static_assert(!cuda::mr::resource_with<DeviceMemory, cuda::mr::host_accessible>);
#if CCCL_VERSION >= 3001000
using MemoryReference = cuda::mr::resource_ref<cuda::mr::device_accessible>;
void* allocate(MemoryReference memory, cudaStream_t stream, std::size_t bytes) {
  return memory.allocate(cuda::stream_ref(stream), bytes, 256);
}
void deallocate(MemoryReference memory, cudaStream_t stream, void* address, std::size_t bytes) {
  memory.deallocate(cuda::stream_ref(stream), address, bytes, 256);
}
#else
using MemoryReference = cuda::mr::async_resource_ref<cuda::mr::device_accessible>;
void* allocate(MemoryReference memory, cudaStream_t stream, std::size_t bytes) {
  return memory.allocate_async(bytes, 256, cuda::stream_ref(stream));
}
void deallocate(MemoryReference memory, cudaStream_t stream, void* address, std::size_t bytes) {
  memory.deallocate_async(address, bytes, 256, cuda::stream_ref(stream));
}
#endif

using IntAllocator = tern::ThrustAllocator<thrust::device_ptr<int>>;
using IntVector = thrust::device_vector<int, IntAllocator>;

constexpr int count = 1 << 20;

void expect(bool is_true, const char* what) {
  if (!is_true) throw std::runtime_error(what);
}
void expect(cudaError_t error, const char* what) { expect(error == cudaSuccess, what); }

void sort_and_scan(const std::shared_ptr<tern::PoolResource>& pool) {
  IntVector keys(count, IntAllocator(pool));
  thrust::sequence(keys.rbegin(), keys.rend());
  IntVector sums(count, IntAllocator(pool));
  // The vectors are initialized on the default stream.
  expect(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");

  const tern::Stream stream(pool->device());
  tern::ThrustScratch scratch(pool, stream, "thrust");
  const std::uint64_t requests = pool->statistics().requests;
  thrust::sort(scratch.on(thrust::cuda::par_nosync), keys.begin(), keys.end());
  thrust::inclusive_scan(scratch.on(thrust::cuda::par_nosync), keys.begin(), keys.end(),
                         sums.begin());
  stream.synchronize();
  expect(pool->statistics().requests > requests, "temporary storage is not from the pool");
  expect(keys[0] == 0 && keys[count - 1] == count - 1, "thrust::sort");
  expect(sums[4] == 10, "thrust::inclusive_scan");

  const int* const in = thrust::raw_pointer_cast(keys.data());
  int* const out = thrust::raw_pointer_cast(sums.data());
  expect(tern::with_cub_storage(pool, stream,
                                [&](void* storage, std::size_t& bytes, cudaStream_t on) {
                                  return cub::DeviceScan::ExclusiveSum(storage, bytes, in, out,
                                                                       count, on);
                                }),
         "cub::DeviceScan");
  stream.synchronize();
  expect(sums[5] == 10, "cub::DeviceScan::ExclusiveSum");
}

void allocate_on_streams(const std::shared_ptr<tern::PoolResource>& pool) {
  cudaStream_t own = nullptr;
  expect(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  DeviceMemory memory(pool, "cccl");
  const MemoryReference reference(memory);
  for (const cudaStream_t stream : {own, cudaStream_t{}, cudaStreamLegacy, cudaStreamPerThread}) {
    std::vector<void*> blocks;
    for (int i = 0; i < 100; ++i) {
      void* const address = allocate(reference, stream, 1 << 20);
      expect(cudaMemsetAsync(address, i, 1 << 20, stream), "cudaMemsetAsync");
      blocks.push_back(address);
      if (i % 3 != 0) continue;
      deallocate(reference, stream, blocks.front(), 1 << 20);
      blocks.erase(blocks.begin());
    }
    for (void* const address : blocks) deallocate(reference, stream, address, 1 << 20);
    expect(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }
  expect(cudaStreamDestroy(own), "cudaStreamDestroy");
  expect(memory.mistaken_frees() == 0, "a free was not accepted");
}

// A budget of Tern above a memory resource of the libraries, and the error below a budget.
void nest(const std::shared_ptr<tern::PoolResource>& pool) {
  DeviceMemory memory(pool);
  const auto upstream = std::make_shared<tern::CudaMrUpstream<MemoryReference>>(
      pool->device(), MemoryReference(memory));
  DeviceMemory limited(std::make_shared<tern::BudgetResource>(
      upstream, tern::Budget::make("thrust", tern::BudgetLimit::bytes(1 << 20))));
  MemoryReference reference(limited);
  void* const address = allocate(reference, nullptr, 1 << 20);
  bool is_refused = false;
  try {
    static_cast<void>(allocate(reference, nullptr, 1 << 20));
  } catch (const std::bad_alloc&) {
    is_refused = true;
  }
  expect(is_refused, "a request above the budget was served");
  deallocate(reference, nullptr, address, 1 << 20);
}

}  // namespace

int main() try {
  const tern::Device device = tern::open_device("cuda:0");
  const auto pool = std::make_shared<tern::PoolResource>(device);
  sort_and_scan(pool);
  allocate_on_streams(pool);
  nest(pool);
  const tern::Statistics statistics = pool->statistics();
  expect(statistics.live_blocks == 0, "a block was not freed");
  std::printf("CCCL %d: %llu requests, %.1f %% from memory that the pool held\n", CCCL_VERSION,
              static_cast<unsigned long long>(statistics.requests), 100 * statistics.hit_rate());
} catch (const std::exception& error) {
  std::printf("%s\n", error.what());
  return 1;
}
