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

using namespace tern::tools;

CLI::App* add_info(CLI::App& app, InfoOptions& options) {
  CLI::App* command = app.add_subcommand(
      "info", "Show the backends (and why one is absent), the devices and the configuration");
  command->add_flag("--json", options.json, "as JSON, for programs");
  return command;
}

CLI::App* add_bench(CLI::App& app, BenchOptions& options) {
  CLI::App* command =
      app.add_subcommand("bench", "Run benchmarks and print each figure beside its baseline");
  command->add_option(
      "cases", options.filter,
      "only cases of this group, such as host, or with this prefix, such as host.co");
  command->add_flag("--json", options.json, "as JSON, for programs");
  command->add_flag("--list", options.list, "list the cases without running them");
  command->add_flag("--check", options.check, "fail if a figure misses its goal");
  command->add_flag("--quick", options.quick,
                    "small sizes and few rounds, to check that the cases run; no goals");
  command
      ->add_option("--device", options.device,
                   "the device of the pool cases: host, sim?check=off, ...")
      ->capture_default_str();
  command->add_option("--seconds", options.seconds, "approximate time per figure")
      ->check(CLI::Range(0.001, 60.0))
      ->capture_default_str();
  return command;
}

CLI::App* add_check(CLI::App& app, CheckOptions& options) {
  CLI::App* command =
      app.add_subcommand("check", "Find missing waits in a trace, or test the checker");
  command->add_option(
      "files", options.files,
      "trace files, such as TERN_SIM_TRACE=run.trace writes; - reads standard input");
  command->add_flag("--json", options.json, "JSON, one object per line for each finding and trace");
  command->add_flag("--trusted", options.trusted,
                    "lift the limits on the cost of checking a trace");
  command->footer(
      "Exit status: 0 if nothing was found, 1 if something was found, 2 if a trace cannot be "
      "read.\nA truncated trace is checked up to its last whole chunk. Example:\n  "
      "TERN_SIM_TRACE=run.trace TERN_SIM_MODE=collect my_program; tern check run.trace");
  command->add_flag("--self-test", options.self_test,
                    "check that planted mistakes are found and correct programs have no findings");
  command->add_option("--programs", options.programs, "number of correct programs")
      ->check(CLI::Range(1, 100'000'000))
      ->capture_default_str();
  command
      ->add_option("--device-programs", options.device_programs,
                   "number of correct programs on simulated devices")
      ->check(CLI::Range(1, 100'000'000))
      ->capture_default_str();
  command
      ->add_option("--seeds", options.seeds, "seeds per schedule that must end with the same bytes")
      ->check(CLI::Range(1, 100'000'000))
      ->capture_default_str();
  command
      ->add_option("--show", options.show,
                   "print the shortest program of one planted mistake, M1 to M6")
      ->check(CLI::IsMember({"M1", "M2", "M3", "M4", "M5", "M6"}));
  return command;
}

CLI::App* add_report(CLI::App& app, ReportOptions& options) {
  CLI::App* command =
      app.add_subcommand("report", "Show what a program did with memory, from a recording of it");
  command
      ->add_option("file", options.file,
                   "a recording, such as TERN_TRACE=run.trace writes, a memory snapshot of "
                   "PyTorch, or a log of "
                   "RMM")
      ->required();
  CLI::Option* const after = command->add_option(
      "after", options.after, "another recording of the program: show what differs");
  CLI::Option* const page = command->add_option("-o,--output", options.page,
                                                "write a page for a browser instead of text");
  command->add_flag("--json", options.json, "as JSON, for programs; one recording only")
      ->excludes(after)
      ->excludes(page);
  command->footer(
      "Example:\n  TERN_TRACE=run.trace my_program; tern report run.trace -o run.html\n"
      "Two recordings are compared: tern report before.trace after.trace -o difference.html");
  return command;
}

CLI::App* add_convert(CLI::App& app, ConvertOptions& options) {
  CLI::App* command = app.add_subcommand(
      "convert", "Write a recording in another format: for PyTorch's viewer, Perfetto or RMM");
  command
      ->add_option("input", options.input,
                   "a recording, a memory snapshot of PyTorch, or a log of RMM")
      ->required();
  command->add_option("output", options.output, "the file to write")->required();
  command
      ->add_option(
          "--format", options.format,
          "trace (Tern), pytorch (memory snapshot), perfetto, or rmm (log); default: by the "
          "suffix of the output")
      ->check(CLI::IsMember({"trace", "pytorch", "perfetto", "rmm"}));
  command->footer(
      "Suffixes: .trace; .pickle, .pkl; .pftrace, .perfetto-trace; .csv. Examples:\n"
      "  tern convert run.trace run.pftrace     open it in https://ui.perfetto.dev\n"
      "  tern convert run.trace run.pickle      open it in https://pytorch.org/memory_viz\n"
      "  tern convert snapshot.pickle run.trace");
  return command;
}

