#include "tern/device/mark.hpp"

#include <gtest/gtest.h>

#include <unordered_set>

namespace tern {
namespace {

TEST(StreamId, ReturnsItsParts) {
  struct Parts {
    std::uint32_t device, slot, number;
  };
  for (const Parts& parts :
       {Parts{1, 0, 0}, Parts{1, 1, 1}, Parts{7, 4095, (1u << 28) - 1},
        Parts{(1u << 24) - 1, 4095, (1u << 28) - 1}, Parts{(1u << 24) - 1, 0, 0}}) {
    const StreamId id(DeviceId{parts.device}, parts.slot, parts.number);
    EXPECT_EQ(id.device().value, parts.device);
    EXPECT_EQ(id.slot(), parts.slot);
    EXPECT_EQ(id.number(), parts.number);
    EXPECT_TRUE(id);
  }
}

TEST(StreamId, IsFalseIfItNamesNone) {
  EXPECT_FALSE(StreamId());
  EXPECT_EQ(StreamId().value(), 0u);
}

TEST(StreamId, ComparesAndHashes) {
  const StreamId a(DeviceId{1}, 2, 3), b(DeviceId{1}, 2, 4), c(DeviceId{2}, 2, 3);
  EXPECT_EQ(a, StreamId(DeviceId{1}, 2, 3));
  EXPECT_LT(a, b);
  EXPECT_LT(b, c);
  const std::unordered_set<StreamId> set = {a, b, c, a};
  EXPECT_EQ(set.size(), 3u);
}

TEST(Mark, IsFalseIfItNamesNoWork) {
  EXPECT_FALSE(Mark{});
  EXPECT_TRUE((Mark{StreamId(DeviceId{1}, 0, 0), 0}));
  EXPECT_EQ(sizeof(Mark), 16u);
}

}  // namespace
}  // namespace tern
