#include "tern/backends/sim_gtest.hpp"

#include <gtest/gtest-spi.h>

#include <filesystem>

#include "tern/trace/trace_check.hpp"

namespace tern {
namespace {

constexpr std::size_t count = 1024;

class SimFixture : public sim::Test {
 protected:
  /// Two streams share a column; only with the wait is that right.
  static void hand_over(sim::Run& run, bool with_wait) {
    const StreamRef produce = run.stream("produce");
    const StreamRef consume = run.stream("consume");
    auto* column =
        static_cast<int*>(run.device().allocate(MemoryKind::device, count * sizeof(int)));
    std::vector<int> result(count);
    produce.fill(column, count, 7);
    if (with_wait) consume.wait(produce.mark());
    consume.copy(result.data(), column, count * sizeof(int));
    run.device().synchronize();
    EXPECT_EQ(result.back(), 7);
    run.device().release(column);
  }
};

TEST_F(SimFixture, PassesWhatIsOrdered) {
  int runs = 0;
  for_each_schedule(20, [&](sim::Run& run) {
    ++runs;
    hand_over(run, true);
  });
  EXPECT_EQ(runs, 20);
}

TEST_F(SimFixture, PassesAPlantedMistakeThatIsExpected) {
  for_each_schedule(20, [](sim::Run& run) {
    run.expect("TERN-S101");
    hand_over(run, false);
  });
}

TEST_F(SimFixture, FailsOnAMistakeWithTheReportAndTheLineThatRepeatsIt) {
  EXPECT_NONFATAL_FAILURE(for_each_schedule(1,
                                            [](sim::Run& run) {
                                              const StreamRef a = run.stream("a");
                                              static_cast<void>(a.allocate(64));
                                            }),
                          "TERN-S206 leak");
  std::filesystem::remove(
      "tern-SimFixture.FailsOnAMistakeWithTheReportAndTheLineThatRepeatsIt-0.trace");
}

TEST_F(SimFixture, CallsNothingALeakThatAViolationKeptFromBeingFreed) {
  // One failure, and not a second one for the column.
  EXPECT_NONFATAL_FAILURE(for_each_schedule(1, [](sim::Run& run) { hand_over(run, false); }),
                          "TERN-S101 missing-wait");
  std::filesystem::remove(
      "tern-SimFixture.CallsNothingALeakThatAViolationKeptFromBeingFreed-0.trace");
}

TEST_F(SimFixture, NamesTheSeedWhenTheTestItselfFails) {
  EXPECT_NONFATAL_FAILURE(
      for_each_schedule(3, [](sim::Run& run) { EXPECT_NE(run.seed(), 2u); }),
      "replay: TERN_SIM_SEED=2 --gtest_filter=SimFixture.NamesTheSeedWhenTheTestItselfFails");
}

TEST_F(SimFixture, SaysWhatWasFoundInsteadOfWhatWasExpected) {
  EXPECT_NONFATAL_FAILURE(for_each_schedule(1,
                                            [](sim::Run& run) {
                                              run.expect("S101");
                                              hand_over(run, false);
                                            }),
                          "should have ended with S101, and ended with TERN-S101");
  EXPECT_NONFATAL_FAILURE(for_each_schedule(1,
                                            [](sim::Run& run) {
                                              run.expect("TERN-S101");
                                              hand_over(run, true);
                                            }),
                          "should have ended with TERN-S101, and ended with no finding");
  std::filesystem::remove("tern-SimFixture.SaysWhatWasFoundInsteadOfWhatWasExpected-0.trace");
}

TEST_F(SimFixture, LeavesTheTraceOfARunThatFailed) {
  const std::string path = "tern-SimFixture.LeavesTheTraceOfARunThatFailed-0.trace";
  EXPECT_NONFATAL_FAILURE(
      for_each_schedule(1, [](sim::Run& run) { static_cast<void>(run.stream("a").allocate(64)); }),
      "--gtest_filter=SimFixture.LeavesTheTraceOfARunThatFailed  "
      "(tern-SimFixture.LeavesTheTraceOfARunThatFailed-0.trace, 6 records)");
  Result<TraceReader> reader = TraceReader::try_open(path);
  ASSERT_TRUE(reader);
  std::string found;
  const CheckSummary summary =
      check_trace(*reader, [&](const Finding& finding) { found += code_text(finding.code); });
  EXPECT_EQ(found, "TERN-S206");
  EXPECT_TRUE(summary.is_complete);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace tern
