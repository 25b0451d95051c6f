#include "tools/checked_program.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "support/thorough.hpp"

namespace tern::tools {
namespace {

constexpr std::uint64_t programs = test::is_sanitized ? 200 : 2000;
constexpr std::uint64_t patience = 100;

TEST(CheckedProgram, ThatLeavesNothingOutIsNeverReported) {
  std::size_t with_threads = 0, with_two_devices = 0, reuses = 0, timeline_waits = 0;
  for (std::uint64_t seed = 0; seed < programs; ++seed) {
    const CheckedRun run = CheckedProgram{.seed = seed}.run();
    ASSERT_EQ(run.verdict, Verdict::ordered) << "seed " << seed << ": " << run.why;
    ASSERT_TRUE(run.findings.empty()) << "seed " << seed << "\n" << run.findings.front().text();
    with_threads += run.threads > 1 ? 1 : 0;
    with_two_devices += run.devices > 1 ? 1 : 0;
    reuses += run.reuses;
    timeline_waits += run.timeline_waits;
  }
  for (const std::size_t count : {with_threads, with_two_devices, reuses, timeline_waits}) {
    EXPECT_GT(count, programs / 10) << "programs must have what may go wrong";
  }
}

class EveryOmission : public testing::TestWithParam<NamedOmission> {};

TEST_P(EveryOmission, IsFoundUnderHostileAndFriendlyReuse) {
  for (const sim::Reuse reuse : {sim::Reuse::hostile, sim::Reuse::friendly}) {
    std::size_t races = 0;
    for (std::uint64_t seed = 0; seed < patience; ++seed) {
      const CheckedProgram program{seed, GetParam().omission, reuse};
      const CheckedRun run = program.run();
      if (run.verdict == Verdict::unknown) continue;
      ASSERT_EQ(run.findings.empty(), run.verdict == Verdict::ordered)
          << "seed " << seed << ": " << run.why;
      races += run.verdict == Verdict::race ? 1 : 0;
    }
    EXPECT_GT(races, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(OfSeven, EveryOmission, testing::ValuesIn(all_omissions),
                         [](const auto& omission) {
                           std::string name = omission.param.name;
                           std::ranges::replace(name, ' ', '_');
                           return name;
                         });

TEST(CheckedProgram, EndsAlikeForTheSameSeed) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const CheckedProgram program{.seed = seed, .omission = Omission::any};
    const CheckedRun first = program.run(), second = program.run();
    EXPECT_EQ(first.verdict, second.verdict) << "seed " << seed;
    EXPECT_EQ(first.why, second.why) << "seed " << seed;
    ASSERT_EQ(first.findings.size(), second.findings.size()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace tern::tools
