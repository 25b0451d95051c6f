#include "backends/cuda/cuda_opener.hpp"

#include <gtest/gtest.h>

#include <string>

#include "backends/device_spec.hpp"
#include "support/cuda_bench.hpp"

namespace tern::cuda {
namespace {

DeviceSpec spec(std::string_view text) { return try_parse_device_spec(text).value(); }

TEST(CudaOpener, SaysWhetherThereIsADriverAndHowManyDevices) {
  const Opener cuda = opener();
  EXPECT_STREQ(cuda.name, "cuda");
  {
    sim::FakeDriver fake({.device_count = 3});
    const InstalledDriver installed(load_driver(fake_library()));
    EXPECT_EQ(cuda.absence(spec("cuda")), "");
    EXPECT_EQ(cuda.device_count(spec("cuda")), 3u);
  }
  sim::FakeDriver fake({.device_count = 0});
  const InstalledDriver installed(load_driver(fake_library()));
  EXPECT_NE(cuda.absence(spec("cuda")).find("finds no GPU"), std::string::npos);
  EXPECT_EQ(cuda.device_count(spec("cuda")), 0u);
}

TEST(CudaOpener, OpensTheDeviceOfTheNumber) {
  sim::FakeDriver fake({.device_count = 2});
  const InstalledDriver installed(load_driver(fake_library()));
  const Result<std::unique_ptr<Backend>> device = opener().open(spec("cuda:1"));
  ASSERT_EQ(why(device), "");
  EXPECT_EQ((*device)->info().spec, "cuda:1");
  EXPECT_EQ((*device)->info().backend, "cuda");
  // Only the context of that device is alive.
  fake.reset(0);
  EXPECT_EQ(fake.live().contexts, 1u);
}

TEST(CudaOpener, SpeaksOfAMisspeltOptionAlsoWhereThereIsNoDriver) {
  sim::FakeDriver fake({.device_count = 0});
  const InstalledDriver installed(load_driver(fake_library()));
  const DeviceSpec misspelt = spec("cuda:3?drvier=sim");
  EXPECT_EQ(opener().absence(misspelt), "");
  EXPECT_GT(opener().device_count(misspelt), misspelt.index);
  EXPECT_NE(why(opener().open(misspelt)).find("has no option 'drvier'"), std::string::npos);
}

TEST(CudaOpener, NamesTheTargetToLinkIfTheProgramHasNoFakeDriver) {
  const Driver driver = load_fake_driver(nullptr);
  EXPECT_FALSE(driver.is_present());
  EXPECT_EQ(
      driver.absence,
      "backend 'cuda' is not available with driver=sim: this program is linked without the "
      "fake CUDA driver. Link the CMake target tern::fake_cuda (libtern_fake_cuda.a), or open "
      "'sim' instead.");
}

TEST(CudaOpener, TakesNoOptionButTheSimulatedDriver) {
  const auto refused = [](std::string_view text, std::string_view reason) {
    const Result<std::unique_ptr<Backend>> result = opener().open(spec(text));
    ASSERT_EQ(code(result), "invalid_device");
    EXPECT_NE(why(result).find(reason), std::string::npos) << why(result);
  };
  sim::FakeDriver fake;
  const InstalledDriver installed(load_driver(fake_library()));
  refused("cuda?seed=7", "a CUDA device has no option 'seed'");
  refused("cuda?driver=SIM", "driver='SIM' is not accepted");
  refused("cuda?driver=other", "driver='other' is not accepted");
}

}  // namespace
}  // namespace tern::cuda
