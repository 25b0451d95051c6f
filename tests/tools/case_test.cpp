#include "bench/case.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace tern::bench {
namespace {

TEST(BenchFigures, MissAGoalOnTheWrongSideOfItOnly) {
  const Figure time = {.value = 45, .better = Better::lower, .goal = 45};
  EXPECT_FALSE(time.misses_goal());
  EXPECT_TRUE((Figure{.value = 45.1, .better = Better::lower, .goal = 45}).misses_goal());
  const Figure rate = {.value = 20, .better = Better::higher, .goal = 20};
  EXPECT_FALSE(rate.misses_goal());
  EXPECT_TRUE((Figure{.value = 19.9, .better = Better::higher, .goal = 20}).misses_goal());
  EXPECT_FALSE((Figure{.value = 1e9, .better = Better::lower}).misses_goal()) << "there is none";
}

TEST(BenchFigures, MissAGoalWithWhatIsNoNumber) {
  const double none = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE((Figure{.value = none, .better = Better::lower, .goal = 1}).misses_goal());
  EXPECT_TRUE((Figure{.value = none, .better = Better::higher, .goal = 1}).misses_goal());
}

TEST(BenchFigures, CanHaveNothingForAGoal) {
  EXPECT_FALSE((Figure{.value = 0, .better = Better::lower, .goal = 0}).misses_goal());
  EXPECT_TRUE((Figure{.value = 1, .better = Better::lower, .goal = 0}).misses_goal());
}

TEST(BenchFigures, MeetBothGoalsOrMiss) {
  Figure figure = {.value = 10, .baseline = 9.0, .goal_ratio = 1.0, .goal = 10};
  EXPECT_FALSE(figure.misses_goal());
  figure.baseline = 11.0;
  EXPECT_TRUE(figure.misses_goal());
  figure.baseline = 9.0;
  figure.goal = 11;
  EXPECT_TRUE(figure.misses_goal());
}

TEST(BenchContexts, TakeTheGoalsOfAQuickRunAway) {
  for (const bool is_quick : {false, true}) {
    Context context({.is_quick = is_quick}, [](std::string_view) {});
    context.add({.value = 1, .baseline = 1.0, .goal_ratio = 1.0, .goal = 1});
    EXPECT_EQ(context.figures().front().has_goal(), !is_quick);
    EXPECT_EQ(context.usual_or_quick(7, 3), is_quick ? 3 : 7);
  }
}

TEST(BenchContexts, NoteEachThingOnce) {
  Context context({}, [](std::string_view) {});
  context.note("less memory");
  context.note("less memory");
  context.note("few processors");
  EXPECT_EQ(context.notes().size(), 2u);
}

}  // namespace
}  // namespace tern::bench
