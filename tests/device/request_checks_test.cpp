#include "device/request_checks.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "tern/core/bytes.hpp"

namespace tern {
namespace {

DeviceInfo info() {
  DeviceInfo info;
  info.spec = "fake:0";
  info.alignment = 64;
  info.max_alignment = 4096;
  return info;
}

TEST(CheckedAlignment, IsAtLeastTheDevicesOwn) {
  for (const std::size_t asked : {0u, 1u, 2u, 32u, 64u}) {
    EXPECT_EQ(*checked_alignment(info(), asked), 64u) << asked;
  }
  for (const std::size_t asked : {128u, 4096u}) EXPECT_EQ(*checked_alignment(info(), asked), asked);
}

TEST(CheckedAlignment, RefusesWhatIsNoPowerOfTwoWithTheValue) {
  for (const std::size_t asked : {std::size_t{3}, std::size_t{65}, std::size_t{4095},
                                  std::numeric_limits<std::size_t>::max()}) {
    const Result<std::size_t> refused = checked_alignment(info(), asked);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.failure().code(), ErrorCode::invalid_argument);
    EXPECT_EQ(refused.failure().number("value"), asked);
  }
  EXPECT_EQ(checked_alignment(info(), 3).failure().text(),
            "alignment 3 is not a power of two. Use a power of two, or 0 for the default of the "
            "device, 64.");
}

TEST(CheckedAlignment, RefusesWhatIsAboveTheDevicesMaximum) {
  const Result<std::size_t> refused = checked_alignment(info(), 8192);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().text(),
            "alignment 8.0 KiB is above 4.0 KiB, the largest that 'fake:0' supports.");
  EXPECT_FALSE(checked_alignment(info(), std::size_t{1} << 63));
}

TEST(CheckRange, AcceptsEverythingThatEndsInMemory) {
  int value = 0;
  EXPECT_TRUE(check_range("range", &value, 4));
  EXPECT_TRUE(check_range("range", reinterpret_cast<void*>(64), max_request_bytes));
  EXPECT_TRUE(check_range("range", reinterpret_cast<void*>(~std::uintptr_t{0} - 7), 7));
}

TEST(CheckRange, RefusesNullAndTheEndOfMemory) {
  const Result<void> null = check_range("source", nullptr, 64);
  ASSERT_FALSE(null);
  EXPECT_EQ(null.failure().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(null.failure().text(),
            "the source of 64 bytes is a null address. Pass allocated memory.");
  for (const auto& [address, bytes] :
       {std::pair<std::uintptr_t, std::size_t>{64, max_request_bytes + 1},
        {64, std::numeric_limits<std::size_t>::max()},
        {~std::uintptr_t{0} - 7, 9}}) {
    const Result<void> past = check_range("range", reinterpret_cast<void*>(address), bytes);
    ASSERT_FALSE(past) << address;
    EXPECT_EQ(past.failure().code(), ErrorCode::size_overflow);
    EXPECT_EQ(past.failure().number("bytes"), bytes);
  }
}

TEST(AllocationTooLarge, SaysHowMuchWasAskedForAndHowMuchThereCanBe) {
  const Failure failure = allocation_too_large(static_cast<std::size_t>(-1));
  EXPECT_EQ(failure.code(), ErrorCode::size_overflow);
  EXPECT_EQ(failure.number("requested"), std::numeric_limits<std::size_t>::max());
  EXPECT_EQ(failure.number("max"), max_request_bytes);
}

}  // namespace
}  // namespace tern
