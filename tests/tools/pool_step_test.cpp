#include "tools/pool_step.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/thorough.hpp"
#include "tern/backends/sim.hpp"
#include "tools/pool_program.hpp"

namespace tern::tools {
namespace {

using Kind = PoolStep::Kind;

TEST(PoolSteps, RunAsTheProgramTheyWereNotedFrom) {
  for (const Mistake mistake : {Mistake::none, Mistake::merge_without_record,
                                Mistake::steal_without_wait, Mistake::remainder_to_thief}) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      const PoolProgram program{.seed = seed};
      const std::optional<Finding> expected = program.run(mistake);
      const std::optional<Finding> found = run_steps(program.steps_against(mistake), mistake);
      ASSERT_EQ(found.has_value(), expected.has_value()) << "seed " << seed;
      if (!found) continue;
      EXPECT_EQ(found->text(), expected->text()) << "seed " << seed;
    }
  }
}

TEST(PoolSteps, AreThoseOfAllTwoHundredStepsAndTheLastLook) {
  const std::vector<PoolStep> steps = PoolProgram{.seed = 3}.steps_against(Mistake::none);
  EXPECT_EQ(steps.front(), (PoolStep{Kind::open, 4, 256 * 1024, 0}));
  EXPECT_GE(steps.size(), 200u);
  std::vector<std::uint32_t> had;
  for (const PoolStep& step : steps) {
    if (step.kind == Kind::allocate) had.push_back(step.block);
    if (step.kind == Kind::free) std::erase(had, step.block);
  }
  EXPECT_EQ(steps.back().kind, Kind::verify);
  EXPECT_TRUE(std::ranges::find(had, steps.back().block) != had.end());
}

TEST(PoolSteps, PassOverBlocksThatWereNeverHadAndStreamsThereAreNot) {
  const std::vector<PoolStep> steps = {{Kind::open, 2, 1024, 0},    {Kind::allocate, 1, 4096, 1},
                                       {Kind::verify, 1, 4096, 1},  {Kind::free, 1, 4096, 1},
                                       {Kind::allocate, 3, 256, 2}, {Kind::free, 3, 256, 2}};
  EXPECT_FALSE(run_steps(steps, Mistake::none));
  const std::vector<PoolStep> stolen = {{Kind::open, 2, 256, 0},
                                        {Kind::allocate, 1, 256, 1},
                                        {Kind::free, 1, 256, 1},
                                        {Kind::allocate, 3, 256, 2}};
  EXPECT_FALSE(run_steps(stolen, Mistake::steal_without_wait)) << "there is no third stream";
  EXPECT_FALSE(run_steps(std::span(steps).subspan(1), Mistake::none)) << "nothing without a pool";
}

TEST(PoolSteps, DependOnTheirBlockAndEverythingOnThePool) {
  const PoolStep open{Kind::open, 4, 1024, 0};
  const PoolStep first{Kind::allocate, 1, 256, 1};
  const PoolStep second{Kind::allocate, 1, 256, 2};
  const PoolStep read_first{Kind::verify, 1, 256, 1};
  const PoolStep free_first{Kind::free, 1, 256, 1};
  EXPECT_TRUE(depends(first, open));
  EXPECT_TRUE(depends(read_first, first));
  EXPECT_TRUE(depends(free_first, first));
  EXPECT_FALSE(depends(free_first, read_first));
  EXPECT_FALSE(depends(read_first, second));
  EXPECT_FALSE(depends(second, first));
}

TEST(PoolSteps, BecomeSimplerAndNeverTheSameAgain) {
  const auto weight = [](const PoolStep& step) { return step.bytes * 16 + step.stream; };
  for (const PoolStep& step : PoolProgram{.seed = 5}.steps_against(Mistake::none)) {
    for (const PoolStep& one : simpler(step)) {
      EXPECT_LT(weight(one), weight(step)) << text_of(step) << " became " << text_of(one);
      EXPECT_EQ(one.kind, step.kind);
      EXPECT_EQ(one.block, step.block);
    }
  }
  EXPECT_TRUE(simpler({Kind::allocate, 1, 256, 1}).empty());
  EXPECT_TRUE(simpler({Kind::verify, 4, 4096, 1}).empty());
}

TEST(PoolSteps, SayWhatTheyDo) {
  EXPECT_EQ(text_of({Kind::open, 4, 256 * 1024, 0}), "open a pool of 256.0 KiB for 4 streams");
  EXPECT_EQ(text_of({Kind::allocate, 2, 512, 7}), "allocate 512 B on S2 as #7, and fill it");
  EXPECT_EQ(text_of({Kind::verify, 2, 512, 7}), "read #7");
  EXPECT_EQ(text_of({Kind::free, 2, 512, 7}), "free #7");
}

TEST(PlantedMistake, ShrinksToADozenStepsInTheMedian) {
  constexpr std::size_t programs = tern::test::is_thorough ? 20 : 5;
  for (const Mistake mistake : all_mistakes) {
    std::vector<std::size_t> sizes;
    for (std::uint64_t seed = 0; sizes.size() < programs; ++seed) {
      const std::vector<PoolStep> steps = PoolProgram{.seed = seed}.steps_against(mistake);
      const std::optional<Finding> found = run_steps(steps, mistake);
      if (!found) continue;
      const auto is_same = [&](std::span<const PoolStep> some) {
        const std::optional<Finding> again = run_steps(some, mistake);
        return again && again->code == found->code;
      };
      const std::vector<PoolStep> shortest = sim::shrink(steps, is_same, depends, simpler);
      ASSERT_TRUE(is_same(shortest)) << "seed " << seed;
      EXPECT_FALSE(run_steps(shortest, Mistake::none)) << "the pool without the mistake is silent";
      sizes.push_back(shortest.size() - 1);
    }
    std::ranges::sort(sizes);
    EXPECT_LE(sizes[sizes.size() / 2], 12u) << name_of(mistake);
  }
}

}  // namespace
}  // namespace tern::tools
