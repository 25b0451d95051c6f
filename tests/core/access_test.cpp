#include "tern/core/access.hpp"

#include <gtest/gtest.h>

namespace tern {
namespace {

TEST(Access, IsAWriteUnlessItOnlyReads) {
  EXPECT_FALSE(is_write(Access::read));
  EXPECT_TRUE(is_write(Access::read_write));
  EXPECT_TRUE(is_write(Access::discard));
}

TEST(Access, NeedsTheOldBytesUnlessItDiscardsThem) {
  EXPECT_TRUE(needs_old_bytes(Access::read));
  EXPECT_TRUE(needs_old_bytes(Access::read_write));
  EXPECT_FALSE(needs_old_bytes(Access::discard));
}

TEST(Access, MergesToWhatCoversBothUses) {
  for (const Access a : {Access::read, Access::read_write, Access::discard}) {
    for (const Access b : {Access::read, Access::read_write, Access::discard}) {
      EXPECT_EQ(merge(a, b), merge(b, a));
      EXPECT_EQ(is_write(merge(a, b)), is_write(a) || is_write(b));
      EXPECT_EQ(needs_old_bytes(merge(a, b)), needs_old_bytes(a) || needs_old_bytes(b));
    }
  }
}

}  // namespace
}  // namespace tern
