// Random programs under the checker. The checker must report a race exactly where an oracle sees
// one.

#include "soak/driver.hpp"
#include "tools/checked_program.hpp"

namespace tern::soak {

void run_checker(const Program& program) {
  Random random(program.seed);
  tools::CheckedProgram checked{.seed = random.bits()};
  if (random.one_in(2)) checked.omission = tools::Omission::any;
  checked.is_verbose = program.is_verbose;
  const tools::CheckedRun run = checked.run();
  if (run.verdict == tools::Verdict::race && run.findings.empty()) {
    throw Mismatch("the checker misses a race: " + run.why);
  }
  if (run.verdict == tools::Verdict::ordered && !run.findings.empty()) {
    throw Mismatch("the checker reports a correct program: " + run.findings.front().text());
  }
}

}  // namespace tern::soak
