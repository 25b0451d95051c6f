#include "tools/device_program.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "support/thorough.hpp"

namespace tern::tools {
namespace {

using Kind = DeviceStep::Kind;

constexpr std::uint64_t program_count = 20;
constexpr std::uint64_t seeds_each = test::is_sanitized ? 3 : 50;

class EveryPolicy : public testing::TestWithParam<NamedPolicy> {};

TEST_P(EveryPolicy, EndsRaceFreeProgramsWithTheSameBytes) {
  for (std::uint64_t i = 0; i < program_count; ++i) {
    const DeviceProgram program = DeviceProgram::make(i);
    const std::uint64_t expected = program.run({.policy = sim::Policy::eager}).bytes_hash;
    for (const Finding& finding :
         compare_runs(program, GetParam(), i * seeds_each, seeds_each, expected)) {
      ADD_FAILURE() << "program " << i << "\n" << finding.text();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(OfTen, EveryPolicy, testing::ValuesIn(all_policies),
                         [](const auto& policy) {
                           std::string name = policy.param.name;
                           for (char& c : name) {
                             if (c == ':' || c == '-') c = '_';
                           }
                           return name;
                         });

TEST(DeviceProgram, ThatLacksAWaitIsFoundAndCanEndWithOtherBytes) {
  DroppedWaits all;
  for (std::uint64_t i = 100; i < (test::is_sanitized ? 102 : 110); ++i) {
    const DroppedWaits some = drop_waits(DeviceProgram::make(i), 3);
    EXPECT_EQ(some.missed, 0u) << "program " << i << " ends with other bytes, and no finding";
    EXPECT_EQ(some.shown_by_eager, 0u) << "program " << i;
    all.waits += some.waits;
    all.found += some.found;
    all.shown += some.shown;
  }
  std::printf("%zu waits left out: %zu found, %zu shown by other bytes\n", all.waits, all.found,
              all.shown);
  // A few waits are made superfluous by the next one.
  EXPECT_GE(all.found * 100, all.waits * 80);
  EXPECT_GE(all.shown * 100, all.waits * 20);
}

TEST(DeviceProgram, IsTheSameForTheSameSeedAndUsesEverythingThereIs) {
  std::set<Kind> kinds;
  std::set<DeviceStep::Where> places;
  std::set<std::size_t> streams;
  for (std::uint64_t seed = 0; seed < program_count; ++seed) {
    const DeviceProgram program = DeviceProgram::make(seed);
    EXPECT_EQ(program.run({.seed = 5}).bytes_hash, DeviceProgram::make(seed).run({}).bytes_hash);
    for (const DeviceStep& step : program.steps) {
      kinds.insert(step.kind);
      if (step.kind == Kind::allocate || step.kind == Kind::begin) places.insert(step.where);
      if (step.kind == Kind::fill) streams.insert(step.stream);
    }
  }
  EXPECT_EQ(kinds.size(), static_cast<std::size_t>(Kind::prefetch) + 1);
  EXPECT_EQ(places.size(), 5u);
  EXPECT_EQ(streams.size(), DeviceProgram::streams);
  EXPECT_NE(DeviceProgram::make(1).run({}).bytes_hash, DeviceProgram::make(2).run({}).bytes_hash);
}

TEST(CompareRuns, NamesBothSchedulesWhereTheBytesDiffer) {
  const DeviceProgram program = DeviceProgram::make(0);
  const std::uint64_t hash = program.run({}).bytes_hash;
  const std::vector<Finding> found = compare_runs(program, all_policies[1], 6, 2, hash + 1);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].code, FindingCode::wrong_bytes);
  const std::string text = found[0].text();
  EXPECT_EQ(text.substr(0, 21), "TERN-S901 wrong-bytes");
  EXPECT_NE(text.find("schedule lazy, seed 0x6, reuse hostile"), text.npos) << text;
  EXPECT_NE(text.find("schedule eager, seed 0x0, reuse hostile"), text.npos) << text;
  EXPECT_NE(found[1].text().find("seed 0x7, reuse friendly"), text.npos) << found[1].text();
  EXPECT_TRUE(compare_runs(program, all_policies[1], 6, 2, hash).empty());
}

TEST(CompareRuns, GivesTheFindingOfARunThatHasOne) {
  const DeviceProgram program = DeviceProgram::make(0);
  const std::uint64_t hash = program.run({}).bytes_hash;
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    if (program.steps[i].kind != Kind::wait_stream) continue;
    const std::vector<Finding> found =
        compare_runs(program.without(i), all_policies[0], 0, 1, hash);
    if (found.empty()) continue;
    EXPECT_LT(found[0].code, FindingCode::wrong_bytes);
    return;
  }
  FAIL() << "no wait of the program was needed";
}

}  // namespace
}  // namespace tern::tools
