#include "backends/sim/sim_opener.hpp"

#include <gtest/gtest.h>

#include "backends/sim/sim_backend.hpp"
#include "support/forked_child.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/core/bytes.hpp"

namespace tern::sim {
namespace {

TEST(SimOpener, IsAlwaysThereWithTwoDevices) {
  const Opener sim = opener();
  EXPECT_STREQ(sim.name, "sim");
  EXPECT_EQ(sim.absence({}), "");
  EXPECT_EQ(sim.device_count({}), 2u);
}

TEST(SimOpener, ListsEveryOptionItTakes) {
  const std::vector<std::string> options = opener().options;
  ASSERT_EQ(options.size(), 15u);
  for (const std::string& option : options) {
    const std::string spec = "sim?" + option.substr(0, option.find('=')) + "=no/such/value";
    const Result<Device> refused = try_open_device(spec);
    ASSERT_FALSE(refused) << spec;
    EXPECT_EQ(refused.failure().text().find("the keys seed"), std::string::npos) << spec;
  }
}

TEST(SimOpener, OpensTheSameDeviceForTheSameSpec) {
  const Device device = open_device("sim:0?memory=4MiB&seed=0x1c9f");
  EXPECT_EQ(device, open_device("sim?seed=0x1c9f&memory=4MiB"));
  EXPECT_EQ(device.info().backend, "sim");
  EXPECT_EQ(device.spec(), "sim:0?memory=4MiB&seed=0x1c9f");
  EXPECT_EQ(device.memory().total_bytes, 4 * mib);
  EXPECT_NE(device, open_device("sim:1?memory=4MiB&seed=0x1c9f"));
}

TEST(SimOpener, MakesPeersOfDevicesWithTheSameOptions) {
  const Device zero = open_device("sim:0?memory=4MiB&seed=1");
  const Device one = open_device("sim:1?memory=4MiB&seed=1");
  EXPECT_TRUE(zero.try_enable_peer_access(one).value());
  EXPECT_TRUE(one.try_enable_peer_access(zero).value());
}

TEST(SimOpener, MakesPeersOfDevicesWithTheSameOptionsHoweverTheyAreSpelt) {
  const Device zero = open_device("sim:0?memory=4MiB&seed=0x11");
  const Device one = open_device("sim:1?memory=4194304&seed=17");
  EXPECT_TRUE(zero.try_enable_peer_access(one).value());
}

TEST(SimOpener, OpensTheProfileItIsTold) {
  const Device small = open_device("sim?profile=small");
  EXPECT_EQ(small.memory().total_bytes, 256 * mib);
  EXPECT_EQ(small.info().name, "small simulated device");
  EXPECT_EQ(open_device("sim?profile=small&memory=4MiB").memory().total_bytes, 4 * mib);
  const Result<Device> refused = try_open_device("sim?profile=/no/such/file");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::invalid_device);
  EXPECT_NE(refused.failure().text().find("profile '/no/such/file' cannot be read"),
            std::string::npos)
      << refused.failure().text();
}

TEST(SimOpener, KeepsDevicesWithOtherOptionsApart) {
  const Device one = open_device("sim:0?memory=4MiB&seed=1");
  EXPECT_FALSE(one.try_enable_peer_access(open_device("sim:1?memory=4MiB&seed=2")).value());
  EXPECT_FALSE(one.try_enable_peer_access(open_device("sim:1?memory=8MiB&seed=1")).value());
}

TEST(SimOpener, GivesAForkedChildAWorldOfItsOwn) {
  // The memory of a world is shared with children, who would write into their parent's.
  const DeviceSpec spec = parse_device_spec("sim:0?memory=4MiB&seed=3");
  const auto parents = opener().open(spec).value();
  EXPECT_EQ(test::in_a_forked_child([&] {
              const auto childs = opener().open(spec);
              return childs && world_of(**childs) != world_of(*parents);
            }),
            0);
  EXPECT_EQ(world_of(*opener().open(spec).value()), world_of(*parents));
}

TEST(SimOpener, OffersAsManyDevicesAsItIsTold) {
  const Device last = open_device("sim:7?devices=8&memory=4MiB&seed=21");
  EXPECT_TRUE(last.try_enable_peer_access(open_device("sim:0?memory=4MiB&seed=21")).value())
      << "one simulation, whatever the number";
  EXPECT_FALSE(try_open_device("sim:8?devices=8&memory=4MiB&seed=21"));
  for (const char* count : {"0", "65", "two", "2x"}) {
    const Result<Device> refused = try_open_device(std::string("sim?devices=") + count);
    ASSERT_FALSE(refused) << count;
    EXPECT_NE(refused.failure().text().find("Accepted: 1 to 64."), std::string::npos);
  }
}

TEST(SimOpener, OpensADeviceUnderAnotherName) {
  const auto opened = open_as(parse_device_spec("sim:1?memory=4MiB&devices=4"), "cuda:1").value();
  EXPECT_EQ(Device(open_as(parse_device_spec("sim?memory=4MiB"), "cuda:0").value()).spec(),
            "cuda:0");
}

TEST(SimOpener, RefusesABadSpecWithTheReason) {
  const Result<Device> refused = try_open_device("sim?schedule=pct:6");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::invalid_device);
  EXPECT_EQ(refused.failure().text(),
            "'sim:0?schedule=pct:6' cannot be opened: the simulated device does not accept "
            "schedule='pct:6'. Accepted: mix, lazy, eager, random, skewed, stall-one, pct or pct:2 "
            "to pct:5.");
  EXPECT_EQ(try_open_device("sim:2").failure().code(), ErrorCode::invalid_device);
  EXPECT_EQ(try_open_device("sim?colour=red").failure().code(), ErrorCode::invalid_device);
}

}  // namespace
}  // namespace tern::sim
