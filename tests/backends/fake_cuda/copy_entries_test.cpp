#include <gtest/gtest.h>

#include <array>
#include <string>

#include "support/fake_driver_bench.hpp"

namespace tern::sim {
namespace {

using namespace cuda;

CUdeviceptr number(const void* address) { return reinterpret_cast<CUdeviceptr>(address); }

TEST(FakeCudaCopies, ChecksWhatIsCopiedAndFilled) {
  FakeDriverBench bench;
  const CUdeviceptr memory = bench.memory();
  EXPECT_EQ(bench.cu.cuMemsetD16Async(memory + 1, 0, 1, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemsetD32Async(memory + 2, 0, 1, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemsetD32Async(memory, 0, ~std::size_t{0}, nullptr),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemsetD8Async(0, 0, 8, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(bench.cu.cuMemsetD8Async(memory, 0, 0, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuMemsetD2D8Async(memory, 4, 0, 8, 2, nullptr), CUDA_ERROR_INVALID_VALUE);
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

TEST(FakeCudaCopies, CopiesAndFillsRows) {
  FakeDriverBench bench;
  const CUdeviceptr memory = bench.memory(256);
  void* pinned = nullptr;
  ASSERT_EQ(bench.cu.cuMemHostAlloc(&pinned, 256, 0), CUDA_SUCCESS);
  const auto* bytes = static_cast<const unsigned char*>(pinned);
  ASSERT_EQ(bench.cu.cuMemsetD8Async(memory, 1, 256, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuMemsetD2D8Async(memory + 16, 64, 2, 8, 3, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuMemsetD2D8Async(memory + 192, 8, 4, 8, 8, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuMemcpyAsync(number(pinned), memory, 256, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(bench.cu.cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  for (std::size_t i = 0; i < 192; ++i) {
    const std::size_t x = i % 64;
    ASSERT_EQ(bytes[i], x < 16 || x >= 24 ? 1u : 2u) << i;
  }
  for (std::size_t i = 192; i < 256; ++i) ASSERT_EQ(bytes[i], 4u) << i;

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
  EXPECT_EQ(std::string(bytes, bytes + 8), "\2\2\2\2\2\2\2\2");
  EXPECT_EQ(bench.found(), "");
}

TEST(FakeCudaCopies, CopiesBatches) {
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
  bench.driver.resume(hold);
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

TEST(FakeCudaCopies, CopiesBetweenPeersEitherWay) {
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

}  // namespace
}  // namespace tern::sim
