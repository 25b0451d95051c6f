// The judge rejects wrong declarations: too few allowed outcomes, too many, and a forbidden outcome
// that occurred.

#include "litmus/judge.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "litmus/sim_runs.hpp"

namespace tern::test::litmus {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// A race whose outcomes are 0 and 1, whatever is declared.
Program declared(const std::string& outcomes) {
  const std::vector<Program> programs = parse_programs(
      "### race\nA writer and a reader.\n```litmus\ndevice x\npinned r0\nA fill x 1\n"
      "B copy x -> r0\nsees r0\nracy TERN-S101\n" +
      outcomes + "```\n");
  return programs.front();
}

Tally run(const Program& program) {
  const SimRuns runs = run_on_sim(program, 1'000, 0);
  EXPECT_TRUE(runs.is_complete);
  return runs.tally;
}

TEST(LitmusJudge, AcceptsWhatIsDeclaredRight) {
  const Program program = declared("allowed 0\nallowed 1\n");
  const Tally tally = run(program);
  EXPECT_THAT(judge_sim(program, tally), IsEmpty());
  EXPECT_THAT(judge(program, tally), IsEmpty());
  EXPECT_EQ(distinct(program, tally), 2u);
}

TEST(LitmusJudge, RefusesASetThatIsTooSmall) {
  const Program program = declared("allowed 1\nforbidden 0\n");
  const auto complaint = HasSubstr(
      "race: the outcome '0' was seen 1 times in 2 runs, and is named as forbidden. "
      "Allowed: '1'.");
  EXPECT_THAT(judge_sim(program, run(program)), ElementsAre(complaint));
  EXPECT_THAT(judge(program, run(program)), ElementsAre(complaint));
}

TEST(LitmusJudge, RefusesASetThatIsTooLargeOnSimOnly) {
  const Program program = declared("allowed 0\nallowed 1\nallowed 2\n");
  EXPECT_THAT(judge_sim(program, run(program)),
              ElementsAre("race: the outcome '2' is allowed and was not seen in 2 runs."));
  EXPECT_THAT(judge(program, run(program)), IsEmpty());
}

TEST(LitmusJudge, LetsOthersDoMoreThanSimOnlyWhereItIsSaid) {
  const Program program = declared("allowed 0\nallowed 1\nbeyond-sim 2\n");
  Tally tally = run(program);
  EXPECT_THAT(judge_sim(program, tally), IsEmpty());
  tally.add({2});
  EXPECT_THAT(judge(program, tally), IsEmpty());
  EXPECT_EQ(distinct(program, tally), 2u);
  EXPECT_EQ(distinct_beyond_sim(program, tally), 1u);
  EXPECT_THAT(judge_sim(program, tally), ElementsAre(HasSubstr("the outcome '2' was seen")));
  tally.add({3});
  EXPECT_THAT(judge(program, tally), ElementsAre(HasSubstr("the outcome '3' was seen")));
}

TEST(LitmusJudge, AnOpenWordMatchesAnything) {
  const Program program = declared("allowed *\n");
  Tally tally;
  tally.add({0x7fc92221});
  EXPECT_THAT(judge_sim(program, tally), IsEmpty());
}

}  // namespace
}  // namespace tern::test::litmus
