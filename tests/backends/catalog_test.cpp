#include "tern/backends/catalog.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "backends/opencl/opencl_opener.hpp"
#include "support/forked_child.hpp"
#include "support/thread.hpp"
#include "tern/detail/core/config.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"

namespace tern {
namespace {

const BackendListing& listing_of(std::string_view name) {
  static const std::vector<BackendListing> all = list_backends();
  return *std::ranges::find(all, name, &BackendListing::name);
}

TEST(Catalog, ListsEveryBackendWithItsDevicesOrAReason) {
  const std::vector<BackendListing> backends = list_backends();
  std::vector<std::string> names;
  for (const BackendListing& backend : backends) {
    names.push_back(backend.name);
    EXPECT_EQ(backend.is_available, backend.reason.empty()) << backend.name;
    EXPECT_EQ(backend.is_available, !backend.devices.empty()) << backend.name;
    if (backend.is_available) continue;
    EXPECT_TRUE(backend.reason.starts_with("backend '" + backend.name + "' is not available: "));
    EXPECT_TRUE(backend.reason.ends_with("."));
  }
  EXPECT_EQ(names, (std::vector<std::string>{"cuda", "opencl", "sim", "host"}));
  EXPECT_EQ(listing_of("host").devices, std::vector<std::string>{"host"});
  EXPECT_EQ(listing_of("host").options.size(), 3u);
}

TEST(Catalog, OpensEveryDeviceItLists) {
  for (const BackendListing& backend : list_backends()) {
    for (const std::string& spec : backend.devices) {
      EXPECT_EQ(open_device(spec).spec(), spec);
    }
  }
}

TEST(Catalog, GivesTheReasonOfAnAbsentBackend) {
  for (const BackendListing& backend : list_backends()) {
    if (backend.is_available) continue;
    const std::string long_spec = backend.name + "?x=" + std::string(500, 'x');
    for (const std::string& spec : {backend.name, backend.name + ":5", long_spec}) {
      const Result<Device> refused = try_open_device(spec);
      ASSERT_FALSE(refused);
      EXPECT_EQ(refused.failure().code(), ErrorCode::invalid_device);
      EXPECT_FALSE(refused.failure().string("spec")->empty());
      // One that knows its options without a driver speaks of the wrong one first.
      const std::string reason =
          spec == long_spec && !backend.options.empty() ? "has no option 'x'" : backend.reason;
      EXPECT_NE(refused.failure().text().find(reason), std::string::npos)
          << refused.failure().text();
    }
  }
}

TEST(Catalog, GivesOneDeviceForAllSpellingsOfItsSpec) {
  const Device device = open_device("host");
  EXPECT_EQ(open_device("HOST"), device);
  EXPECT_EQ(open_device("Host:0"), device);
  EXPECT_EQ(device.spec(), "host");
  const Device normal = open_device("host?threads=2&pages=normal");
  EXPECT_EQ(open_device("HOST:0?Pages=normal&THREADS=2"), normal);
  EXPECT_EQ(normal.spec(), "host?pages=normal&threads=2");
  EXPECT_FALSE(normal == device);
}

TEST(Catalog, GivesOneDeviceToEightThreads) {
  std::array<Device, 8> devices;
  std::vector<test::Thread> threads;
  for (Device& device : devices) {
    threads.emplace_back([&device] { device = open_device("host?threads=5"); });
  }
  for (test::Thread& thread : threads) thread.join();
  for (const Device& device : devices) EXPECT_EQ(device, devices[0]);
}

TEST(Catalog, MakesTwoDevicesOfTwoVariants) {
  const Device all = open_device("host");
  const Device one = open_device("host?threads=1");
  DeviceSet set({all, one});
  EXPECT_EQ(set.next(), all);
  EXPECT_EQ(set.next(), one);
  EXPECT_EQ(set.next(), all);
  EXPECT_TRUE(set.try_synchronize());
}

TEST(Catalog, NamesTheDevicesThereAreWhenTheIndexIsTooHigh) {
  const Result<Device> refused = try_open_device("host:1");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::invalid_device);
  EXPECT_EQ(refused.failure().text(),
            "'host:1' cannot be opened: backend 'host' has devices 0..0.");
}

TEST(Catalog, NamesTheBackendsThereAreForAnUnknownOne) {
  const Result<Device> refused = try_open_device("quantum:1");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().text(),
            "'quantum:1' cannot be opened: there is no backend 'quantum'. The backends are cuda, "
            "opencl, sim, host.");
  EXPECT_THROW(static_cast<void>(open_device("quantum")), InvalidDevice);
}

