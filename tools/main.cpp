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
  CLI::App* command =
      app.add_subcommand("info", "Show which devices this machine has, and why others are absent");
  command->add_flag(
      "--all", options.all,
      "also show what each device can do, the options of each backend and the settings");
  command->add_flag("--json", options.json, "print JSON instead of text");
  return command;
}

CLI::App* add_doctor(CLI::App& app, DoctorOptions& options) {
  CLI::App* command = app.add_subcommand(
      "doctor",
      "Check the drivers, permissions and limits of this machine, and say what to change");
  command->add_flag("--json", options.json, "print JSON instead of text");
  command->footer("Exit status: 0 if nothing is broken, 1 if something is.");
  return command;
}

CLI::App* add_bench(CLI::App& app, BenchOptions& options) {
  CLI::App* command =
      app.add_subcommand("bench", "Run benchmarks and print each figure beside its baseline");
  command->add_option(
      "cases", options.filter,
      "only cases of this group, such as host, or with this prefix, such as host.co");
  command->add_flag("--json", options.json, "print JSON instead of text");
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
  CLI::App* command = app.add_subcommand(
      "check", "Find missing waits in a recording or a trace, or test the checker");
  command->add_option(
      "files", options.files,
      "recordings of any device, such as TERN_TRACE=run.trace writes, or traces of a simulated "
      "device, such as TERN_SIM_TRACE=run.trace writes; - reads a trace from standard input");
  command->add_flag("--json", options.json, "JSON, one object per line for each finding and trace");
  command->add_flag("--trusted", options.trusted,
                    "lift the limits on the cost of checking a trace");
  command->footer(
      "Exit status: 0 if nothing was found, 1 if something was found, 2 if a trace cannot be "
      "read.\nA truncated trace is checked up to its last whole chunk. Example:\n  "
      "TERN_TRACE=run.trace my_program; tern check run.trace");
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
      app.add_subcommand("report", "Show how a recorded program used memory, as text or as a page");
  command
      ->add_option("file", options.file,
                   "a recording (made with TERN_TRACE=run.trace), a PyTorch memory snapshot, or an "
                   "RMM log")
      ->required();
  CLI::Option* const after =
      command->add_option("after", options.after, "a second recording, to compare with the first");
  CLI::Option* const page = command->add_option(
      "-o,--output", options.page, "write an HTML page to this file instead of printing text");
  command->add_flag("--json", options.json, "print JSON instead of text, for one recording")
      ->excludes(after)
      ->excludes(page);
  command->footer(
      "Examples:\n  TERN_TRACE=run.trace my_program; tern report run.trace -o run.html\n"
      "  tern report before.trace after.trace -o difference.html    compares two recordings");
  return command;
}

CLI::App* add_convert(CLI::App& app, ConvertOptions& options) {
  CLI::App* command = app.add_subcommand(
      "convert", "Convert a recording to another format: Tern, PyTorch, Perfetto or RMM");
  command
      ->add_option("input", options.input, "a recording, a PyTorch memory snapshot, or an RMM log")
      ->required();
  command->add_option("output", options.output, "the file to write")->required();
  command
      ->add_option("--format", options.format,
                   "output format: trace (Tern), pytorch (memory snapshot), perfetto, or rmm "
                   "(log); default: "
                   "from the suffix of the output file")
      ->check(CLI::IsMember({"trace", "pytorch", "perfetto", "rmm"}));
  command->footer(
      "Suffixes: .trace; .pickle, .pkl; .pftrace, .perfetto-trace; .csv. Examples:\n"
      "  tern convert run.trace run.pftrace     open it in https://ui.perfetto.dev\n"
      "  tern convert run.trace run.pickle      open it in https://pytorch.org/memory_viz\n"
      "  tern convert snapshot.pickle run.trace");
  return command;
}

CLI::App* add_top(CLI::App& app, TopOptions& options) {
  CLI::App* command = app.add_subcommand(
      "top", "Show the live memory of a running program, from its recording, or a shared budget");
  CLI::Option* const process = command->add_option(
      "process", options.process,
      "process id of a program that records to a file, or the path of the recording");
  command
      ->add_option("--shared", options.shared,
                   "show the tenants of the shared budget with this name instead")
      ->excludes(process);
  command->add_flag("--once", options.once, "print the tables once and exit");
  command->add_option("--seconds", options.seconds, "update interval in seconds")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  command->footer(
      "Examples:\n  TERN_TRACE=run.trace my_program & tern top $!\n  tern top --shared gpu0");
  return command;
}

CLI::App* add_replay(CLI::App& app, ReplayOptions& options) {
  CLI::App* command = app.add_subcommand(
      "replay", "Replay the allocations of a recording with several resources and compare them");
  command->add_option(
      "file", options.file,
      "a recording (made with TERN_TRACE=run.trace), a PyTorch memory snapshot, or an RMM log");
  command->add_option("--sample", options.sample,
                      "replay a generated trace instead of a file: training, kv_cache, tables or "
                      "checkerboard");
  command->add_option(
      "--device", options.device,
      "device to replay on, such as cuda:1 or sim?memory=80GiB; default: cuda:0, or sim without a "
      "GPU");
  command->add_option("--resource", options.resources, "resources to compare, separated by commas")
      ->capture_default_str();
  command
      ->add_option("--passes", options.passes,
                   "number of times that each resource replays the recording")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--of", options.memory,
                      "device of the recording whose allocations are replayed, such as cuda:1 or "
                      "\"page-locked memory of "
                      "cuda:1\"; default: the device with the highest peak");
  command->add_flag("!--no-recommend", options.recommend, "do not search for better pool settings");
  command->add_flag("--json", options.json, "print JSON instead of text");
  command->footer(resource_setting_help() +
                  "\n\nExample:\n  tern replay run.trace --resource "
                  "pool,pool:limit=20GiB,async");
  return command;
}

CLI::App* add_rehearse(CLI::App& app, RehearseOptions& options) {
  CLI::App* command = app.add_subcommand(
      "rehearse", "Run a program, or replay a recording, on simulated devices of any size");
  command->add_option("file", options.file,
                      "a recording to replay; to run a program instead, write it after --");
  command->add_option("--memory", options.memory, "memory size of each simulated device")
      ->capture_default_str();
  command->add_option("--devices", options.devices, "number of simulated devices")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->add_option("--trace", options.trace, "save the recording of the program to this file");
  command->add_flag(
      "--keep-contents", options.keep_contents,
      "store what the program writes to device memory, and run kernels that are C++ functions");
  command->add_flag("--json", options.json,
                    "print JSON instead of text; output of the program goes to standard error");
  command->footer(
      "Exit status:\n"
      "  0  the program exited with status 0, or every request of the recording was served\n"
      "  1  the program failed, or a request of the recording was refused\n"
      "  2  the program could not be started, the recording could not be read, or an argument is "
      "wrong\n"
      "Examples:\n  tern rehearse --memory 80GiB -- python train.py --batch 64\n"
      "  tern rehearse run.trace --memory 24GiB");
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
  DoctorOptions doctor;
  CLI::App* const doctor_command = add_doctor(app, doctor);
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
  if (*doctor_command) return run_doctor(doctor);
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
