#include "backends/cuda/cuda_opener.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "backends/device_spec.hpp"
#include "support/cuda_bench.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/error.hpp"
#include "tern/device/stream.hpp"
#include "tern/trace/trace_check.hpp"

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

/// The replay line of a finding of a device that this process opens by its spec.
std::string replay_of_a_race() {
  const Device device = open_device("cuda:0?driver=sim");
  const Stream a(device), b(device);
  auto* const block = static_cast<std::byte*>(device.allocate(MemoryKind::device, 64));
  static_cast<void>(a.try_fill(block, 64, std::byte{1}));
  static_cast<void>(b.try_fill(block, 64, std::byte{2}));
  const std::vector<Finding> found = sim::findings(device);
  return found.empty() ? "no finding" : found.front().replay;
}

TEST(CudaOpener, TheEnvironmentSetsTheOptionsOfTheSimulatedDriver) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        setenv("TERN_SIM_SEED", "0x1c9f", 1);
        setenv("TERN_SIM_SCHEDULE", "lazy", 1);
        setenv("TERN_SIM_REPORT", "quiet", 1);
        std::fputs(replay_of_a_race().c_str(), stderr);
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "TERN_SIM_SEED=0x1c9f TERN_SIM_SCHEDULE=lazy");
  EXPECT_EXIT(
      {
        setenv("TERN_SIM_SEED", "seven", 1);
        try {
          static_cast<void>(open_device("cuda:0?driver=sim"));
        } catch (const InvalidDevice& error) {
          std::fputs(error.what(), stderr);
        }
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "TERN_SIM_SEED has an invalid value");
  EXPECT_EXIT(
      {
        setenv("TERN_SIM_TRACE", "/nowhere/run.trace", 1);
        const Result<Device> opened = try_open_device("cuda:0?driver=sim");
        std::fputs(why(opened).c_str(), stderr);
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "'/nowhere/run.trace': open failed");
}

TEST(CudaOpener, TheTraceOfTheSimulatedDriverIsCompleteAtExit) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const std::string path = testing::TempDir() + "/cuda_opener_test.trace";
  EXPECT_EXIT(
      {
        setenv("TERN_SIM_TRACE", path.c_str(), 1);
        setenv("TERN_SIM_REPORT", "quiet", 1);
        static_cast<void>(replay_of_a_race());
        std::exit(0);
      },
      testing::ExitedWithCode(0), "");
  TraceReader reader = TraceReader::try_open(path).value();
  TraceRecord record;
  std::size_t shutdowns = 0;
  while (reader.try_next(record).value())
    shutdowns += record.kind == RecordKind::shutdown ? 1u : 0u;
  EXPECT_EQ(shutdowns, 1u);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace tern::cuda
