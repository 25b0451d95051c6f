#include "backends/shared_library.hpp"

#include <gtest/gtest.h>

#include <string>

#include "support/no_descriptors.hpp"

namespace tern {
namespace {

TEST(SharedLibrary, IsOpenedByNameAndAskedForItsSymbols) {
  EXPECT_EQ(why_no_libraries(), nullptr);
  void* const library = open_shared_library("libm.so.6");
  ASSERT_NE(library, nullptr);
  EXPECT_NE(find_symbol(library, "cos"), nullptr);
  EXPECT_EQ(find_symbol(library, "tern_there_is_no_such_function"), nullptr);
}

TEST(SharedLibrary, IsNullIfThereIsNone) {
  EXPECT_EQ(open_shared_library("libtern_there_is_no_such_library.so"), nullptr);
}

TEST(SharedLibrary, CannotBeOpenedWithoutDescriptorsAndCanAfterwards) {
  {
    const test::NoDescriptors none;
    ASSERT_NE(why_no_libraries(), nullptr);
    EXPECT_NE(std::string(why_no_libraries()).find("ulimit -n"), std::string::npos);
    EXPECT_EQ(open_shared_library("libm.so.6"), nullptr);
  }
  EXPECT_EQ(why_no_libraries(), nullptr);
  EXPECT_NE(open_shared_library("libm.so.6"), nullptr);
}

}  // namespace
}  // namespace tern