CLI::App* add_top(CLI::App& app, TopOptions& options) {
  CLI::App* command =
      app.add_subcommand("top", "Show what a running program that records holds now");
  command
      ->add_option("process", options.process,
                   "the id of a process that records to a file, or the file")
      ->required();
  command->add_flag("--once", options.once, "print one table and end");
  command->add_option("--seconds", options.seconds, "time between two tables")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  command->footer("Example:\n  TERN_TRACE=run.trace my_program & tern top $!");
  return command;
}

CLI::App* add_replay(CLI::App& app, ReplayOptions& options) {
  CLI::App* command = app.add_subcommand(
      "replay", "Repeat the allocations of a recording on other resources and compare them");
  command->add_option(
      "file", options.file,
      "a recording, such as TERN_TRACE=run.trace writes, a memory snapshot of PyTorch, or a log of "
      "RMM");
  command->add_option("--sample", options.sample,
                      "a generated trace instead of a file: training, kv_cache, tables or "
                      "checkerboard");
  command->add_option(
      "--device", options.device,
      "a device spec, such as cuda:1 or sim?memory=80GiB; default: cuda:0, else sim");
  command->add_option("--resource", options.resources, "resources to compare, separated by commas")
      ->capture_default_str();
  command->add_option("--passes", options.passes, "how often each resource makes the calls")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option(
      "--of", options.memory,
      "the memory of the recording, such as cuda:1; default: the one with the highest peak");
  command->add_flag("!--no-recommend", options.recommend, "do not try other settings of the pool");
  command->add_flag("--json", options.json, "as JSON, for programs");
  command->footer(resource_setting_help() +
                  "\n\nExample:\n  tern replay run.trace --resource "
                  "pool,pool:limit=20GiB,async");
  return command;
}

CLI::App* add_rehearse(CLI::App& app, RehearseOptions& options) {
  CLI::App* command = app.add_subcommand(
      "rehearse", "Run a program or a recording on simulated devices of any size");
  command->add_option("file", options.file, "a recording; or -- and a program with its arguments");
  command->add_option("--memory", options.memory, "memory of each simulated device")
      ->capture_default_str();
  command->add_option("--devices", options.devices, "number of simulated devices")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->add_option("--trace", options.trace, "keep the recording of the program in this file");
  command->add_flag(
      "--keep-contents", options.keep_contents,
      "keep what the program writes to device memory, and run kernels that are C++ functions");
  command->add_flag("--json", options.json,
                    "as JSON, for programs; output of the program goes to standard error");
  command->footer(
      "Exit status: 0 if everything was served, 1 if the program failed or a request of the "
      "recording was refused, 2 if nothing could be rehearsed.\nExamples:\n  tern rehearse "
      "--memory 80GiB -- python train.py --batch 64\n  tern rehearse run.trace --memory 24GiB");
  return command;
}

void add_tour(CLI::App& app, TourOptions& options) {
  CLI::App* command =
      app.add_subcommand("tour", "A short tour of Tern on a device of this machine");
  command->add_option("--device", options.device,
                      "a device spec, such as host; default: the best device");
}

int run(int argc, char** argv) {
  CLI::App app("Memory on hosts and accelerators: inspect, measure and try Tern on this machine.",
               "tern");
  app.set_version_flag("--version", TERN_VERSION);
  app.require_subcommand(1);
  app.footer("Start with `tern tour`. `tern COMMAND --help` explains a command.");

  InfoOptions info;
  CLI::App* const info_command = add_info(app, info);
  BenchOptions bench;
  CLI::App* const bench_command = add_bench(app, bench);
  CheckOptions check;
  CLI::App* const check_command = add_check(app, check);
  ReportOptions report;
  CLI::App* const report_command = add_report(app, report);
  ConvertOptions convert;
  CLI::App* const convert_command = add_convert(app, convert);
  TopOptions top;
  CLI::App* const top_command = add_top(app, top);
  ReplayOptions replay;
  CLI::App* const replay_command = add_replay(app, replay);
  RehearseOptions rehearse;
  CLI::App* const rehearse_command = add_rehearse(app, rehearse);
  TourOptions tour;
  add_tour(app, tour);

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
  if (*convert_command) return run_convert(convert);
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
