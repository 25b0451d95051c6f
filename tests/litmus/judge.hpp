// The judge of litmus programs: what was seen against what a program allows.
//
// On any device every outcome must be among the allowed ones. A simulated device that has run
// every schedule must also have shown each of them, so that nothing is allowed which cannot happen,
// and none of those that are said to be beyond it. Complaints are sentences that name the program,
// the outcome and the allowed ones. Plain functions and values.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "litmus/program.hpp"

namespace tern::test::litmus {

/// What came of the runs of one program.
struct Tally {
  std::map<Outcome, std::uint64_t> seen;
  std::uint64_t runs = 0;

  void add(const Outcome& outcome) {
    ++seen[outcome];
    ++runs;
  }
};

/// How many of the allowed outcomes were seen, and how many of those that are beyond sim.
[[nodiscard]] std::size_t distinct(const Program& program, const Tally& tally);
[[nodiscard]] std::size_t distinct_beyond_sim(const Program& program, const Tally& tally);

/// On a device that may do less than is allowed.
[[nodiscard]] std::vector<std::string> judge(const Program& program, const Tally& tally);
/// On a simulated device that did all it can.
[[nodiscard]] std::vector<std::string> judge_sim(const Program& program, const Tally& tally);

}  // namespace tern::test::litmus
