#include "tools/formats/utf8.hpp"

#include <gtest/gtest.h>

#include <string>

namespace tern::tools {
namespace {

TEST(Utf8, ValidTextsStayAsTheyAre) {
  for (const char* const text : {"", "plain", "gr\u00fc\u00df", "\u65e5\u672c", "\U0001F426",
                                 "\u007f\u0080\u07ff\u0800\uffff\U00010000\U0010ffff"}) {
    EXPECT_EQ(valid_utf8(text), text);
  }
}

TEST(Utf8, OtherBytesAreReplaced) {
  const std::pair<const char*, const char*> cases[] = {
      {"a\xff"
       "b",
       "a\uFFFD"
       "b"},
      {"\x80", "\uFFFD"},
      {"\xc3", "\uFFFD"},
      {"\xc3(", "\uFFFD("},
      {"\xc0\x80", "\uFFFD\uFFFD"},                      // a zero in two bytes
      {"\xe0\x80\x80", "\uFFFD\uFFFD\uFFFD"},            // in three
      {"\xed\xa0\x80", "\uFFFD\uFFFD\uFFFD"},            // half of a surrogate pair
      {"\xf0\x80\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},  // a zero in four bytes
      {"\xf4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},  // U+110000
      {"\xf5", "\uFFFD"},
      {"\xe6\x97", "\uFFFD\uFFFD"}};
  for (const auto& [bytes, expected] : cases) EXPECT_EQ(valid_utf8(bytes), expected);
}

}  // namespace
}  // namespace tern::tools
