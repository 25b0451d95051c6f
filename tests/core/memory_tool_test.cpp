#include "core/memory_tool.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "support/fake_memory_tool.hpp"

namespace tern {
namespace {

using test::FakeMemoryTool;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool is_under_address_sanitizer = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
constexpr bool is_under_address_sanitizer = true;
#else
constexpr bool is_under_address_sanitizer = false;
#endif
#else
constexpr bool is_under_address_sanitizer = false;
#endif

TEST(MemoryTool, IsThereUnderAddressSanitizerAndReplacedOnlyForAWhile) {
  MemoryTool* const before = memory_tool();
  if (is_under_address_sanitizer) {
    EXPECT_NE(before, nullptr);
  }
  {
    FakeMemoryTool fake;
    const ScopedMemoryTool scoped(&fake);
    EXPECT_EQ(memory_tool(), &fake);
  }
  EXPECT_EQ(memory_tool(), before);
}

TEST(MemoryTool, OpensWhatItClosedUnlessThatWasFreed) {
  FakeMemoryTool tool;
  const std::vector<char> kept(64), freed(64);
  tool.poison(kept.data(), kept.size());
  tool.poison(freed.data(), freed.size());
  tool.free(freed.data(), freed.size());
  tool.unpoison_unless_freed(kept.data(), kept.size());
  tool.unpoison_unless_freed(freed.data(), freed.size());
  EXPECT_TRUE(tool.is_accessible(kept.data(), kept.size()));
  EXPECT_TRUE(tool.is_poisoned(freed.data(), freed.size()));
}

TEST(AddressSanitizerTool, ClosesOpensAndTellsWhatWasFreed) {
  MemoryTool* const tool = memory_tool();
  if (!is_under_address_sanitizer) GTEST_SKIP() << "not built with AddressSanitizer";
  auto memory = std::make_unique<char[]>(1000);
  char* const address = memory.get();
  EXPECT_TRUE(tool->is_accessible(address, 1000));
  tool->poison(address, 1000);
  EXPECT_FALSE(tool->is_accessible(address + 999, 1));
  EXPECT_FALSE(tool->is_freed(address, 1000));
  tool->unpoison_unless_freed(address, 1000);
  EXPECT_TRUE(tool->is_accessible(address, 1000));
  tool->poison(address, 1000);
  memory.reset();
  EXPECT_TRUE(tool->is_freed(address, 1000));
  tool->unpoison_unless_freed(address, 1000);
  EXPECT_FALSE(tool->is_accessible(address, 1000));
}

}  // namespace
}  // namespace tern
