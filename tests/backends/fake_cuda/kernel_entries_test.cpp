#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "support/fake_driver_bench.hpp"

namespace tern::sim {
namespace {

using namespace cuda;

TEST(FakeCudaKernels, LoadsOnlyImagesOfItsOwn) {
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

TEST(FakeCudaKernels, ChecksLaunches) {
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
  // A kernel and its stream belong to one device, and it is the current one.
  ASSERT_EQ(bench.cu.cuCtxSetCurrent(bench.contexts[1]), CUDA_SUCCESS);
  EXPECT_EQ(launch(1, 1, arguments, nullptr), CUDA_ERROR_INVALID_HANDLE);
}

TEST(FakeCudaKernels, TakesAnAddressWithoutARangeForItsWholeBlock) {
  FakeDriverBench bench;
  const CUfunction bare = bench.kernel("bare");
  const CUstream a = bench.stream(), b = bench.stream();
  CUdeviceptr memory = bench.memory();
  EXPECT_EQ(bench.launch(bare, a, {&memory}), CUDA_SUCCESS);
  EXPECT_EQ(bench.cu.cuMemsetD8Async(memory + 4000, 1, 8, b), CUDA_ERROR_ASSERT);
  EXPECT_EQ(bench.found(), "TERN-S101");
}

}  // namespace
}  // namespace tern::sim
