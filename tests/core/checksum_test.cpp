#include "core/checksum.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace tern {
namespace {

std::vector<std::byte> counting(std::size_t count) {
  std::vector<std::byte> made(count);
  for (std::size_t i = 0; i < count; ++i) made[i] = static_cast<std::byte>(i * 7 + 1);
  return made;
}

std::uint64_t checksum(std::span<const std::byte> bytes) noexcept {
  Checksum sum;
  sum.add(bytes);
  return sum.get();
}

TEST(Checksum, DependsOnEachBitAndOnTheLength) {
  for (const auto sum_of : {checksum, checksum_of_parts}) {
    for (const std::size_t count : {0u, 1u, 31u, 32u, 63u, 64u, 65u, 300u, 1024u}) {
      std::vector<std::byte> bytes = counting(count);
      std::set<std::uint64_t> sums = {sum_of(bytes)};
      for (std::byte& byte : bytes) {
        for (const int bit : {0, 7}) {
          byte ^= std::byte{1} << bit;
          sums.insert(sum_of(bytes));
          byte ^= std::byte{1} << bit;
        }
      }
      bytes.push_back({});
      sums.insert(sum_of(bytes));
      EXPECT_EQ(sums.size(), 2 * count + 2) << count;
    }
  }
}

TEST(Checksum, DependsOnTheOrderOfTheParts) {
  std::vector<std::byte> bytes(256);
  for (std::size_t i = 0; i < 4; ++i) bytes[i * 64] = static_cast<std::byte>(i + 1);
  std::set<std::uint64_t> sums = {checksum_of_parts(bytes)};
  std::swap(bytes[0], bytes[64]);
  sums.insert(checksum_of_parts(bytes));
  std::swap(bytes[128], bytes[192]);
  sums.insert(checksum_of_parts(bytes));
  EXPECT_EQ(sums.size(), 3u);
}

TEST(Checksum, IsThatOfItsPartsTogether) {
  const std::vector<std::byte> bytes = counting(1000);
  Checksum sum;
  sum.add(std::span(bytes).first(96));
  sum.add(std::span(bytes).subspan(96));
  EXPECT_EQ(sum.get(), checksum(bytes));
}

/// Files of the code cache have these checksums.
TEST(Checksum, StaysTheSame) {
  EXPECT_EQ(checksum({}), 0x74e97d4135798675u);
  EXPECT_EQ(checksum(counting(1000)), 0x569fca92d7ac9c54u);
}

}  // namespace
}  // namespace tern
