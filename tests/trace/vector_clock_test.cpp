#include "trace/vector_clock.hpp"

#include <gtest/gtest.h>

namespace tern {
namespace {

TEST(VectorClock, KnowsNothingAtFirst) {
  const VectorClock clock;
  EXPECT_EQ(clock.at(0), 0u);
  EXPECT_EQ(clock.at(1000), 0u);
}

TEST(VectorClock, JoinsToTheLargerOfEachComponent) {
  VectorClock a, b;
  a.set(0, 5);
  a.set(1, 1);
  b.set(1, 3);
  b.set(2, 4);
  EXPECT_TRUE(a.join(b));
  EXPECT_EQ(a.at(0), 5u);
  EXPECT_EQ(a.at(1), 3u);
  EXPECT_EQ(a.at(2), 4u);
  EXPECT_FALSE(a.join(b));
  EXPECT_FALSE(a.join(VectorClock()));
}

TEST(VectorClock, SaysThatItRoseWhicheverComponentDid) {
  for (std::size_t risen = 0; risen < 4; ++risen) {
    VectorClock a, b;
    for (std::size_t i = 0; i < 4; ++i) {
      a.set(i, 7);
      b.set(i, i == risen ? 8 : 6);
    }
    EXPECT_TRUE(a.join(b)) << risen;
  }
}

}  // namespace
}  // namespace tern
