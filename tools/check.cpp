// `tern check --self-test`: tests that the checker finds what it must find, and nothing else.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tern/backends/sim.hpp"
#include "tools/checked_program.hpp"
#include "tools/commands.hpp"
#include "tools/device_program.hpp"
#include "tools/pool_program.hpp"
#include "tools/terminal.hpp"

namespace tern::tools {
namespace {

struct Planted {
  Mistake mistake;
  std::string_view name;
};

constexpr std::array planted = {
    Planted{Mistake::merge_without_record, "M1 merge without a new record"},
    Planted{Mistake::steal_without_wait, "M2 steal without a wait"},
    Planted{Mistake::remainder_to_thief, "M3 remainder to the thief"},
    Planted{Mistake::event_at_first_free_only, "M4 event at the first free only"},
    Planted{Mistake::thief_waits_for_itself, "M5 thief waits for its own event"},
    Planted{Mistake::merge_without_wait, "M6 merge without a wait"},
};

/// A planted mistake must be found within this many programs.
constexpr std::uint64_t patience = 100;
constexpr std::uint64_t mistake_programs = 1000;
/// This many of the programs that found it are shrunk, and the median must have at most this many
/// steps.
constexpr std::size_t shrunk_programs = 20;
constexpr std::size_t max_median_steps = 12;
/// The seeds are divided among this many device programs.
constexpr std::uint64_t compared_programs = 20;
constexpr std::uint64_t programs_with_dropped_waits = 5;
constexpr std::uint64_t seeds_per_dropped_wait = 3;

std::optional<Finding> run_program(std::uint64_t seed, Mistake mistake,
                                   std::uint64_t* operations = nullptr) {
  PoolProgram program;
  program.seed = seed;
  return program.run(mistake, operations);
}

/// Returns the shortest program found that ends with a finding of the same code.
std::vector<PoolStep> shrink_program(std::uint64_t seed, Mistake mistake, FindingCode code) {
  PoolProgram program;
  program.seed = seed;
  const auto is_same = [&](std::span<const PoolStep> steps) {
    const std::optional<Finding> found = run_steps(steps, mistake);
    return found && found->code == code;
  };
  return sim::shrink(program.steps_against(mistake), is_same, depends, simpler);
}

int show_shortest(const std::string& name) {
  const auto one = std::ranges::find_if(
      planted, [&](const Planted& planted_one) { return planted_one.name.starts_with(name); });
  std::vector<PoolStep> shortest;
  for (std::uint64_t seed = 0, shrunk = 0; shrunk < shrunk_programs && seed < mistake_programs;
       ++seed) {
    const std::optional<Finding> found = run_program(seed, one->mistake);
    if (!found) continue;
    ++shrunk;
    std::vector<PoolStep> steps = shrink_program(seed, one->mistake, found->code);
    if (shortest.empty() || steps.size() < shortest.size()) shortest = std::move(steps);
  }
  const std::optional<Finding> found = run_steps(shortest, one->mistake);
  if (!found) return 1;
  fmt::print("{}\n",
             bold(fmt::format("{}: the shortest of {} programs", one->name, shrunk_programs)));
  for (const PoolStep& step : shortest) fmt::print("  {}\n", text_of(step));
  fmt::print("\n{}", found->text());
  return 0;
}

bool find_planted_mistakes(ProgressLine& progress) {
  bool check_invariants = true;
  fmt::print("{}\n", bold("Planted mistakes: how many of 1000 programs of 200 steps reveal each, "
                          "and the shortest program that does"));
  for (const Planted& one : planted) {
    std::uint64_t found = 0;
    std::uint64_t first = 0;
    std::vector<std::size_t> sizes;
    for (std::uint64_t seed = 0; seed < mistake_programs; ++seed) {
      if (seed % 100 == 0) progress.show(fmt::format("{} {}", one.name, seed));
      const std::optional<Finding> finding = run_program(seed, one.mistake);
      if (!finding) continue;
      if (++found == 1) first = seed + 1;
      if (sizes.size() == shrunk_programs) continue;
      // The step that opens the pool is not counted.
      sizes.push_back(shrink_program(seed, one.mistake, finding->code).size() - 1);
    }
    progress.clear();
    std::ranges::sort(sizes);
    const std::size_t median = sizes.empty() ? 0 : sizes[sizes.size() / 2];
    const bool is_found = found > 0 && first <= patience && median <= max_median_steps;
    check_invariants = check_invariants && is_found;
    fmt::print("  {:<34} {:>5.1f} %   first in program {:<3} shrinks to {} steps  {}\n", one.name,
               static_cast<double>(found) * 100 / mistake_programs, first, median,
               is_found ? green("ok") : red(found > 0 ? "TOO LATE OR TOO LONG" : "NOT FOUND"));
  }
  return check_invariants;
}

bool run_correct_programs(std::uint64_t programs, ProgressLine& progress) {
  std::uint64_t alarms = 0;
  std::uint64_t operations = 0;
  for (std::uint64_t seed = 0; seed < programs; ++seed) {
    if (seed % 1000 == 0) progress.show(fmt::format("correct programs {}/{}", seed, programs));
    if (const auto finding = run_program(seed, Mistake::none, &operations)) {
      if (++alarms == 1) fmt::print("{}", finding->text());
    }
  }
  progress.clear();
  fmt::print("{}\n  {} findings in {} programs, {} operations  {}\n", bold("Correct programs"),
             alarms, programs, operations, alarms == 0 ? green("ok") : red("FALSE ALARM"));
  return alarms == 0;
}

// --- Programs for devices, with reuse, timelines, threads and two devices

bool run_correct_device_programs(std::uint64_t programs, ProgressLine& progress) {
  std::uint64_t alarms = 0, with_threads = 0, with_two_devices = 0, reuses = 0, timeline_waits = 0;
  for (std::uint64_t seed = 0; seed < programs; ++seed) {
    if (seed % 100 == 0) progress.show(fmt::format("device programs {}/{}", seed, programs));
    const CheckedRun run = CheckedProgram{.seed = seed}.run();
    with_threads += run.threads > 1 ? 1 : 0;
    with_two_devices += run.devices > 1 ? 1 : 0;
    reuses += run.reuses;
    timeline_waits += run.timeline_waits;
    if (run.findings.empty()) continue;
    if (++alarms > 1) continue;
    progress.clear();
    fmt::print("{}", run.findings.front().text());
  }
  progress.clear();
  fmt::print(
      "{}\n  {} findings in {} device programs: {} with threads, {} with two devices, {} addresses "
      "used again, {} waits for timelines  {}\n",
      bold("Correct programs for devices"), alarms, programs, with_threads, with_two_devices,
      reuses, timeline_waits, alarms == 0 ? green("ok") : red("FALSE ALARM"));
  return alarms == 0;
}

/// If the oracle of a program is certain of a race, the checker must have found one.
bool find_omissions(ProgressLine& progress) {
  bool check_invariants = true;
  fmt::print("{}\n", bold(fmt::format("Left out of {} device programs: how many of the racy "
                                      "programs reveal it, and the first that does",
                                      patience)));
  for (const NamedOmission& one : all_omissions) {
    for (const sim::Reuse reuse : {sim::Reuse::hostile, sim::Reuse::friendly}) {
      const char* const reuse_name = reuse == sim::Reuse::hostile ? "hostile" : "friendly";
      progress.show(fmt::format("{}, {} reuse", one.name, reuse_name));
      std::uint64_t races = 0, found = 0, first = 0;
      for (std::uint64_t seed = 0; seed < patience; ++seed) {
        const CheckedRun run = CheckedProgram{seed, one.omission, reuse}.run();
        if (run.verdict != Verdict::race) continue;
        ++races;
        if (run.findings.empty()) continue;
        if (++found == 1) first = seed + 1;
      }
      progress.clear();
      const bool is_found = found > 0 && found == races;
      check_invariants = check_invariants && is_found;
      fmt::print("  {:<26} {:<8} reuse  {:>3} of {:<3} first in program {:<3} {}\n", one.name,
                 reuse_name, found, races, first,
                 is_found ? green("ok") : red(found > 0 ? "MISSED" : "NOT FOUND"));
    }
  }
  return check_invariants;
}

/// Race-free programs must end with the same bytes under every schedule.
bool compare_schedules(std::uint64_t seeds, ProgressLine& progress) {
  const std::uint64_t programs = std::min(seeds, compared_programs);
  const std::uint64_t seeds_each = (seeds + programs - 1) / programs;
  std::size_t wrong = 0;
  for (std::uint64_t i = 0; i < programs; ++i) {
    const DeviceProgram program = DeviceProgram::make(i);
    const std::uint64_t expected = program.run({.policy = sim::Policy::eager}).bytes_hash;
    for (const NamedPolicy& policy : all_policies) {
      progress.show(fmt::format("same bytes: program {} {}", i, policy.name));
      const std::vector<Finding> found =
          compare_runs(program, policy, i * seeds_each, seeds_each, expected);
      if (wrong == 0 && !found.empty()) {
        progress.clear();
        fmt::print("{}", found.front().text());
      }
      wrong += found.size();
    }
  }
  progress.clear();
  fmt::print("{}\n  {} differences in {} programs x {} schedules x {} seeds  {}\n",
             bold("Same bytes under every schedule"), wrong, programs, all_policies.size(),
             seeds_each, wrong == 0 ? green("ok") : red("WRONG BYTES"));
  return wrong == 0;
}

/// Checks that the comparison above can fail: with a missing wait, it must.
bool leave_out_waits(ProgressLine& progress) {
  DroppedWaits all;
  for (std::uint64_t i = 0; i < programs_with_dropped_waits; ++i) {
    progress.show(fmt::format("waits left out: program {}", i));
    const DroppedWaits some = drop_waits(DeviceProgram::make(i), seeds_per_dropped_wait);
    all.waits += some.waits;
    all.found += some.found;
    all.shown += some.shown;
    all.shown_by_eager += some.shown_by_eager;
    all.missed += some.missed;
  }
  progress.clear();
  const bool check_invariants = all.missed == 0 && all.shown_by_eager == 0 && all.shown > 0;
  fmt::print(
      "  one of {} waits left out: {} found by the checker; other bytes in {}, {} of them "
      "missed, {} seen by running everything at once  {}\n",
      all.waits, all.found, all.shown, all.missed, all.shown_by_eager,
      check_invariants ? green("ok") : red("WRONG"));
  return check_invariants;
}

}  // namespace

int run_check(const CheckOptions& options) {
  if (options.self_test != options.files.empty()) {
    fmt::print(stderr, "tern check: name traces to check, or use --self-test, but not both.\n");
    return 2;
  }
  if (!options.show.empty()) return show_shortest(options.show);
  if (!options.self_test) return run_check_files(options);
  ProgressLine progress;
  bool check_invariants = find_planted_mistakes(progress);
  check_invariants = run_correct_programs(options.programs, progress) && check_invariants;
  check_invariants = find_omissions(progress) && check_invariants;
  check_invariants =
      run_correct_device_programs(options.device_programs, progress) && check_invariants;
  check_invariants = compare_schedules(options.seeds, progress) && check_invariants;
  check_invariants = leave_out_waits(progress) && check_invariants;
  return check_invariants ? 0 : 1;
}

}  // namespace tern::tools
