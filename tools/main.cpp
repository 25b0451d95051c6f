// `tern`: inspects the devices of this machine, measures them, and shows what the library does.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string_view>

#include "tern/core/error.hpp"
#include "tern/core/version.hpp"
#include "tools/commands.hpp"
#include "tools/replay/resource_setting.hpp"
#include "tools/terminal.hpp"

namespace {

int run(int argc, char** argv) {
  using namespace tern::tools;
  CLI::App app("Memory on hosts and accelerators: inspect, measure and try Tern on this machine.",
               "tern");
  app.set_version_flag("--version", TERN_VERSION);
  app.require_subcommand(1);
  app.footer("Start with `tern tour`. `tern COMMAND --help` explains a command.");

  InfoOptions info;
  CLI::App* info_command = app.add_subcommand(
      "info", "Show the backends (and why one is absent), the devices and the configuration");
  info_command->add_flag("--json", info.json, "as JSON, for programs");

  BenchOptions bench;
  CLI::App* bench_command =
      app.add_subcommand("bench", "Run benchmarks and print each figure beside its baseline");
  bench_command->add_option(
      "cases", bench.filter,
      "only cases of this group, such as host, or with this prefix, such as host.co");
  bench_command->add_flag("--json", bench.json, "as JSON, for programs");
  bench_command->add_flag("--list", bench.list, "list the cases without running them");
  bench_command->add_flag("--check", bench.check, "fail if a figure misses its goal");
  bench_command->add_flag("--quick", bench.quick,
                          "small sizes and few rounds, to check that the cases run; no goals");
  bench_command
      ->add_option("--device", bench.device,
                   "the device of the pool cases: host, sim?check=off, ...")
      ->capture_default_str();
  bench_command->add_option("--seconds", bench.seconds, "approximate time per figure")
      ->check(CLI::Range(0.001, 60.0))
      ->capture_default_str();

  CheckOptions check;
  CLI::App* check_command =
      app.add_subcommand("check", "Find missing waits in a trace, or test the checker");
  check_command->add_option(
      "files", check.files,
      "trace files, such as TERN_SIM_TRACE=run.trace writes; - reads standard input");
  check_command->add_flag("--json", check.json,
                          "JSON, one object per line for each finding and trace");
  check_command->add_flag("--trusted", check.trusted,
                          "lift the limits on the cost of checking a trace");
  check_command->footer(
      "Exit status: 0 if nothing was found, 1 if something was found, 2 if a trace cannot be "
      "read.\nA truncated trace is checked up to its last whole chunk. Example:\n  "
      "TERN_SIM_TRACE=run.trace TERN_SIM_MODE=collect my_program; tern check run.trace");
  check_command->add_flag(
      "--self-test", check.self_test,
      "check that planted mistakes are found and correct programs have no findings");
  check_command->add_option("--programs", check.programs, "number of correct programs")
      ->check(CLI::Range(1, 100'000'000))
      ->capture_default_str();
  check_command
      ->add_option("--device-programs", check.device_programs,
                   "number of correct programs on simulated devices")
      ->check(CLI::Range(1, 100'000'000))
      ->capture_default_str();
  check_command
      ->add_option("--seeds", check.seeds, "seeds per schedule that must end with the same bytes")
      ->check(CLI::Range(1, 100'000'000))
      ->capture_default_str();
  check_command
      ->add_option("--show", check.show,
                   "print the shortest program of one planted mistake, M1 to M6")
      ->check(CLI::IsMember({"M1", "M2", "M3", "M4", "M5", "M6"}));

  ReportOptions report;
  CLI::App* report_command =
      app.add_subcommand("report", "Show what a program did with memory, from a recording of it");
  report_command
      ->add_option("file", report.file,
                   "a recording, such as TERN_TRACE=run.trace writes, or a log of RMM")
      ->required();
  report_command->add_option("after", report.after,
                             "another recording of the program: show what differs");
  report_command->add_option("-o,--output", report.page,
                             "write a page for a browser instead of text");
  report_command->footer(
      "Example:\n  TERN_TRACE=run.trace my_program; tern report run.trace -o run.html\n"
      "Two recordings are compared: tern report before.trace after.trace -o difference.html");

  TopOptions top;
  CLI::App* top_command =
      app.add_subcommand("top", "Show what a running program that records holds now");
  top_command
      ->add_option("process", top.process,
                   "the id of a process that records to a file, or the file")
      ->required();
  top_command->add_flag("--once", top.once, "print one table and end");
  top_command->add_option("--seconds", top.seconds, "time between two tables")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  top_command->footer("Example:\n  TERN_TRACE=run.trace my_program & tern top $!");

  ReplayOptions replay;
  CLI::App* replay_command = app.add_subcommand(
      "replay", "Repeat the allocations of a recording on other resources and compare them");
  replay_command->add_option("file", replay.file,
                             "a recording, such as TERN_TRACE=run.trace writes, or a log of RMM");
  replay_command->add_option("--sample", replay.sample,
                             "a generated trace instead of a file: training, kv_cache, tables or "
                             "checkerboard");
  replay_command->add_option(
      "--device", replay.device,
      "a device spec, such as cuda:1 or sim?memory=80GiB; default: cuda:0, else sim");
  replay_command
      ->add_option("--resource", replay.resources, "resources to compare, separated by commas")
      ->capture_default_str();
  replay_command->add_option("--passes", replay.passes, "how often each resource makes the calls")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  replay_command->add_option(
      "--of", replay.memory,
      "the memory of the recording, such as cuda:1; default: the one with the highest peak");
  replay_command->add_flag("!--no-recommend", replay.recommend,
                           "do not try other settings of the pool");
  replay_command->add_flag("--json", replay.json, "as JSON, for programs");
  replay_command->footer(resource_setting_help() +
                         "\n\nExample:\n  tern replay run.trace --resource "
                         "pool,pool:limit=20GiB,async");

  RehearseOptions rehearse;
  CLI::App* rehearse_command = app.add_subcommand(
      "rehearse", "Run a program or a recording on simulated devices of any size");
  rehearse_command->add_option("file", rehearse.file,
                               "a recording; or -- and a program with its arguments");
  rehearse_command->add_option("--memory", rehearse.memory, "memory of each simulated device")
      ->capture_default_str();
  rehearse_command->add_option("--devices", rehearse.devices, "number of simulated devices")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  rehearse_command->add_option("--trace", rehearse.trace,
                               "keep the recording of the program in this file");
  rehearse_command->add_flag(
      "--keep-contents", rehearse.keep_contents,
      "keep what the program writes to device memory, and run kernels that are C++ functions");
  rehearse_command->add_flag("--json", rehearse.json,
                             "as JSON, for programs; output of the program goes to standard error");
  rehearse_command->footer(
      "Exit status: 0 if everything was served, 1 if the program failed or a request of the "
      "recording was refused, 2 if nothing could be rehearsed.\nExamples:\n  tern rehearse "
      "--memory 80GiB -- python train.py --batch 64\n  tern rehearse run.trace --memory 24GiB");

  TourOptions tour;
  CLI::App* tour_command =
      app.add_subcommand("tour", "A short tour of Tern on a device of this machine");
  tour_command->add_option("--device", tour.device,
                           "a device spec, such as host; default: the best device");

  // What follows -- is a program with its own options.
  if (argc > 1 && std::string_view(argv[1]) == rehearse_command->get_name()) {
    char** const end = argv + argc;
    char** const mark = std::find(argv, end, std::string_view("--"));
    if (mark != end) rehearse.program.assign(mark + 1, end);
    argc = static_cast<int>(mark - argv);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool is_unknown = argc > 1 && argv[1][0] != '-' && app.get_subcommands().empty();
    if (argc == 1 || is_unknown) {
      fmt::print(
          stderr, "tern: {}. The commands are:\n\n",
          is_unknown ? fmt::format("there is no command '{}'", argv[1]) : "a command is needed");
      for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
        fmt::print(stderr, "  {:<8} {}\n", command->get_name(), command->get_description());
      }
      fmt::print(stderr, "\n`tern COMMAND --help` explains a command.\n");
      return 2;
    }
    // CLI11 has its own exit codes above 100. Tern uses 2 for wrong usage.
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (*info_command) return run_info(info);
  if (*bench_command) return run_bench(bench);
  if (*check_command) return run_check(check);
  if (*report_command) return run_report(report);
  if (*top_command) return run_top(top);
  if (*replay_command) return run_replay(replay);
  if (*rehearse_command) return run_rehearse(rehearse);
  return run_tour(tour);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const tern::Error& error) {
    fmt::print(stderr, "tern: {}\n", error.text());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "tern: {}\n", error.what());
    return 1;
  }
}
