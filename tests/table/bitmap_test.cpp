#include "table/bitmap.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace tern {
namespace {

/// A pattern that repeats with no power of two.
std::vector<std::uint8_t> pattern(std::size_t count) {
  std::vector<std::uint8_t> flags(count);
  for (std::size_t i = 0; i < count; ++i) flags[i] = i % 3 == 0 || i % 7 == 2 ? 1 : 0;
  return flags;
}

TEST(Bitmap, PacksTheFirstIntoTheLowestBitAndLeavesTheRestZero) {
  const std::vector<std::uint8_t> flags = {1, 0, 0, 1, 0, 0, 0, 0, 5, 1};
  std::vector<std::byte> bits(2, std::byte{0xFF});
  pack_bits(flags, bits.data());
  EXPECT_EQ(bits[0], std::byte{0b1001});
  EXPECT_EQ(bits[1], std::byte{0b11});
  EXPECT_EQ(bitmap_bytes(0), 0u);
  EXPECT_EQ(bitmap_bytes(8), 1u);
  EXPECT_EQ(bitmap_bytes(9), 2u);
  EXPECT_EQ(bitmap_bytes(~std::size_t{0}), (std::size_t{1} << 61));
}

TEST(Bitmap, UnpacksAndCountsFromAnyBit) {
  const std::vector<std::uint8_t> flags = pattern(300);
  std::vector<std::byte> bits(bitmap_bytes(flags.size()));
  pack_bits(flags, bits.data());
  for (std::size_t first = 0; first < 70; ++first) {
    for (const std::size_t count : {0u, 1u, 7u, 8u, 63u, 64u, 65u, 129u, 230u}) {
      std::vector<std::uint8_t> back(count);
      unpack_bits(bits.data(), first, back);
      std::size_t set = 0;
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(back[i], flags[first + i]) << first << " " << i;
        set += back[i];
      }
      ASSERT_EQ(count_bits(bits.data(), first, count), set) << first << " " << count;
    }
  }
}

TEST(Bitmap, CopiesBitsAndLeavesTheirNeighbours) {
  const std::vector<std::uint8_t> flags = pattern(100);
  std::vector<std::byte> bits(bitmap_bytes(flags.size()));
  pack_bits(flags, bits.data());
  for (std::size_t from = 0; from < 9; ++from) {
    for (std::size_t to = 0; to < 9; ++to) {
      for (const std::byte around : {std::byte{0}, std::byte{0xFF}}) {
        std::vector<std::byte> target(bitmap_bytes(100), around);
        copy_bits(bits.data(), from, target.data(), to, 60);
        for (std::size_t i = 0; i < 100; ++i) {
          const bool is_inside = i >= to && i < to + 60;
          const bool expected = is_inside ? flags[from + i - to] != 0 : around != std::byte{0};
          ASSERT_EQ(bit_at(target.data(), i), expected) << from << " " << to << " " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tern
