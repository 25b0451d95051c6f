// The checker finds the planted errors, and nothing else.

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "support/thorough.hpp"
#include "tools/planted_pool.hpp"
#include "tools/pool_program.hpp"

namespace tern::test {
namespace {

using tools::all_mistakes;
using tools::Mistake;
using tools::PlantedPool;
using tools::PoolProgram;

class PlantedMistake : public testing::TestWithParam<Mistake> {};

TEST_P(PlantedMistake, IsFoundWithinAHundredPrograms) {
  constexpr std::uint64_t programs = is_thorough ? 1000 : 100;
  std::uint64_t found = 0;
  std::uint64_t first = 0;
  for (std::uint64_t seed = 0; seed < programs; ++seed) {
    const PoolProgram program{.seed = seed};
    const std::optional<Finding> finding = program.run(GetParam());
    if (!finding) continue;
    EXPECT_EQ(finding->code, FindingCode::reuse_before_ready) << finding->text();
    ++found;
    if (first == 0) first = seed + 1;
  }
  std::printf("M%d %s: found in %.1f %% of %llu programs, first after %llu\n",
              static_cast<int>(GetParam()), std::string(name_of(GetParam())).c_str(),
              100.0 * static_cast<double>(found) / static_cast<double>(programs),
              static_cast<unsigned long long>(programs), static_cast<unsigned long long>(first));
  EXPECT_GT(first, 0u);
  EXPECT_LE(first, 100u);
}

INSTANTIATE_TEST_SUITE_P(OfSix, PlantedMistake, testing::ValuesIn(all_mistakes),
                         [](const auto& mistake) {
                           return "M" + std::to_string(static_cast<int>(mistake.param));
                         });

/// In four parts, so that each is done well within the time limit of a test.
class CorrectPool : public testing::TestWithParam<std::uint64_t> {};

TEST_P(CorrectPool, GivesNoFinding) {
  constexpr std::uint64_t programs = is_thorough ? 25'000 : 500;
  std::uint64_t operations = 0;
  std::uint64_t findings = 0;
  for (std::uint64_t i = 0; i < programs; ++i) {
    const PoolProgram program{.seed = 1'000'000 * (GetParam() + 1) + i};
    const std::optional<Finding> finding = program.run(Mistake::none, &operations);
    if (!finding) continue;
    ++findings;
    ADD_FAILURE() << "seed " << program.seed << "\n" << finding->text();
    if (findings == 5) break;
  }
  std::printf("correct pool: %llu findings in %llu programs of 200 steps, %llu operations\n",
              static_cast<unsigned long long>(findings), static_cast<unsigned long long>(programs),
              static_cast<unsigned long long>(operations));
}

INSTANTIATE_TEST_SUITE_P(Part, CorrectPool, testing::Range<std::uint64_t>(0, 4));

TEST(CorrectPool, GivesNoFindingWithManyStreams) {
  for (std::uint64_t seed = 0; seed < (is_thorough ? 500 : 20); ++seed) {
    const PoolProgram program{.seed = seed, .steps = 400, .streams = 48, .pool_bytes = 1 << 20};
    const std::optional<Finding> finding = program.run(Mistake::none);
    ASSERT_FALSE(finding) << "seed " << seed << "\n" << finding->text();
  }
}

/// RAPIDS RMM, issue 2489: a merge that takes over a list and records no event for it.
std::optional<Finding> run_rmm_2489(Mistake mistake) {
  constexpr ActorId a = 1, b = 2, c = 3;
  constexpr std::uint64_t kibi = 1024;
  OrderChecker checker;
  PlantedPool pool(checker, 1024 * kibi, 3, mistake);
  EXPECT_TRUE(pool.allocate(b, 960 * kibi));
  const auto x = pool.allocate(a, 32 * kibi);
  EXPECT_TRUE(pool.allocate(a, 32 * kibi));
  pool.use(a, TouchKind::write, *x, 32 * kibi);
  pool.free(a, *x, 32 * kibi);
  EXPECT_FALSE(pool.allocate(b, 256 * kibi)) << "it cannot be had, but the list of A has moved";
  EXPECT_FALSE(pool.finding());
  EXPECT_EQ(pool.allocate(c, 32 * kibi), x);
  return pool.finding();
}

TEST(Rmm2489, IsFoundWhereTheBlockIsGivenOutAndTheHintNamesTheStreamThatMerged) {
  const std::optional<Finding> found = run_rmm_2489(Mistake::merge_without_record);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->code, FindingCode::reuse_before_ready);
  EXPECT_EQ(
      found->text(),
      "TERN-S103 reuse-before-ready                    trace  step 15\n"
      "  what    [0xf0000, +32 KiB) was allocated to stream S3 while stream S1 may still write it\n"
      "  now     S3@2  allocate 32 KiB\n"
      "  before  S1@4  deallocate\n"
      "          S1@3  kernel \"fill\" writes [0xf0000, +32 KiB)\n"
      "  block   generation 1, 32 KiB on S1@1\n"
      "  order   S3 knows S1 up to 0, needs 4; S3@1 waited for an event that was never "
      "recorded; S2 knows it since S2@3 and recorded nothing after that\n"
      "  fix     record an event on S2 after S2@3 and let S3 wait for it, or let S3 wait for "
      "S1@4\n");
}

TEST(Rmm2489, IsSilentOnceTheMergeRecords) { EXPECT_FALSE(run_rmm_2489(Mistake::none)); }

}  // namespace
}  // namespace tern::test
