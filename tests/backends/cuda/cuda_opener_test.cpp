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
  const auto is_used = [&](int ordinal) {
    unsigned flags = 0;
    int is_active = 0;
    EXPECT_EQ(fake.table().cuDevicePrimaryCtxGetState(ordinal, &flags, &is_active), CUDA_SUCCESS);
    return is_active != 0;
  };
  EXPECT_FALSE(is_used(0));
  EXPECT_TRUE(is_used(1));
}

TEST(CudaOpener, SpeaksOfAMisspeltOptionAlsoWhereThereIsNoDriver) {
  sim::FakeDriver fake({.device_count = 0});
  const InstalledDriver installed(load_driver(fake_library()));
  const DeviceSpec misspelt = spec("cuda:3?drvier=sim");
  EXPECT_EQ(opener().absence(misspelt), "");
  EXPECT_GT(opener().device_count(misspelt), misspelt.index);
  EXPECT_NE(why(opener().open(misspelt)).find("has no option 'drvier'"), std::string::npos);
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
