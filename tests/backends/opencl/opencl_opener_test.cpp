#include "backends/opencl/opencl_opener.hpp"

#include <unistd.h>

#include <algorithm>
#include <string>

#include "support/forked_child.hpp"
#include "support/no_descriptors.hpp"
#include "support/opencl_bench.hpp"
#include "support/thorough.hpp"
#include "tern/backends/catalog.hpp"

namespace tern::opencl {
namespace {

class OpenClOpener : public test::OpenClTest {};

TEST_F(OpenClOpener, ListsEveryUsableDeviceByItsNumber) {
  const std::vector<BackendListing> all = list_backends();
  const auto listing = std::ranges::find(all, "opencl", &BackendListing::name);
  ASSERT_NE(listing, all.end());
  EXPECT_TRUE(listing->is_available) << listing->reason;
  ASSERT_EQ(listing->devices.size(), find_opencl()->devices.usable.size());
  EXPECT_EQ(listing->devices.front(), "opencl:0");
  EXPECT_TRUE(listing->options.empty());
}

TEST_F(OpenClOpener, OpensADeviceByItsNumber) {
  const Device device = open_device("OpenCL");
  EXPECT_EQ(device.spec(), "opencl:0");
  EXPECT_EQ(device.info().name, facts.name);
  EXPECT_EQ(open_device("opencl:0"), device);
}

TEST_F(OpenClOpener, TakesNoOptions) {
  const Result<Device> refused = try_open_device("opencl:0?threads=1");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::invalid_device);
  EXPECT_EQ(refused.failure().text(),
            "'opencl:0?threads=1' cannot be opened: OpenCL devices have no options, and 'threads' "
            "is set. Remove it.");
}

TEST_F(OpenClOpener, LooksForOpenClOnce) { EXPECT_EQ(find_opencl(), find_opencl()); }

TEST_F(OpenClOpener, PrefersOnlyAccelerators) {
  const Opener row = opener();
  const DeviceList& devices = find_opencl()->devices;
  for (std::uint32_t i = 0; i < devices.usable.size(); ++i) {
    EXPECT_EQ(row.is_preferred(i), devices.usable[i].is_accelerator());
  }
}

TEST_F(OpenClOpener, IsAbsentInAForkedChildOfAProcessThatLoadedIt) {
  const int outcome = test::in_a_forked_child([] {
    const Result<Device> refused = try_open_device("opencl");
    return !refused && refused.failure().code() == ErrorCode::invalid_device &&
           refused.failure().text() ==
               "backend 'opencl' is not available: this process was forked after its parent had "
               "loaded OpenCL, whose threads do not exist in the child. Fork first, or start the "
               "child with exec, or open 'sim' or 'host'." &&
           open_best_device().info().backend != "opencl";
  });
  EXPECT_EQ(outcome, 0);
}

// In a process of its own, which has not looked for OpenCL yet.
TEST(OpenClOpenerDeathTest, LooksAgainIfThereWereNoDescriptorsToLookWith) {
  if (test::is_sanitized) GTEST_SKIP() << "the sanitizer needs descriptors too";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto in_a_fresh_process = [] {
    const DeviceSpec spec{"opencl", 0, {}, {}};
    const Opener row = opener();
    std::string absence;
    {
      const test::NoDescriptors none;
      absence = row.absence(spec);
      const Result<Device> refused = try_open_device("opencl");
      if (refused || refused.failure().code() != ErrorCode::invalid_device) return 1;
    }
    if (absence.find("no free file descriptor") == std::string::npos) return 2;
    return row.absence(spec).find("descriptors") == std::string::npos ? 0 : 3;
  };
  EXPECT_EXIT(_exit(in_a_fresh_process()), testing::ExitedWithCode(0), "");
}

// In a process of its own, which has not looked for OpenCL yet.
TEST(OpenClOpenerDeathTest, AChildOfAProcessThatFoundNoneLooksForItself) {
  if (test::is_sanitized) GTEST_SKIP() << "the sanitizer needs descriptors too";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto in_a_fresh_process = [] {
    const DeviceSpec spec{"opencl", 0, {}, {}};
    const Opener row = opener();
    {
      const test::NoDescriptors none;
      if (row.absence(spec).find("no free file descriptor") == std::string::npos) return 10;
    }
    const int in_child = test::in_a_forked_child([&] {
      const std::string absence = row.absence(spec);
      return absence.find("fork") == std::string::npos &&
             absence.find("descriptors") == std::string::npos;
    });
    if (in_child != 0) return 20 + in_child;
    // What the child found is not the parent's, which looks too.
    return row.absence(spec).find("fork") == std::string::npos ? 0 : 30;
  };
  EXPECT_EXIT(_exit(in_a_fresh_process()), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tern::opencl
