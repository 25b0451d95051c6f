#include "core/text.hpp"

#include <gtest/gtest.h>

#include <string>

#include "support/allocation_counter.hpp"
#include "tern/core/bytes.hpp"

namespace tern {
namespace {

using namespace std::string_view_literals;

TEST(Utf8PrefixBytes, KeepsATextThatFits) {
  EXPECT_EQ(utf8_prefix_bytes("", 0), 0u);
  EXPECT_EQ(utf8_prefix_bytes("abc", 3), 3u);
  EXPECT_EQ(utf8_prefix_bytes("abc", 4), 3u);
  EXPECT_EQ(utf8_prefix_bytes("\xe2\x82\xac", 3), 3u);
}

TEST(Utf8PrefixBytes, CutsAsciiAtTheLimit) {
  EXPECT_EQ(utf8_prefix_bytes("abc", 2), 2u);
  EXPECT_EQ(utf8_prefix_bytes("abc", 0), 0u);
}

TEST(Utf8PrefixBytes, NeverCutsInsideACharacter) {
  // One, two, three and four bytes: a, é, €, 😀. Only these ends lie between two of them.
  const std::string_view text = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z";
  const std::size_t ends[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11};
  for (std::size_t limit = 0; limit < std::size(ends); ++limit) {
    EXPECT_EQ(utf8_prefix_bytes(text, limit), ends[limit]) << "limit " << limit;
  }
}

TEST(Utf8PrefixBytes, EndsOnTextThatIsNoUtf8) {
  const std::string continuations(300, '\x80');
  EXPECT_LE(utf8_prefix_bytes(continuations, 255), 255u);
}

TEST(FormatBytesTo, WritesNoMoreThanSixteenBytesAndNoHeap) {
  for (const std::uint64_t bytes :
       {std::uint64_t{0}, std::uint64_t{1023}, std::uint64_t{1048524}, ~std::uint64_t{0}}) {
    char buffer[17];
    buffer[16] = '#';
    const test::AllocationCounter counter;
    const std::size_t length = format_bytes_to(buffer, 16, bytes);
    EXPECT_EQ(counter.count(), 0u);
    EXPECT_LE(length, 16u);
    EXPECT_EQ(std::string(buffer, length), format_bytes(bytes));
    EXPECT_EQ(buffer[16], '#');
  }
}

TEST(EqualsIgnoringCase, FoldsAsciiLettersOnly) {
  EXPECT_TRUE(equals_ignoring_case("CUDA:0", "cuda:0"));
  EXPECT_TRUE(equals_ignoring_case("azAZ", "AZaz"));
  EXPECT_TRUE(equals_ignoring_case("", ""));
  EXPECT_FALSE(equals_ignoring_case("cuda", "cuda "));
  EXPECT_FALSE(equals_ignoring_case("cuda", "cudb"));
  EXPECT_FALSE(equals_ignoring_case("a\0b"sv, "a\0c"sv));
  // Neighbours of the letters in ASCII, and É beside é.
  EXPECT_FALSE(equals_ignoring_case("@", "`"));
  EXPECT_FALSE(equals_ignoring_case("[", "{"));
  EXPECT_FALSE(equals_ignoring_case("\xc3\x89", "\xc3\xa9"));
}

}  // namespace
}  // namespace tern
