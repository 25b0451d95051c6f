// `tern check --self-test`: does the checker find what it must, and nothing else?

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <optional>

#include "tools/commands.hpp"
#include "tools/pool_program.hpp"
#include "tools/terminal.hpp"

namespace tern::tools {
namespace {

struct Planted {
  Mistake mistake;
  const char* name;
};

constexpr std::array planted = {
    Planted{Mistake::merge_without_record, "M1 merge without a new record"},
    Planted{Mistake::steal_without_wait, "M2 steal without a wait"},
    Planted{Mistake::remainder_to_thief, "M3 remainder to the thief"},
    Planted{Mistake::event_at_first_free_only, "M4 event at the first free only"},
    Planted{Mistake::thief_waits_for_itself, "M5 thief waits for its own event"},
    Planted{Mistake::merge_without_wait, "M6 merge without a wait"},
};

/// A mistake must be found within this many programs.
constexpr std::uint64_t patience = 100;
constexpr std::uint64_t mistake_programs = 1000;

std::optional<Finding> run_program(std::uint64_t seed, Mistake mistake,
                                   std::uint64_t* operations = nullptr) {
  PoolProgram program;
  program.seed = seed;
  return program.run(mistake, operations);
}

}  // namespace

int run_check(const CheckOptions& options) {
  if (options.self_test != options.files.empty()) {
    fmt::print(stderr, "tern check: name traces to check, or say --self-test; one of the two.\n");
    return 2;
  }
  if (!options.self_test) return run_check_files(options);
  ProgressLine progress;
  bool is_well = true;
  fmt::print("{}\n", bold("Planted mistakes: found in so many of 1000 programs of 200 steps"));
  for (const Planted& one : planted) {
    std::uint64_t found = 0;
    std::uint64_t first = 0;
    for (std::uint64_t seed = 0; seed < mistake_programs; ++seed) {
      if (seed % 100 == 0) progress.show(fmt::format("{} {}", one.name, seed));
      if (!run_program(seed, one.mistake)) continue;
      if (++found == 1) first = seed + 1;
    }
    progress.clear();
    const bool is_found = found > 0 && first <= patience;
    is_well = is_well && is_found;
    fmt::print("  {:<34} {:>5.1f} %   first in program {}  {}\n", one.name,
               static_cast<double>(found) * 100 / mistake_programs, first,
               is_found ? green("ok") : red("NOT FOUND"));
  }

  std::uint64_t alarms = 0;
  std::uint64_t operations = 0;
  for (std::uint64_t seed = 0; seed < options.programs; ++seed) {
    if (seed % 1000 == 0) {
      progress.show(fmt::format("correct programs {}/{}", seed, options.programs));
    }
    if (const auto finding = run_program(seed, Mistake::none, &operations)) {
      if (++alarms == 1) fmt::print("{}", finding->text());
    }
  }
  progress.clear();
  is_well = is_well && alarms == 0;
  fmt::print("{}\n  {} findings in {} programs, {} operations  {}\n", bold("Correct programs"),
             alarms, options.programs, operations, alarms == 0 ? green("ok") : red("FALSE ALARM"));
  return is_well ? 0 : 1;
}

}  // namespace tern::tools
