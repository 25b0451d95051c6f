// `tern replay FILE`: makes the allocations and frees of a recording on other resources, and prints
// what each costs.

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tern/backends/catalog.hpp"
#include "tern/core/bytes.hpp"
#include "tern/core/error.hpp"
#include "tools/commands.hpp"
#include "tools/formats/any_trace.hpp"
#include "tools/replay/contest.hpp"
#include "tools/replay/recommendation.hpp"
#include "tools/replay/recorded_allocations.hpp"
#include "tools/replay/replay_report.hpp"
#include "tools/replay/resource_setting.hpp"
#include "tools/terminal.hpp"

namespace tern::tools {
namespace {

/// Opens the device or, if none is named, a GPU or a simulated device.
Device open(const std::string& spec) {
  // A replay submits no work, so streams of a GPU are idle and pass each free at once. Those of a
  // simulated device would do so only when the host waits. The variable is the only setting that
  // reaches the fake CUDA driver. No other thread runs yet.
  setenv("TERN_SIM_SCHEDULE", "eager", 0);
  if (!spec.empty()) return open_device(spec);
  if (const Result<Device> cuda = try_open_device("cuda:0")) return *cuda;
  return open_device("sim:0?check=off");
}

/// Fails before anything runs if the device is too small.
Result<void> check_fits(const Device& device, const bench::TraceFacts& facts) {
  const MemoryInfo memory = device.memory();
  if (facts.peak_bytes <= memory.free_bytes) return {};
  return Failure(ErrorCode::invalid_argument,
                 "the recording needs {live} at once, but '{device}' has {free} free of {total}. "
                 "Replay it on a simulated device: --device 'sim?check=off&memory={wanted}'.")
      .with("name", "device")
      .with_bytes("live", facts.peak_bytes)
      .with_bytes("free", memory.free_bytes)
      .with_bytes("total", memory.total_bytes)
      .with("wanted", exact_bytes((facts.peak_bytes / 8 * 9 / gib + 1) * gib))
      .with("device", device.spec());
}

Result<RecordedAllocations> read(const ReplayOptions& options) {
  if (options.file.empty() == options.sample.empty()) {
    return Failure(ErrorCode::invalid_argument,
                   "specify either a recording or --sample. `tern replay --help` explains both.")
        .with("name", "file");
  }
  if (!options.sample.empty()) return try_sample_allocations(options.sample);
  const Result<trace::MemoryTrace> trace = try_read_any(options.file);
  if (!trace) return trace.failure();
  return try_allocations_of(*trace, options.memory);
}

int fail(const Failure& failure) {
  fmt::print(stderr, "tern replay: {}\n", failure.text());
  return 2;
}

}  // namespace

int run_replay(const ReplayOptions& options) {
  const Result<std::vector<ResourceSetting>> settings =
      try_parse_resource_settings(options.resources);
  if (!settings) return fail(settings.failure());
  const Result<RecordedAllocations> recording = read(options);
  if (!recording) return fail(recording.failure());

  const Device device = open(options.device);
  if (const Result<void> fits = check_fits(device, bench::facts_of(recording->trace)); !fits) {
    return fail(fits.failure());
  }
  LateProgressLine progress;
  Contest contest(device, recording->trace, options.passes,
                  [&](std::string_view what) { progress.show(what); });
  ReplayReport report = {.file = options.sample.empty()
                                     ? std::filesystem::path(options.file).filename().string()
                                     : options.sample,
                         .recording = *recording,
                         .facts = contest.facts(),
                         .device = std::string(device.spec()),
                         .device_bytes = device.info().total_bytes,
                         .passes = options.passes,
                         .results = {},
                         .recommendations = {}};
  bool has_figures = false;
  for (const ResourceSetting& setting : *settings) {
    report.results.push_back(contest.run(setting));
    has_figures |= report.results.back().has_figures();
  }
  for (const ContestResult& one : report.results) {
    const bool is_base = one.has_figures() && one.setting.kind == ResourceSetting::Kind::pool;
    if (!is_base || !options.recommend) continue;
    report.recommendations = recommend(contest, one);
    break;
  }
  progress.clear();
  fmt::print("{}", options.json ? report.json() : report.text());
  if (std::fflush(stdout) != 0) {
    fmt::print(stderr, "tern replay: the results could not be written: {}\n", std::strerror(errno));
    return 2;
  }
  return has_figures ? 0 : 2;
}

}  // namespace tern::tools
