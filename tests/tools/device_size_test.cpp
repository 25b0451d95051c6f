#include "tools/rehearse/device_size.hpp"

#include <gtest/gtest.h>

#include "tern/core/bytes.hpp"
#include "tern/core/error.hpp"

namespace tern::tools {
namespace {

void show_nothing(std::size_t /*bytes*/) {}

TEST(DeviceSize, ATrialEndsWithTheFirstRefusedRequest) {
  const bench::AllocationTrace trace = bench::checkerboard();  // 60 blocks of 32 MiB first
  const SizeTrial small = try_device_size(trace, 1 * gib);
  EXPECT_FALSE(small.fits());
  EXPECT_EQ(small.refused_step, 32u);
  EXPECT_EQ(small.live_bytes, 1 * gib);
  EXPECT_EQ(small.peak_held_bytes, 1 * gib);
  const SizeTrial large = try_device_size(trace, 16 * gib);
  EXPECT_TRUE(large.fits());
  EXPECT_GE(large.peak_held_bytes, bench::facts_of(trace).peak_bytes);
  EXPECT_THROW(static_cast<void>(try_device_size(trace, 1)), InvalidArgument);
}

TEST(DeviceSize, TheSmallestDeviceFitsAndOneGranuleLessDoesNot) {
  for (const bench::AllocationTrace& trace :
       {bench::checkerboard(), bench::train_varlen(2), bench::multi_stream_etl()}) {
    for (const PoolLimit limit : {PoolLimit::none, PoolLimit::device}) {
      SCOPED_TRACE(trace.name);
      std::size_t trials = 0;
      const std::optional<SmallestDevice> found =
          find_smallest_device(trace, limit, [&](std::size_t) { ++trials; });
      ASSERT_TRUE(found);
      const std::size_t bytes = found->smallest.device_bytes;
      EXPECT_GE(bytes, bench::facts_of(trace).peak_bytes);
      EXPECT_EQ(bytes % device_granule_bytes, 0u);
      EXPECT_TRUE(try_device_size(trace, bytes, limit).fits());
      EXPECT_LE(trials, 24u);
      const std::size_t less = bytes - device_granule_bytes;
      EXPECT_FALSE(try_device_size(trace, less, limit).fits());
      if (found->one_less) {
        EXPECT_EQ(found->one_less->device_bytes, less);
      } else {
        EXPECT_LT(less, bench::facts_of(trace).peak_bytes);
      }
    }
  }
}

TEST(DeviceSize, APoolWithALimitFitsWhereLargeHandlesDoNot) {
  const bench::AllocationTrace trace = bench::checkerboard();
  const auto bytes = [&](PoolLimit limit) {
    return find_smallest_device(trace, limit, show_nothing)->smallest.device_bytes;
  };
  EXPECT_EQ(bytes(PoolLimit::device), bench::facts_of(trace).peak_bytes);
  EXPECT_GT(bytes(PoolLimit::none), bytes(PoolLimit::device));
}

TEST(DeviceSize, NoDeviceIsLargeEnoughForEverything) {
  const bench::AllocationTrace trace = {"large", {{0, 0, std::size_t{17} << 40}}, 1, 1};
  EXPECT_FALSE(find_smallest_device(trace, PoolLimit::none, show_nothing));
}

}  // namespace
}  // namespace tern::tools
