#include "memory/pool/handle_map.hpp"

#include <gtest/gtest.h>

namespace tern::pool {
namespace {

TEST(HandleMap, ReturnsTheHandleOfEachPage) {
  HandleMap map;
  ASSERT_TRUE(map.try_add_region(100, 50));
  map.set(100, 1);
  map.set(101, 9);
  map.set(110, 40);
  EXPECT_EQ(map.of(100).first, 100u);
  EXPECT_EQ(map.of(100).pages(), 1u);
  for (const std::uint64_t page : {101u, 105u, 109u}) {
    EXPECT_EQ(map.of(page).first, 101u) << page;
    EXPECT_EQ(map.of(page).last, 110u) << page;
  }
  EXPECT_EQ(map.of(149).first, 110u);
  EXPECT_EQ(map.of(149).last, 150u);
}

TEST(HandleMap, FindsPagesInEveryRegion) {
  HandleMap map;
  ASSERT_TRUE(map.try_add_region(1000, 10));
  ASSERT_TRUE(map.try_add_region(10, 10));  // later, at lower addresses
  ASSERT_TRUE(map.try_add_region(20, 10));  // adjacent
  map.set(1000, 10);
  map.set(10, 10);
  map.set(20, 5);
  EXPECT_EQ(map.of(1009).first, 1000u);
  EXPECT_EQ(map.of(19).last, 20u);
  EXPECT_EQ(map.of(24).first, 20u);
}

TEST(HandleMap, AHandleMayTakeThePlaceOfOthers) {
  HandleMap map;
  ASSERT_TRUE(map.try_add_region(0, 8));
  map.set(0, 8);
  map.set(2, 3);
  EXPECT_EQ(map.of(3).first, 2u);
  EXPECT_EQ(map.of(4).last, 5u);
}

TEST(HandleMap, RefusesMoreRegionsThanItHasEntriesFor) {
  HandleMap map;
  for (std::size_t i = 0; i < HandleMap::max_regions; ++i) {
    ASSERT_TRUE(map.try_add_region(i * 10, 1));
  }
  EXPECT_FALSE(map.try_add_region(10'000, 1));
  map.set(0, 1);
  EXPECT_EQ(map.of(0).pages(), 1u);
}

}  // namespace
}  // namespace tern::pool
