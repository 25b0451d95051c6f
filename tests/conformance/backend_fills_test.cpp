// Fills of every element width, at any address, small and large.

#include <complex>
#include <limits>

#include "support/ladder.hpp"

namespace tern::test {
namespace {

constexpr std::byte guard_byte{0x5A};

class Fills : public Ladder {
 protected:
  static Pattern pattern_of(std::size_t width) {
    Pattern pattern;
    pattern.width_bytes = width;
    for (std::size_t i = 0; i < width; ++i) pattern.bytes[i] = static_cast<std::byte>(i + 1);
    return pattern;
  }

  /// Fills `count` elements at an offset and compares every byte, those around it too.
  void expect_filled(std::size_t width, std::size_t count, std::size_t offset) {
    const Pattern pattern = pattern_of(width);
    const std::size_t bytes = width * count;
    const Block block(device, offset + bytes + 64);
    write(block.get(), Bytes(offset + bytes + 64, guard_byte));
    ASSERT_TRUE(stream.try_fill_bytes(block.get() + offset, bytes, pattern));
    const Bytes out = read(block.get(), offset + bytes + 64);

    Bytes expected(offset + bytes + 64, guard_byte);
    for (std::size_t i = 0; i < bytes; ++i) expected[offset + i] = pattern.bytes[i % width];
    EXPECT_TRUE(out == expected) << count << " elements of " << width << " bytes at " << offset;
  }
};
TERN_CLIMB(Fills);

TEST_P(Fills, EveryWidthAtOddCountsAndAddresses) {
  for (std::size_t width = 1; width <= Pattern::max_bytes; ++width) {
    for (const std::size_t count : {1u, 2u, 3u, 63u, 1001u}) {
      for (const std::size_t offset : {0u, 1u, 7u}) expect_filled(width, count, offset);
    }
  }
}

TEST_P(Fills, EveryWidthWhereManyThreadsShareTheWork) {
  for (std::size_t width = 1; width <= Pattern::max_bytes; ++width) {
    expect_filled(width, (2 * mib + 1000) / width, width % 3);
  }
}

TEST_P(Fills, PatternsOfOneRepeatedByte) {
  const Block block(device, 4000);
  stream.fill(reinterpret_cast<std::uint32_t*>(block.get()), 1000, 0x07070707u);
  EXPECT_EQ(read(block.get(), 4000), Bytes(4000, std::byte{7}));
}

TEST_P(Fills, ValuesOfTheirType) {
  const Block block(device, 1600);
  stream.fill(reinterpret_cast<double*>(block.get()), 100, 1.5);
  Bytes out = read(block.get(), 800);
  for (std::size_t i = 0; i < 100; ++i) {
    double value = 0;
    std::memcpy(&value, out.data() + i * 8, 8);
    EXPECT_EQ(value, 1.5);
  }
  using Complex = std::complex<double>;
  stream.fill(reinterpret_cast<Complex*>(block.get()), 100, Complex(1, -2));
  out = read(block.get(), 1600);
  Complex last;
  std::memcpy(&last, out.data() + 99 * 16, 16);
  EXPECT_EQ(last, Complex(1, -2));
}

TEST_P(Fills, NothingForZeroBytes) {
  EXPECT_TRUE(stream.try_fill_bytes(nullptr, 0, pattern_of(4)));
  EXPECT_TRUE(stream.try_fill(static_cast<int*>(nullptr), 0, 1));
}

TEST_P(Fills, NothingWithAnImpossiblePattern) {
  const Block block(device, 64);
  for (const std::size_t width : {std::size_t{0}, std::size_t{17}, std::size_t{1} << 60}) {
    Pattern pattern;
    pattern.width_bytes = width;
    expect_refused(stream.try_fill_bytes(block.get(), 64, pattern), ErrorCode::invalid_argument);
    expect_refused(stream.try_fill_bytes(block.get(), 0, pattern), ErrorCode::invalid_argument);
  }
}

TEST_P(Fills, WholeElementsOnly) {
  const Block block(device, 64);
  const Result<void> refused = stream.try_fill_bytes(block.get(), 63, pattern_of(4));
  expect_refused(refused, ErrorCode::size_mismatch);
  EXPECT_EQ(refused.failure().number("expected"), 4u);
  EXPECT_EQ(refused.failure().number("actual"), 63u);
}

TEST_P(Fills, NothingAtNullOrPastTheEndOfMemory) {
  const Block block(device, 64);
  auto* numbers = reinterpret_cast<std::uint64_t*>(block.get());
  expect_refused(stream.try_fill_bytes(nullptr, 64, pattern_of(4)), ErrorCode::invalid_argument);
  expect_refused(stream.try_fill(numbers, std::numeric_limits<std::size_t>::max(), 1),
                 ErrorCode::size_overflow);
  expect_refused(stream.try_fill(numbers, max_request_bytes / 8 + 1, 1), ErrorCode::size_overflow);
  expect_refused(
      stream.try_fill_bytes(block.get(), std::numeric_limits<std::size_t>::max(), pattern_of(1)),
      ErrorCode::size_overflow);
}

}  // namespace
}  // namespace tern::test