TEST(Catalog, RefusesFilesAndMalformedSpecs) {
  EXPECT_EQ(try_open_device("disk:/tmp/x").failure().text(),
            "'disk:/tmp/x' cannot be opened: the spec names a file, and a file is a buffer, not a "
            "device. Use open_disk().");
  for (const std::string_view bad : {"", "host:x", "host?", "host?threads"}) {
    EXPECT_EQ(try_open_device(bad).failure().code(), ErrorCode::invalid_device) << bad;
  }
}

TEST(Catalog, OpensTheConfiguredOrElseTheFirstDeviceThatIsNoCopyOfTheHost) {
  const Device best = open_best_device();
  if (!config().device.empty()) {
    EXPECT_EQ(best, open_device(config().device));
    return;
  }
  std::vector<std::string> preferred;
  for (const BackendListing& backend : list_backends()) {
    for (std::uint32_t i = 0; i < backend.devices.size(); ++i) {
      // The processor under another name has no checker and is no faster.
      if (backend.name == "opencl" && !opencl::opener().is_preferred(i)) continue;
      preferred.push_back(backend.devices[i]);
    }
  }
  EXPECT_EQ(best.spec(), preferred.front());
}

/// Runs the body in a process of its own with TERN_REHEARSE, because the configuration is read once
/// in a process.
class RehearsedCatalogDeathTest : public testing::Test {
 protected:
  RehearsedCatalogDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  template <class Body>
  static void rehearse(const char* rehearsal, Body body) {
    for (const ConfigVariable& variable : config_variables()) unsetenv(variable.name.data());
    setenv("TERN_REHEARSE", rehearsal, 1);
    std::_Exit(body() ? 0 : 1);
  }
};

TEST_F(RehearsedCatalogDeathTest, SimulatesEveryDeviceButTheHost) {
  const auto body = [] {
    const Device best = open_best_device();
    bool is_right = best == open_device("cuda:0") && best.spec() == "cuda:0" &&
                    best.info().backend == "sim" && best.memory().total_bytes == (80u << 20);
    for (const char* spec : {"cuda:1", "opencl:0", "sim:0?seed=7&memory=4MiB", "gpu:1"}) {
      is_right &= open_device(spec).memory().total_bytes == (80u << 20);
    }
    is_right &= open_device("cuda:1").try_enable_peer_access(best).value();
    is_right &= open_device("host").info().backend == "host";
    const std::vector<BackendListing> all = list_backends();
    is_right &= all[0].name == "cuda" && all[0].devices.size() == 3 && all[0].is_available;
    is_right &= all[2].name == "sim" && all[2].devices.size() == 3;
    const Result<Device> beyond = try_open_device("cuda:3");
    is_right &=
        !beyond && beyond.failure().text() ==
                       "'cuda:3' cannot be opened: the rehearsal has devices 0..2. Rehearse "
                       "with more: `tern rehearse --devices 4`, or devices=4 in "
                       "TERN_REHEARSE.";
    return is_right;
  };
  EXPECT_EXIT(rehearse("sim?memory=80MiB&devices=3&backing=none", body), testing::ExitedWithCode(0),
              "");
}

TEST_F(RehearsedCatalogDeathTest, RefusesAnotherDevice) {
  for (const char* rehearsal : {"cuda:0", "sim:1", "host", "sim?", "80GiB"}) {
    const auto body = [rehearsal] {
      const Result<Device> refused = try_open_device("cuda:0");
      return !refused && refused.failure().text() ==
                             std::string("TERN_REHEARSE='") + rehearsal +
                                 "' is not accepted. Set it to a simulated device, such as "
                                 "sim?memory=80GiB&backing=none, or unset it.";
    };
    EXPECT_EXIT(rehearse(rehearsal, body), testing::ExitedWithCode(0), "") << rehearsal;
  }
}

TEST(Catalog, OpensDevicesOfItsOwnInAForkedChild) {
  const Device parents = open_device("host?threads=2");
  const bool with_thread = test::children_can_start_threads;
  const int outcome = test::in_a_forked_child([&] {
    const Device own = open_device("host?threads=2");
    if (own == parents || !(own == open_device("host?threads=2"))) return false;
    if (!test::is_after_fork(parents.try_synchronize())) return false;
    int calls = 0;
    const Stream stream(own);
    if (with_thread) {
      stream.call([](void* context) { ++*static_cast<int*>(context); }, &calls);
    }
    stream.synchronize();
    return calls == (with_thread ? 1 : 0);
  });
  EXPECT_EQ(outcome, 0);
  EXPECT_EQ(open_device("host?threads=2"), parents);
}

}  // namespace
}  // namespace tern
