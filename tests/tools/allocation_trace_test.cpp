#include "bench/allocation_trace.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "tern/core/bytes.hpp"

namespace tern::bench {
namespace {

constexpr double gibibytes(std::size_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(gib);
}

/// Blocks are taken once and freed at most once, on the stream that took them.
void expect_sound(const AllocationTrace& trace) {
  enum class State : std::uint8_t { never, live, freed };
  std::vector<State> states(trace.block_count, State::never);
  std::vector<std::uint32_t> streams(trace.block_count);
  for (const TraceStep& step : trace.steps) {
    ASSERT_LT(step.block, trace.block_count) << trace.name;
    ASSERT_LT(step.stream, trace.stream_count) << trace.name;
    State& state = states[step.block];
    if (step.bytes != 0) {
      ASSERT_EQ(state, State::never) << trace.name << ", block " << step.block;
      state = State::live;
      streams[step.block] = step.stream;
    } else {
      ASSERT_EQ(state, State::live) << trace.name << ", block " << step.block;
      ASSERT_EQ(streams[step.block], step.stream) << trace.name << ", block " << step.block;
      state = State::freed;
    }
  }
  for (std::size_t i = 0; i < states.size(); ++i) {
    EXPECT_NE(states[i], State::never) << trace.name << ", block " << i;
  }
}

TEST(AllocationTraces, TakeEveryBlockOnceAndFreeItOnItsStream) {
  expect_sound(train_varlen());
  expect_sound(train_varlen(4));
  expect_sound(growing_kv_cache());
  expect_sound(multi_stream_etl());
  expect_sound(checkerboard());
}

TEST(AllocationTraces, TrainingHasItsPublishedShape) {
  const TraceFacts facts = facts_of(train_varlen());
  // 219 weights and a workspace; 1,673 in each of 10 iterations; and three states for each weight.
  EXPECT_EQ(facts.allocations, 219u + 1 + 10 * 1673 + 3 * 219);
  EXPECT_EQ(facts.distinct_sizes, 72u);
  EXPECT_NEAR(gibibytes(facts.peak_bytes), 42, 1);
  EXPECT_EQ(facts.left_blocks, 219u + 1 + 3 * 219) << "weights, the workspace and their states";
}

TEST(AllocationTraces, TrainingShrinksWithTheSquareOfItsScale) {
  const double whole = gibibytes(facts_of(train_varlen()).peak_bytes);
  for (const std::size_t scale : {2u, 4u}) {
    const TraceFacts facts = facts_of(train_varlen(scale));
    EXPECT_EQ(facts.allocations, facts_of(train_varlen()).allocations);
    EXPECT_NEAR(gibibytes(facts.peak_bytes), whole / static_cast<double>(scale * scale), 0.1);
  }
}

TEST(AllocationTraces, TheKvCacheHasItsPublishedShape) {
  const TraceFacts facts = facts_of(growing_kv_cache());
  EXPECT_NEAR(static_cast<double>(facts.allocations), 54'000, 1'000);
  EXPECT_NEAR(static_cast<double>(facts.distinct_sizes), 1'700, 50);
  EXPECT_NEAR(gibibytes(facts.peak_bytes), 2.9, 0.05);
}

TEST(AllocationTraces, TheTablesHaveTheirPublishedShape) {
  const AllocationTrace trace = multi_stream_etl();
  const TraceFacts facts = facts_of(trace);
  EXPECT_EQ(trace.stream_count, 4u);
  EXPECT_NEAR(static_cast<double>(facts.allocations), 30'800, 500);
  EXPECT_NEAR(static_cast<double>(facts.distinct_sizes), 26'300, 1'000);
  EXPECT_NEAR(gibibytes(facts.peak_bytes), 10, 0.5);
}

TEST(AllocationTraces, TheCheckerboardPeaksWhereItStarted) {
  const TraceFacts facts = facts_of(checkerboard());
  EXPECT_EQ(facts.allocations, 75u);
  EXPECT_EQ(facts.distinct_sizes, 2u);
  EXPECT_EQ(facts.peak_bytes, 60 * 32 * mib);
  EXPECT_EQ(facts.left_blocks, 0u);
}

}  // namespace
}  // namespace tern::bench
