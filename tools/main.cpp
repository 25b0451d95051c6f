// `tern`: inspects the devices of this machine, measures them, and shows what the library does.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "tern/core/error.hpp"
#include "tern/core/version.hpp"
#include "tools/commands.hpp"
#include "tools/terminal.hpp"

namespace {

CLI::App* add_report(CLI::App& app, tern::tools::ReportOptions& options) {
  CLI::App* command =
      app.add_subcommand("report", "Show what a program did with memory, from a recording of it");
  command
      ->add_option(
          "file", options.file,
          "a recording, such as TERN_TRACE=run.trace writes, a memory snapshot of PyTorch, or "
          "a log of RMM")
      ->required();
  command->add_option("-o,--output", options.page, "write a page for a browser instead of text");
  command->footer("Example:\n  TERN_TRACE=run.trace my_program; tern report run.trace -o run.html");
  return command;
}

CLI::App* add_convert(CLI::App& app, tern::tools::ConvertOptions& options) {
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
  CLI::App* report_command = add_report(app, report);
  ConvertOptions convert;
  CLI::App* convert_command = add_convert(app, convert);

  TourOptions tour;
  CLI::App* tour_command =
      app.add_subcommand("tour", "A short tour of Tern on a device of this machine");
  tour_command->add_option("--device", tour.device,
                           "a device spec, such as host; default: the best device");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool is_unknown = argc > 1 && argv[1][0] != '-' && app.get_subcommands().empty();
    if (argc == 1 || is_unknown) {
      fmt::print(
          stderr, "tern: {}. The commands are:\n\n",
          is_unknown ? fmt::format("there is no command '{}'", argv[1]) : "a command is needed");
      for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
        fmt::print(stderr, "  {:<7} {}\n", command->get_name(), command->get_description());
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
