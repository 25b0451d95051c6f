#include "memory/pool/size_class.hpp"

#include <gtest/gtest.h>

namespace tern::pool {
namespace {

TEST(SizeClass, HasEightyClassesThatGrow) {
  EXPECT_EQ(class_bytes(0), 256u);
  EXPECT_EQ(class_bytes(7), 2048u);
  EXPECT_EQ(class_bytes(8), 2304u);
  EXPECT_EQ(class_bytes(15), 4096u);
  EXPECT_EQ(class_bytes(16), 4608u);
  EXPECT_EQ(class_bytes(79), 1u << 20);
  for (std::size_t i = 1; i < class_count; ++i) {
    EXPECT_GT(class_bytes(i), class_bytes(i - 1));
    EXPECT_EQ(class_bytes(i) % granule_bytes, 0u);
  }
}

TEST(SizeClass, IsTheSmallestThatHoldsTheBytes) {
  for (std::size_t bytes = 1; bytes <= largest_class_bytes; ++bytes) {
    const std::size_t index = class_of(bytes);
    ASSERT_LT(index, class_count) << bytes;
    ASSERT_GE(class_bytes(index), bytes);
    if (index > 0) {
      ASSERT_LT(class_bytes(index - 1), bytes);
    }
  }
}

TEST(SizeClass, WastesNoMoreThanAnEighthAbove2KiB) {
  for (std::size_t bytes = 2049; bytes < 40u << 20; bytes += 97) {
    const std::size_t granted = granted_bytes(bytes);
    ASSERT_GE(granted, bytes);
    ASSERT_LE((granted - bytes) * 8, granted) << bytes;
  }
}

TEST(SizeClass, GrantsExactSizesThenPages) {
  EXPECT_EQ(granted_bytes(1), 256u);
  EXPECT_EQ(granted_bytes((1u << 20) + 1), (1u << 20) + 256);
  EXPECT_EQ(granted_bytes(min_large_bytes - 1), min_large_bytes);
  EXPECT_EQ(granted_bytes(min_large_bytes - 256), min_large_bytes - 256);
  EXPECT_EQ(granted_bytes(min_large_bytes), min_large_bytes);
  EXPECT_EQ(granted_bytes(min_large_bytes + 1), min_large_bytes + page_bytes);
  // A grant is granted as it is: asking for it again wastes nothing more.
  for (std::size_t bytes = 1; bytes < 64u << 20; bytes += 4099) {
    EXPECT_EQ(granted_bytes(granted_bytes(bytes)), granted_bytes(bytes));
  }
}

}  // namespace
}  // namespace tern::pool
