#include "backends/handle_table.hpp"

#include <gtest/gtest.h>

#include <string>

namespace tern {
namespace {

TEST(HandleTable, FindsWhatWasAddedUntilItIsRemoved) {
  HandleTable<std::string> table;
  const std::uintptr_t first = table.add("first");
  const std::uintptr_t second = table.add("second");
  EXPECT_NE(first, second);
  EXPECT_EQ(*table.find(first), "first");
  table.remove(first);
  EXPECT_EQ(table.find(first), nullptr);
  EXPECT_EQ(*table.find(second), "second");
}

TEST(HandleTable, NeverGivesAHandleAgain) {
  HandleTable<int> table;
  const std::uintptr_t first = table.add(1);
  table.remove(first);
  table.remove(first);
  EXPECT_NE(table.add(2), first);
  EXPECT_EQ(table.find(first), nullptr);
  EXPECT_EQ(table.find(0), nullptr);
  EXPECT_EQ(table.find(42), nullptr);
}

TEST(HandleTable, KeepsWhatIsBeingUsed) {
  HandleTable<std::string> table;
  const std::uintptr_t handle = table.add("used");
  const std::shared_ptr<const std::string> used = table.find(handle);
  table.remove(handle);
  EXPECT_EQ(*used, "used");
}

}  // namespace
}  // namespace tern
