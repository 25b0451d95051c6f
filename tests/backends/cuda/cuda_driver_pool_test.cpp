#include "backends/cuda/cuda_driver_pool.hpp"

#include <gtest/gtest.h>

#include "support/cuda_bench.hpp"

namespace tern::cuda {
namespace {

TEST(CudaDriverPool, KeepsEverythingUnlessToldOtherwise) {
  CudaBench bench;
  DriverPoolInfo info = bench.device().driver_pool().value();
  EXPECT_EQ(info.release_threshold_bytes, ~std::size_t{0});
  EXPECT_EQ(info.max_bytes, 0u);
  EXPECT_EQ(why(bench.device().set_driver_pool({.release_threshold_bytes = 4096})), "");
  info = bench.device().driver_pool().value();
  EXPECT_EQ(info.release_threshold_bytes, 4096u);
  EXPECT_EQ(bench.fake.calls("cuMemPoolCreate"), 1u) << "one pool for all of it";
}

TEST(CudaDriverPool, CountsWhatIsAllocatedAndBeginsPeaksAnew) {
  CudaBench bench;
  const NativeStream stream = bench.stream();
  void* const block = bench.device().allocate_async({stream}, 5000, 256).value();
  DriverPoolInfo info = bench.device().driver_pool().value();
  EXPECT_EQ(info.used_bytes, 5000u);
  EXPECT_EQ(info.peak_used_bytes, 5000u);
  EXPECT_EQ(why(bench.device().release_async({stream}, block)), "");
  bench.synchronize();
  info = bench.device().driver_pool().value();
  EXPECT_EQ(info.used_bytes, 0u);
  EXPECT_EQ(info.peak_used_bytes, 5000u);
  EXPECT_EQ(info.peak_reserved_bytes, 5000u);
  EXPECT_EQ(why(bench.device().reset_driver_pool_peaks()), "");
  info = bench.device().driver_pool().value();
  EXPECT_EQ(info.peak_used_bytes, 0u);
  EXPECT_EQ(info.peak_reserved_bytes, 0u);
}

TEST(CudaDriverPool, TheMaximumIsFixedWhenThePoolIsMade) {
  CudaBench bench;
  const NativeStream stream = bench.stream();
  EXPECT_EQ(why(bench.device().set_driver_pool({.max_bytes = 8192})), "");
  EXPECT_EQ(bench.device().driver_pool().value().max_bytes, 8192u);
  void* const block = bench.device().allocate_async({stream}, 8192, 256).value();
  EXPECT_EQ(code(bench.device().allocate_async({stream}, 256, 256)), "out_of_memory");
  EXPECT_EQ(why(bench.device().set_driver_pool({.max_bytes = 8192})), "") << "nothing changes";
  const Result<void> refused = bench.device().set_driver_pool({.max_bytes = 16384});
  ASSERT_EQ(code(refused), "invalid_argument");
  EXPECT_EQ(refused.failure().string("name"), "max_bytes");
  EXPECT_EQ(bench.device().driver_pool().value().max_bytes, 8192u);
  EXPECT_EQ(why(bench.device().release_async({stream}, block)), "");
  bench.synchronize();
}

TEST(CudaDriverPool, APeerUsesItsMemoryOnceItMay) {
  PeerBench bench(true);
  const NativeStream stream = bench.stream();
  void* const block = bench.device().allocate_async({stream}, 256, 256).value();
  bench.synchronize();
  EXPECT_EQ(why(bench.device().set_driver_pool_access(bench.device(1), true)), "");
  EXPECT_EQ(bench.fake.calls("cuMemPoolSetAccess"), 1u);
  bench.fill(block, 256, 1, stream);
  bench.synchronize();
  EXPECT_EQ(why(bench.add_one(1, block)), "");
  bench.synchronize(1);
  EXPECT_EQ(why(bench.device().set_driver_pool_access(bench.device(1), false)), "");
  EXPECT_EQ(why(bench.device().release_async({stream}, block)), "");
  bench.synchronize();
}

TEST(CudaDriverPool, APeerThatCannotIsRefusedBeforeTheDriverHearsOfIt) {
  PeerBench bench(false);
  const Result<void> refused = bench.device().set_driver_pool_access(bench.device(1), true);
  ASSERT_EQ(code(refused), "unsupported");
  EXPECT_EQ(refused.failure().string("peer"), "cuda:1?driver=sim");
  EXPECT_EQ(bench.fake.calls("cuMemPoolSetAccess"), 0u);
}

TEST(CudaDriverPool, TellsWhichCallTheDriverRefused) {
  CudaBench bench;
  EXPECT_EQ(why(bench.device().driver_pool()), "");
  for (const char* failing : {"cuMemPoolGetAttribute", "cuMemPoolSetAttribute"}) {
    bench.fake.fail_call(failing, 1, CUDA_ERROR_UNKNOWN);
    const Result<void> refused = std::string_view(failing) == "cuMemPoolGetAttribute"
                                     ? Result<void>(bench.device().driver_pool().failure())
                                     : bench.device().reset_driver_pool_peaks();
    ASSERT_EQ(code(refused), "driver");
    EXPECT_EQ(refused.failure().string("call"), failing);
  }
  EXPECT_EQ(why(bench.device().driver_pool()), "");
}

}  // namespace
}  // namespace tern::cuda
