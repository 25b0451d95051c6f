// Runs every litmus program on every device. All outcomes of a device must be allowed on sim.
//
// There is one test per device. It runs all programs and prints one line at the end. On devices
// other than sim, a program runs 20 times, 100 times in the long form, or LITMUS_RUNS times.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "litmus/field.hpp"
#include "litmus/judge.hpp"
#include "litmus/program.hpp"
#include "litmus/sim_runs.hpp"
#include "support/ladder.hpp"
#include "support/thorough.hpp"
#include "tern/detail/core/config.hpp"

namespace tern::test::litmus {
namespace {

/// Where the long form runs, this is every schedule of every program.
std::uint64_t max_schedules() { return is_sanitized ? 300 : in_full() ? 1'000'000 : 3'000; }

TEST(LitmusOnSim, EveryScheduleShowsWhatIsAllowedAndNothingElse) {
  std::uint64_t runs = 0, complete = 0;
  std::size_t outcomes = 0, refused = 0;
  for (const Program& program : all_programs()) {
    const SimRuns done = run_on_sim(program, max_schedules(), 40);
    for (const std::string& complaint : judge_sim(program, done.tally)) {
      ADD_FAILURE() << complaint;
      ++refused;
    }
    runs += done.tally.runs;
    complete += done.is_complete ? 1 : 0;
    outcomes += distinct(program, done.tally);
  }
  fmt::print(
      "litmus: {} programs on sim, {} runs, {} distinct outcomes, {} complaints, {} programs under "
      "every schedule\n",
      all_programs().size(), runs, outcomes, refused, complete);
  if (in_full() && !is_sanitized) {
    EXPECT_EQ(complete, all_programs().size());
  }
}

TEST(LitmusOnSim, TheCheckerFindsEveryRaceAndNothingElse) {
  constexpr std::uint64_t seeds = 10;
  for (const Program& program : all_programs()) {
    SCOPED_TRACE(program.name);
    std::uint64_t found = 0;
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      const std::vector<std::string> codes = findings_of(program, seed);
      if (codes.empty()) continue;
      ++found;
      EXPECT_EQ(codes.front(), program.finding) << "seed " << seed;
    }
    // The order of submission decides, unless the host has got an answer that orders.
    if (program.finding.empty()) {
      EXPECT_EQ(found, 0u);
    } else if (asks(program)) {
      EXPECT_GT(found, 0u);
    } else {
      EXPECT_EQ(found, seeds);
    }
  }
}

/// Does somebody notice that the program is not what it says: the checker, or the judge?
bool is_noticed(const Program& program) {
  if (!findings_of(program, 0).empty()) return true;
  return !judge(program, run_on_sim(program, max_schedules(), 40).tally).empty();
}

TEST(LitmusOnSim, EveryWaitOfARaceFreeProgramIsNeeded) {
  std::size_t left_out = 0;
  for (const Program& program : all_programs()) {
    if (!program.is_race_free) continue;
    for (std::size_t i = 0; i < program.steps.size(); ++i) {
      if (!is_order(program.steps[i])) continue;
      Program mutant = program;
      mutant.steps.erase(mutant.steps.begin() + static_cast<std::ptrdiff_t>(i));
      EXPECT_EQ(is_noticed(mutant), !program.steps[i].is_spare)
          << program.name << " without '" << program.steps[i].text << "'";
      ++left_out;
    }
  }
  fmt::print("litmus: {} waits left out, one at a time\n", left_out);
  EXPECT_GT(left_out, 50u);
}

TEST(LitmusOnDevices, RequiredBackendsAreAvailable) {
  const std::vector<BackendListing> backends = list_backends();
  for (const std::string& required : config().require) {
    const auto found = std::ranges::find(backends, required, &BackendListing::name);
    ASSERT_NE(found, backends.end()) << "TERN_REQUIRE names '" << required << "'";
    EXPECT_TRUE(found->is_available) << "TERN_REQUIRE: " << found->reason;
  }
}

/// All but the simulated ones, which have their own tests above.
std::vector<std::string> devices_to_run() {
  std::vector<std::string> specs = {"host?threads=1", "host?threads=3"};
  for (const BackendListing& backend : list_backends()) {
    if (backend.name == "sim") continue;
    specs.insert(specs.end(), backend.devices.begin(), backend.devices.end());
  }
  return specs;
}

std::uint64_t runs_per_program() {
  if (const char* runs = std::getenv("LITMUS_RUNS")) return std::strtoull(runs, nullptr, 10);
  return in_full() ? 100 : 20;
}

#if defined(__SANITIZE_THREAD__)
constexpr bool sees_threads = true;
#elif defined(__has_feature)
constexpr bool sees_threads = __has_feature(thread_sanitizer);
#else
constexpr bool sees_threads = false;
#endif

class LitmusOnDevice : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(EveryDevice, LitmusOnDevice, testing::ValuesIn(devices_to_run()),
                         spec_name);

TEST_P(LitmusOnDevice, DoesWhatSimAllows) {
  const Device device = open_device(GetParam());
  Field field(device);
  std::uint64_t runs = 0;
  std::size_t programs = 0, outcomes = 0, beyond = 0, outside = 0;
  for (const Program& program : all_programs()) {
    if (program.is_sim_only || Field::lacks(device, program)) continue;
    // A race between streams is one between threads of this process.
    if (sees_threads && !program.is_race_free) continue;
    Tally tally;
    try {
      for (std::uint64_t run = 0; run < runs_per_program(); ++run) {
        tally.add(field.run(program, stall_of_run(program, run)));
      }
    } catch (const std::exception& error) {
      FAIL() << program.name << " on " << GetParam() << ": " << error.what();
    }
    for (const std::string& complaint : judge(program, tally)) {
      ADD_FAILURE() << "on " << GetParam() << ", " << complaint;
      ++outside;
    }
    ++programs;
    runs += tally.runs;
    outcomes += distinct(program, tally);
    beyond += distinct_beyond_sim(program, tally);
  }
  fmt::print(
      "litmus: {} programs on {}, {} runs, {} distinct outcomes and {} beyond sim, {} outside what "
      "is allowed\n",
      programs, GetParam(), runs, outcomes, beyond, outside);
  EXPECT_GT(programs, 0u);
}

}  // namespace
}  // namespace tern::test::litmus
