// The judge compares the outcomes of a litmus program with the outcomes that the program allows.
//
// On every device, each outcome must be allowed. On a simulated device that has run every schedule,
// two more rules apply: each allowed outcome must have occurred, so that nothing impossible is
// listed as allowed, and no outcome that is listed as beyond sim may have occurred. Complaints are
// sentences with the program, the outcome and the allowed outcomes. Plain functions and values.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "litmus/program.hpp"

namespace tern::test::litmus {

/// The outcomes of all runs of one program.
struct Tally {
  std::map<Outcome, std::uint64_t> seen;
  std::uint64_t runs = 0;

  void add(const Outcome& outcome) {
    ++seen[outcome];
    ++runs;
  }
};

/// Return how many of the allowed outcomes, and of the outcomes beyond sim, have occurred.
[[nodiscard]] std::size_t distinct(const Program& program, const Tally& tally);
[[nodiscard]] std::size_t distinct_beyond_sim(const Program& program, const Tally& tally);

/// For a device that need not show every allowed outcome.
[[nodiscard]] std::vector<std::string> judge(const Program& program, const Tally& tally);
/// For a simulated device that has run every schedule.
[[nodiscard]] std::vector<std::string> judge_sim(const Program& program, const Tally& tally);

}  // namespace tern::test::litmus
