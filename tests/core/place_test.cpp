#include "tern/core/place.hpp"

#include <gtest/gtest.h>

#include <set>
#include <type_traits>
#include <unordered_set>
#include <vector>

namespace tern {
namespace {

const std::vector<Place> in_order = {
    Place::host(),
    Place::host_numa(0),
    Place::host_numa(1),
    Place::host_numa(~0u),
    Place::host_numa_current(),
    Place::device(DeviceId{1}),
    Place::device(DeviceId{2}),
    Place::device(DeviceId{~0u}),
    Place::file(),
};

TEST(Place, IsTheHostByDefault) {
  static_assert(Place() == Place::host());
  EXPECT_EQ(Place().kind(), Place::Kind::host);
  EXPECT_EQ(Place().index(), 0u);
}

TEST(Place, SaysWhereItIs) {
  EXPECT_EQ(Place::host().text(), "host");
  EXPECT_EQ(Place::host_numa(0).text(), "host numa 0");
  EXPECT_EQ(Place::host_numa(1).text(), "host numa 1");
  EXPECT_EQ(Place::host_numa_current().text(), "host numa current");
  EXPECT_EQ(Place::device(DeviceId{3}).text(), "device 3");
  EXPECT_EQ(Place::device(DeviceId{~0u}).text(), "device 4294967295");
  EXPECT_EQ(Place::file().text(), "file");
}

TEST(Place, IsOnTheHostOnAnyNodeOfIt) {
  EXPECT_TRUE(Place::host().is_host());
  EXPECT_TRUE(Place::host_numa(1).is_host());
  EXPECT_TRUE(Place::host_numa_current().is_host());
  EXPECT_FALSE(Place::device(DeviceId{1}).is_host());
  EXPECT_FALSE(Place::file().is_host());
}

TEST(Place, NamesItsDeviceOnlyIfItIsOne) {
  EXPECT_EQ(Place::device(DeviceId{3}).device_id(), DeviceId{3});
  EXPECT_FALSE(Place::host_numa(3).device_id());
  EXPECT_FALSE(Place::host().device_id());
  EXPECT_FALSE(Place::file().device_id());
  EXPECT_EQ(Place::host_numa(3).index(), 3u);
}

TEST(Place, EqualsOnlyItselfAndHasOneOrder) {
  for (std::size_t i = 0; i < in_order.size(); ++i) {
    for (std::size_t j = 0; j < in_order.size(); ++j) {
      EXPECT_EQ(in_order[i] == in_order[j], i == j) << i << " " << j;
      EXPECT_EQ(in_order[i] < in_order[j], i < j) << i << " " << j;
    }
  }
}

TEST(Place, IsAKeyOfSets) {
  EXPECT_EQ(std::unordered_set<Place>(in_order.begin(), in_order.end()).size(), in_order.size());
  EXPECT_EQ(std::set<Place>(in_order.begin(), in_order.end()).size(), in_order.size());
  EXPECT_EQ(std::hash<Place>()(Place()), std::hash<Place>()(Place::host()));
  EXPECT_NE(std::hash<Place>()(Place::host_numa(1)),
            std::hash<Place>()(Place::device(DeviceId{1})));
}

TEST(Place, IsAPlainValueOfEightBytes) {
  static_assert(std::is_trivially_copyable_v<Place>);
  EXPECT_EQ(sizeof(Place), 8u);
}

TEST(DeviceId, IsNoDeviceAtZero) {
  EXPECT_FALSE(DeviceId{});
  EXPECT_TRUE(DeviceId{1});
  EXPECT_LT(DeviceId{1}, DeviceId{2});
  EXPECT_EQ((std::unordered_set<DeviceId>{DeviceId{1}, DeviceId{1}, DeviceId{2}}.size()), 2u);
}

}  // namespace
}  // namespace tern
