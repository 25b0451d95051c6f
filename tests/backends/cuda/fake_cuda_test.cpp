#include "backends/cuda/fake_cuda.hpp"

#include <gtest/gtest.h>

#include "support/cuda_bench.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/device/stream.hpp"

namespace tern::cuda {
namespace {

TEST(CudaFakeCuda, GivesTheEntriesAndTheDevicesOfTheInstalledDriver) {
  const FakeCuda* const fake = linked_fake_cuda();
  ASSERT_NE(fake, nullptr);
  EXPECT_EQ(fake->world(), nullptr);
  sim::FakeDriver driver(sim::bench_options());
  EXPECT_NE(fake->world(), nullptr);
  void* function = nullptr;
  EXPECT_EQ(
      fake->get_proc_address("cuInit", &function, 2000, get_proc_address_legacy_stream, nullptr),
      CUDA_SUCCESS);
  EXPECT_EQ(function, reinterpret_cast<void*>(driver.table().cuInit));
}

TEST(CudaFakeCuda, LetsTheKnobsOfSimulatedDevicesHoldStreams) {
  CudaBench bench;
  const Device device(bench.open(1).value());
  Stream stream(device);
  const std::uint64_t hold = sim::hold(stream);
  bool is_called = false;
  stream.call([](void* context) { *static_cast<bool*>(context) = true; }, &is_called);
  EXPECT_FALSE(stream.is_idle());
  sim::resume(device, hold);
  stream.synchronize();
  EXPECT_TRUE(is_called);
}

}  // namespace
}  // namespace tern::cuda
