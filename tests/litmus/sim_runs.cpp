#include "litmus/sim_runs.hpp"

#include <algorithm>

#include "litmus/field.hpp"
#include "tern/backends/sim.hpp"

namespace tern::test::litmus {
namespace {

sim::Options options_with(bool checks) {
  sim::Options options;
  options.mode = sim::Mode::collect;
  options.check = checks;
  options.memory_bytes = std::size_t{8} << 20;
  return options;
}

/// Does what the host does depend on how far the streams are? What the driver's allocator gives out
/// does too.
bool host_takes_part(const Program& program) {
  return std::ranges::any_of(program.steps, [&](const Step& step) {
    return may_block(program, step) || !step.stream || step.verb == Verb::allocate ||
           step.verb == Verb::query_stream;
  });
}

Outcome run_once(const Device& device, const Program& program) {
  Field field(device);
  return field.run(program);
}

}  // namespace

SimRuns run_on_sim(const Program& program, std::uint64_t max_runs, std::uint64_t seeds_per_policy) {
  SimRuns result;
  sim::Options every = options_with(false);
  every.policy = host_takes_part(program) ? sim::Policy::mix : sim::Policy::lazy;
  const sim::Exploration done = sim::for_every_schedule(
      every, max_runs, [&](const Device& device) { result.tally.add(run_once(device, program)); });
  result.is_complete = done.is_complete;
  if (result.is_complete) return result;
  for (const sim::Policy policy :
       {sim::Policy::mix, sim::Policy::lazy, sim::Policy::eager, sim::Policy::random,
        sim::Policy::skewed, sim::Policy::stall_one, sim::Policy::pct}) {
    for (std::uint64_t seed = 0; seed < seeds_per_policy; ++seed) {
      sim::Options options = options_with(false);
      options.policy = policy;
      options.seed = seed;
      options.reuse = seed % 2 == 0 ? sim::Reuse::hostile : sim::Reuse::friendly;
      result.tally.add(run_once(sim::open(options), program));
    }
  }
  return result;
}

std::vector<std::string> findings_of(const Program& program, std::uint64_t seed) {
  sim::Options options = options_with(true);
  options.seed = seed;
  const Device device = sim::open(options);
  static_cast<void>(run_once(device, program));
  std::vector<std::string> codes;
  for (const Finding& finding : sim::findings(device)) codes.push_back(code_text(finding.code));
  return codes;
}

}  // namespace tern::test::litmus
