// A fake driver with a table, a context and two kernels, for tests of the driver and its table.

#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backends/fake_cuda/fake_driver.hpp"
#include "tern/core/bytes.hpp"

namespace tern::sim {

inline constexpr std::size_t page_bytes = 2 * mib;

inline const std::vector<FakeKernel>& bench_kernels() {
  static const std::vector<FakeKernel> kernels = {
      {"add_one",
       [](const KernelCall& call) {
         auto* values = call.argument<std::uint32_t*>(0);
         for (std::uint32_t i = 0; i < call.argument<std::uint32_t>(1); ++i) ++values[i];
       },
       {{8, Access::read_write, 1, 4}, {4}}},
      {"sum",
       [](const KernelCall& call) {
         const auto* values = call.argument<const std::uint32_t*>(0);
         std::uint32_t total = 0;
         for (std::uint32_t i = 0; i < call.argument<std::uint32_t>(2); ++i) total += values[i];
         *call.argument<std::uint32_t*>(1) = total;
       },
       {{8, Access::read, 2, 4}, {8, Access::discard}, {4}}},
      {"bare", [](const KernelCall&) {}, {{8}}},
  };
  return kernels;
}

inline FakeDriverOptions bench_options() {
  FakeDriverOptions options;
  options.sim.policy = Policy::lazy;
  options.sim.memory_bytes = 64 * mib;
  options.device_count = 2;
  options.kernels = bench_kernels();
  return options;
}

struct FakeDriverBench {
  explicit FakeDriverBench(const FakeDriverOptions& options = bench_options()) : driver(options) {
    EXPECT_EQ(cu.cuInit(0), cuda::CUDA_SUCCESS);
    for (std::size_t i = 0; i < options.device_count; ++i) {
      EXPECT_EQ(cu.cuDevicePrimaryCtxRetain(&contexts[i], static_cast<int>(i)), cuda::CUDA_SUCCESS);
    }
    EXPECT_EQ(cu.cuCtxSetCurrent(contexts[0]), cuda::CUDA_SUCCESS);
  }

  cuda::CUstream stream(unsigned flags = cuda::CU_STREAM_NON_BLOCKING) {
    cuda::CUstream made = nullptr;
    EXPECT_EQ(cu.cuStreamCreateWithPriority(&made, flags, 0), cuda::CUDA_SUCCESS);
    return made;
  }
  cuda::CUevent event(unsigned flags = cuda::CU_EVENT_DISABLE_TIMING) {
    cuda::CUevent made = nullptr;
    EXPECT_EQ(cu.cuEventCreate(&made, flags), cuda::CUDA_SUCCESS);
    return made;
  }
  cuda::CUdeviceptr memory(std::size_t bytes = 4096) {
    cuda::CUdeviceptr made = 0;
    EXPECT_EQ(cu.cuMemAlloc(&made, bytes), cuda::CUDA_SUCCESS);
    return made;
  }
  cuda::CUdeviceptr managed(std::size_t bytes = 4096) {
    cuda::CUdeviceptr made = 0;
    EXPECT_EQ(cu.cuMemAllocManaged(&made, bytes, cuda::CU_MEM_ATTACH_GLOBAL), cuda::CUDA_SUCCESS);
    return made;
  }
  cuda::CUmemoryPool pool(int device = 0) {
    cuda::CUmemPoolProps kind;
    kind.allocType = cuda::CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location = {cuda::CU_MEM_LOCATION_TYPE_DEVICE, device};
    cuda::CUmemoryPool made = nullptr;
    EXPECT_EQ(cu.cuMemPoolCreate(&made, &kind), cuda::CUDA_SUCCESS);
    return made;
  }
  cuda::CUfunction kernel(std::string_view name) {
    const std::string_view names[] = {name};
    const std::string image = FakeDriver::image(names);
    cuda::CUmodule module = nullptr;
    cuda::CUfunction function = nullptr;
    EXPECT_EQ(cu.cuModuleLoadDataEx(&module, image.c_str(), 0, nullptr, nullptr),
              cuda::CUDA_SUCCESS);
    EXPECT_EQ(cu.cuModuleGetFunction(&function, module, std::string(name).c_str()),
              cuda::CUDA_SUCCESS);
    return function;
  }
  cuda::CUresult launch(cuda::CUfunction function, cuda::CUstream on,
                        std::vector<void*> arguments) {
    return cu.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, on, arguments.data(), nullptr);
  }
  [[nodiscard]] std::string found() const {
    std::string codes;
    for (const Finding& finding : findings(driver.device(0))) {
      codes += (codes.empty() ? "" : " ") + code_text(finding.code);
    }
    return codes;
  }
  [[nodiscard]] std::size_t free_bytes() const {
    std::size_t free = 0, total = 0;
    EXPECT_EQ(cu.cuMemGetInfo(&free, &total), cuda::CUDA_SUCCESS);
    return free;
  }

  FakeDriver driver;
  const cuda::DriverTable& cu = driver.table();
  cuda::CUcontext contexts[2] = {};
};

}  // namespace tern::sim
