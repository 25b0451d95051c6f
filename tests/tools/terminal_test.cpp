#include "tools/terminal.hpp"

#include <gtest/gtest.h>

namespace tern::tools {
namespace {

TEST(Terminal, TextsAreBrokenAtBlanks) {
  EXPECT_EQ(wrapped("", 2, 10), "");
  EXPECT_EQ(wrapped("one", 2, 10), "one");
  EXPECT_EQ(wrapped("one two", 2, 9), "one two");
  EXPECT_EQ(wrapped("one two", 2, 8), "one\n  two");
  EXPECT_EQ(wrapped("one two  three", 0, 7), "one two\nthree");
}

TEST(Terminal, ALongWordHasALineOfItsOwn) {
  EXPECT_EQ(wrapped("a /a/long/path b", 1, 6), "a\n /a/long/path\n b");
  EXPECT_EQ(wrapped("/a/long/path", 1, 6), "/a/long/path");
}

}  // namespace
}  // namespace tern::tools
