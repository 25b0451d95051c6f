#include "tern/detail/trace/record.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace tern {
namespace {

constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();

bool takes(Touch touch) { return is_well_formed(TraceRecord{.touches = {&touch, 1}}); }

TEST(IsWellFormed, BoundsTheNumbersOfActors) {
  EXPECT_TRUE(is_well_formed({.actor = max_actors - 1, .host = max_actors - 1}));
  EXPECT_FALSE(is_well_formed({.actor = max_actors}));
  EXPECT_FALSE(is_well_formed({.host = max_actors}));
  EXPECT_FALSE(is_well_formed({.actor = ~ActorId{0}}));
}

TEST(IsWellFormed, RefusesRangesThatWrap) {
  EXPECT_TRUE(takes({.range = {1, 0, most}}));
  EXPECT_TRUE(takes({.range = {1, most, 0}}));
  EXPECT_TRUE(takes({.range = {1, most - 1, 1}}));
  EXPECT_FALSE(takes({.range = {1, most, 1}}));
  EXPECT_FALSE(takes({.range = {1, 1, most}}));
}

TEST(IsWellFormed, RefusesEnumeratorsThatDoNotExist) {
  EXPECT_TRUE(is_well_formed({.kind = RecordKind::shutdown,
                              .operation = OperationKind::prefetch,
                              .actor_kind = ActorKind::default_stream}));
  EXPECT_FALSE(is_well_formed({.kind = static_cast<RecordKind>(200)}));
  EXPECT_FALSE(is_well_formed({.operation = static_cast<OperationKind>(200)}));
  EXPECT_FALSE(is_well_formed({.actor_kind = static_cast<ActorKind>(200)}));
  EXPECT_TRUE(takes({.kind = TouchKind::subrelease}));
  EXPECT_FALSE(takes({.kind = static_cast<TouchKind>(7)}));
}

TEST(IsWellFormed, LooksAtEveryTouch) {
  const Touch touches[] = {{.range = {1, 0, 8}}, {.range = {1, most, 8}}};
  EXPECT_FALSE(is_well_formed({.touches = touches}));
}

}  // namespace
}  // namespace tern
