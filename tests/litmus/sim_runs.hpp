// Litmus programs on simulated devices: every schedule there is, and what the checker says.
//
// Where the host neither waits nor asks in the middle, the order of what the streams do is all that
// an outcome depends on, so the streams run when all is submitted: there are few such orders. Other
// programs are run with everything a schedule may do between two calls. Where there are more
// schedules than `max_runs`, seeds under every policy follow. Plain functions.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "litmus/judge.hpp"
#include "litmus/program.hpp"

namespace tern::test::litmus {

struct SimRuns {
  Tally tally;
  bool is_complete = false;  // every schedule was run
};
[[nodiscard]] SimRuns run_on_sim(const Program& program, std::uint64_t max_runs,
                                 std::uint64_t seeds_per_policy);

/// The codes of what the checker finds, the first one first; the order of submission decides, so
/// one run tells for all schedules. "TERN-S101".
[[nodiscard]] std::vector<std::string> findings_of(const Program& program, std::uint64_t seed);

}  // namespace tern::test::litmus
