// Arithmetic of byte counts. How they are printed and read is in bytes_text_test.cpp.

#include "tern/core/bytes.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace tern {
namespace {

// Wide enough for the true result of everything below.
__extension__ using Wide = unsigned __int128;

constexpr std::size_t largest = std::numeric_limits<std::size_t>::max();

const std::vector<std::size_t> boundaries = [] {
  std::vector<std::size_t> values;
  for (std::size_t k = 0; k < 5; ++k) values.push_back(largest - k);
  for (std::size_t k = 0; k < 11; ++k) values.push_back(k);
  for (const unsigned bit : {8u, 12u, 16u, 31u, 32u, 33u, 62u, 63u}) {
    const std::size_t power = std::size_t{1} << bit;
    values.insert(values.end(), {power - 1, power, power + 1});
  }
  values.insert(values.end(), {largest / 3, largest / 3 + 1, largest / 10, largest / 10 + 1});
  return values;
}();

std::optional<std::size_t> if_it_fits(Wide value) {
  if (value > largest) return std::nullopt;
  return static_cast<std::size_t>(value);
}

/// An 8-bit number at the top of a size: sums, differences and multiples of such sizes wrap exactly
/// where those of 8-bit numbers do, so that all of them can be tried.
constexpr unsigned top_bits = 56;
constexpr std::size_t top(std::size_t eight_bits) { return eight_bits << top_bits; }

std::optional<std::size_t> if_it_fits_on_top(std::size_t eight_bits) {
  if (eight_bits > 255) return std::nullopt;
  return top(eight_bits);
}

TEST(CheckedAdd, AgreesWithWideArithmeticAtEveryBoundary) {
  for (const std::size_t a : boundaries) {
    for (const std::size_t b : boundaries) {
      EXPECT_EQ(checked_add(a, b), if_it_fits(Wide{a} + b)) << a << " + " << b;
    }
  }
}

TEST(CheckedAdd, AgreesWithEverySumOfEightBitNumbers) {
  for (std::size_t a = 0; a < 256; ++a) {
    for (std::size_t b = 0; b < 256; ++b) {
      ASSERT_EQ(checked_add(top(a), top(b)), if_it_fits_on_top(a + b)) << a << " + " << b;
    }
  }
}

TEST(CheckedMultiply, AgreesWithWideArithmeticAtEveryBoundary) {
  for (const std::size_t a : boundaries) {
    for (const std::size_t b : boundaries) {
      EXPECT_EQ(checked_multiply(a, b), if_it_fits(Wide{a} * b)) << a << " * " << b;
    }
  }
}

TEST(CheckedMultiply, AgreesWithEveryProductOfEightBitNumbers) {
  for (std::size_t a = 0; a < 256; ++a) {
    for (std::size_t b = 0; b < 256; ++b) {
      ASSERT_EQ(checked_multiply(top(a), b), if_it_fits_on_top(a * b)) << a << " * " << b;
      ASSERT_EQ(checked_multiply(a, top(b)), if_it_fits_on_top(a * b)) << a << " * " << b;
    }
  }
}

TEST(CheckedRoundUp, AgreesWithWideArithmeticAtEveryBoundary) {
  for (const std::size_t value : boundaries) {
    for (const std::size_t step : boundaries) {
      if (step == 0) continue;
      const Wide steps = (Wide{value} + step - 1) / step;
      EXPECT_EQ(checked_round_up(value, step), if_it_fits(steps * step)) << value << " to " << step;
    }
  }
}

TEST(CheckedRoundUp, AgreesWithEveryPairOfEightBitNumbers) {
  for (std::size_t value = 0; value < 256; ++value) {
    for (std::size_t step = 1; step < 256; ++step) {
      const std::size_t rounded = (value + step - 1) / step * step;
      ASSERT_EQ(checked_round_up(top(value), top(step)), if_it_fits_on_top(rounded))
          << value << " to " << step;
    }
  }
}

TEST(CheckedRoundUp, TakesStepsThatAreNoPowersOfTwo) {
  EXPECT_EQ(checked_round_up(0, 3), 0u);
  EXPECT_EQ(checked_round_up(1, 3), 3u);
  EXPECT_EQ(checked_round_up(3, 3), 3u);
  EXPECT_EQ(checked_round_up(4, 3), 6u);
  EXPECT_EQ(checked_round_up(1000, 768), 1536u);
}

TEST(CheckedRoundUp, HasNoMultipleOfZero) {
  EXPECT_EQ(checked_round_up(0, 0), std::nullopt);
  EXPECT_EQ(checked_round_up(1, 0), std::nullopt);
  EXPECT_EQ(checked_round_up(largest, 0), std::nullopt);
}

TEST(IsPowerOfTwo, IsTrueOfTheSixtyFourPowersAndOfNothingBesideThem) {
  for (unsigned bit = 0; bit < 64; ++bit) {
    const std::size_t power = std::size_t{1} << bit;
    EXPECT_TRUE(is_power_of_two(power)) << power;
    if (bit > 1) {
      EXPECT_FALSE(is_power_of_two(power - 1)) << power;
      EXPECT_FALSE(is_power_of_two(power + 1)) << power;
    }
  }
  EXPECT_FALSE(is_power_of_two(0));
  EXPECT_FALSE(is_power_of_two(3));
  EXPECT_FALSE(is_power_of_two(largest));
}

TEST(IsWithin, AgreesWithWideArithmeticAtEveryBoundary) {
  for (const std::size_t offset : boundaries) {
    for (const std::size_t size : boundaries) {
      for (const std::size_t extent : boundaries) {
        EXPECT_EQ(is_within(offset, size, extent), Wide{offset} + size <= extent)
            << offset << " + " << size << " in " << extent;
      }
    }
  }
}

TEST(IsWithin, AgreesWithEveryRangeOfEightBitNumbers) {
  for (std::size_t offset = 0; offset < 256; ++offset) {
    for (std::size_t size = 0; size < 256; ++size) {
      for (std::size_t extent = 0; extent < 256; extent += 3) {  // 255 is a multiple of 3
        ASSERT_EQ(is_within(top(offset), top(size), top(extent)), offset + size <= extent)
            << offset << " + " << size << " in " << extent;
      }
    }
  }
}

TEST(IsWithin, RefusesARangeWhoseEndWraps) {
  EXPECT_FALSE(is_within(largest - 3, 8, 1024));
  EXPECT_FALSE(is_within(largest - 3, 8, largest));
  EXPECT_TRUE(is_within(largest - 3, 3, largest));
}

TEST(IsWithin, HasRoomForAnEmptyRangeAtTheEndAndNotBeyondIt) {
  EXPECT_TRUE(is_within(0, 0, 0));
  EXPECT_TRUE(is_within(8, 0, 8));
  EXPECT_FALSE(is_within(9, 0, 8));
}

TEST(CheckedSize, RefusesWhatIsNegative) {
  EXPECT_EQ(checked_size(0), 0u);
  EXPECT_EQ(checked_size(1), 1u);
  EXPECT_EQ(checked_size(std::numeric_limits<std::int64_t>::max()), max_request_bytes);
  EXPECT_EQ(checked_size(-1), std::nullopt);
  EXPECT_EQ(checked_size(std::numeric_limits<std::int64_t>::min()), std::nullopt);
}

TEST(Bytes, NamesItsUnitsAndItsLargestRequest) {
  EXPECT_EQ(kib, 1024u);
  EXPECT_EQ(mib, 1024u * kib);
  EXPECT_EQ(gib, 1024u * mib);
  EXPECT_EQ(max_request_bytes, largest / 2);
}

TEST(Bytes, ComputesAtCompileTime) {
  static_assert(checked_add(1, 2) == 3u);
  static_assert(checked_multiply(largest, 2) == std::nullopt);
  static_assert(checked_round_up(5, 4) == 8u);
  static_assert(is_within(1, 2, 3));
  static_assert(checked_size(-1) == std::nullopt);
}

}  // namespace
}  // namespace tern
