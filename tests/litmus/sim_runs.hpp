// Runs litmus programs on simulated devices: under every schedule, and with the checker.
//
// If the host neither waits nor queries before the end, the outcome depends only on the order in
// which the streams run. Then the streams run after everything is submitted, which gives few
// schedules. Other programs run with all choices that a schedule has between two calls. If there
// are more schedules than `max_runs`, runs with random seeds under every policy follow. Plain
// functions.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "litmus/judge.hpp"
#include "litmus/program.hpp"

namespace tern::test::litmus {

struct SimRuns {
  Tally tally;
  bool is_complete = false;  // whether every schedule was run
};
[[nodiscard]] SimRuns run_on_sim(const Program& program, std::uint64_t max_runs,
                                 std::uint64_t seeds_per_policy);

/// Returns the codes of the findings in order, such as "TERN-S101". The checker depends only on the
/// order of submission, so one run covers all schedules.
[[nodiscard]] std::vector<std::string> findings_of(const Program& program, std::uint64_t seed);

}  // namespace tern::test::litmus
