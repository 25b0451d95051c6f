#include "trace/record_list.hpp"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace tern {
namespace {

TEST(RecordList, KeepsNamesAndTouchesThatAreGone) {
  RecordList list;
  for (int i = 0; i < 100; ++i) {
    const std::string name = "a name that is too long to lie inline " + std::to_string(i % 3);
    const std::vector<Touch> touches(static_cast<std::size_t>(i % 4),
                                     {TouchKind::write, {1, static_cast<std::uint64_t>(i), 8}});
    list.add({.actor = 3, .name = name, .touches = touches});
  }
  const RecordList moved = std::move(list);
  ASSERT_EQ(moved.size(), 100u);
  for (std::size_t i = 0; i < 100; ++i) {
    const TraceRecord& record = moved.records()[i];
    EXPECT_EQ(record.actor, 3u);
    EXPECT_EQ(record.name, "a name that is too long to lie inline " + std::to_string(i % 3));
    ASSERT_EQ(record.touches.size(), i % 4);
    for (const Touch& touch : record.touches) {
      EXPECT_EQ(touch.kind, TouchKind::write);
      EXPECT_EQ(touch.range.offset, i);
    }
  }
}

TEST(RecordList, IsEmptyAgainWhenItIsCleared) {
  RecordList list;
  EXPECT_TRUE(list.empty());
  list.add({.name = "n"});
  EXPECT_FALSE(list.empty());
  list.clear();
  EXPECT_TRUE(list.empty());
  EXPECT_TRUE(list.records().empty());
}

}  // namespace
}  // namespace tern
