#include "tern/backends/sim_gtest.hpp"

#include <gtest/gtest-spi.h>

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
}

}  // namespace
}  // namespace tern
