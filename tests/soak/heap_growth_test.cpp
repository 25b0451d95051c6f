// The runs of CI are short: the driver finds only large leaks in them. Small ones are planted here.

#include "soak/heap_growth.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <optional>

namespace tern::soak {
namespace {

constexpr std::size_t requests = 500, kib = 1024, mib = 1024 * kib;

/// The first program after which the judge finds growth, if there is one.
std::optional<std::size_t> found_at(std::size_t programs,
                                    const std::function<std::size_t(std::size_t)>& heap_after) {
  HeapGrowth growth(requests);
  for (std::size_t i = 0; i < programs; ++i) {
    if (growth.note(heap_after(i))) return i;
  }
  return {};
}

TEST(HeapGrowth, AcceptsAHeapThatMovesAndDoesNotGrow) {
  EXPECT_FALSE(found_at(2000, [](std::size_t i) { return 8 * mib + i * 7919 % 600 * kib; }));
}

TEST(HeapGrowth, AcceptsGrowthWhileTheProcessWarmsUp) {
  constexpr std::size_t warm = HeapGrowth::warm_up;
  EXPECT_FALSE(found_at(2000, [](std::size_t i) { return (i < warm ? i : warm) * mib; }));
}

TEST(HeapGrowth, AcceptsOneStepOfATableThatDoubles) {
  EXPECT_FALSE(found_at(2000, [](std::size_t i) { return 8 * mib + (i < 100 ? 0 : 900 * kib); }));
}

TEST(HeapGrowth, AcceptsSingleProgramsWithALargeHeap) {
  EXPECT_FALSE(found_at(2000, [](std::size_t i) { return i % 5 == 0 ? 8 * mib : 80 * mib; }));
}

TEST(HeapGrowth, FindsALeakOfAFewBytesPerRequest) {
  const std::optional<std::size_t> at =
      found_at(2000, [](std::size_t i) { return 8 * mib + i * requests * 8; });
  ASSERT_TRUE(at);
  EXPECT_LT(*at, 600u);
}

TEST(HeapGrowth, FindsALeakThatBeginsLate) {
  const std::optional<std::size_t> at = found_at(
      2000, [](std::size_t i) { return 8 * mib + (i < 1000 ? 0 : (i - 1000) * requests * 100); });
  ASSERT_TRUE(at);
  EXPECT_LT(*at, 1100u);
}

TEST(HeapGrowth, FindsALeakBehindNoise) {
  EXPECT_TRUE(found_at(
      2000, [](std::size_t i) { return 8 * mib + i * 7919 % 600 * kib + i * requests * 16; }));
}

TEST(HeapGrowth, NamesTheGrowth) {
  HeapGrowth growth(requests);
  constexpr std::size_t programs = HeapGrowth::warm_up + HeapGrowth::window;
  for (std::size_t i = 0; i < programs; ++i) EXPECT_FALSE(growth.note(mib));
  std::optional<HeapGrowth::Grown> grown;
  for (std::size_t i = 0; i < HeapGrowth::window; ++i) {
    EXPECT_FALSE(grown) << "a copy of the warm heap is still in the window";
    grown = growth.note(5 * mib);
  }
  ASSERT_TRUE(grown);
  EXPECT_EQ(grown->from_bytes, mib);
  EXPECT_EQ(grown->to_bytes, 5 * mib);
  EXPECT_EQ(grown->requests, HeapGrowth::window * requests);
}

}  // namespace
}  // namespace tern::soak
