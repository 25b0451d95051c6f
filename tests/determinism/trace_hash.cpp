// Prints one hash over the traces and bytes of many seeded runs: trace_hash_test.py compiles this
// with several compilers and compares.

#include <cinttypes>
#include <cstdio>

#include "tools/device_program.hpp"

int main() {
  using namespace tern::tools;
  std::uint64_t hash = 0;
  const auto add = [&](std::uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  };
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    const DeviceProgram program = DeviceProgram::make(seed);
    for (const NamedPolicy& policy : all_policies) {
      const DeviceRun run =
          program.run({.seed = seed, .policy = policy.policy, .pct_depth = policy.pct_depth});
      add(run.trace_hash);
      add(run.bytes_hash);
      add(run.findings.size());
    }
  }
  std::printf("%016" PRIx64 "\n", hash);
}
