// `tern rehearse`: runs a program, or the allocations of a recording, on simulated devices of any
// size, whose memory costs nothing, and prints what memory it needs.

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/file_failure.hpp"
#include "tern/core/bytes.hpp"
#include "tern/core/error.hpp"
#include "tools/commands.hpp"
#include "tools/formats/any_trace.hpp"
#include "tools/rehearse/child_program.hpp"
#include "tools/rehearse/device_size.hpp"
#include "tools/rehearse/rehearsal_report.hpp"
#include "tools/replay/recorded_allocations.hpp"
#include "tools/replay/resource_setting.hpp"
#include "tools/terminal.hpp"

namespace tern::tools {
namespace {

using trace::MemoryTrace;

constexpr std::uint64_t max_memory_bytes = std::uint64_t{1} << 44;
/// A recording may name any number of devices.
constexpr std::size_t max_devices = 8;

/// A folder for recordings that is deleted at the end.
class RecordingFolder {
 public:
  RecordingFolder() : path_(std::filesystem::temp_directory_path() / "tern-rehearse-XXXXXX") {
    is_made_ = mkdtemp(path_.data()) != nullptr;
  }
  ~RecordingFolder() {
    std::error_code ignored;
    if (is_made_) std::filesystem::remove_all(path_, ignored);
  }
  RecordingFolder(const RecordingFolder&) = delete;
  RecordingFolder& operator=(const RecordingFolder&) = delete;
  [[nodiscard]] bool is_made() const { return is_made_; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool is_made_ = false;
};

int fail(const Failure& failure) {
  fmt::print(stderr, "tern rehearse: {}\n", failure.text());
  return 2;
}

Result<std::size_t> parse_memory(const std::string& text) {
  const Result<std::uint64_t> bytes = try_parse_bytes(text);
  if (bytes && *bytes >= device_granule_bytes && *bytes <= max_memory_bytes) {
    return *bytes / device_granule_bytes * device_granule_bytes;
  }
  return Failure(ErrorCode::invalid_argument,
                 "--memory={value} is not accepted. Accepted: 2MiB to 16TiB.")
      .with("name", "memory")
      .with("value", text);
}

std::string rehearsal_of(const RehearseOptions& options, std::size_t memory_bytes) {
  // Streams run immediately: a program may poll for work of a stream, and nothing else would run
  // it.
  const char* const schedule = std::getenv("TERN_SIM_SCHEDULE");
  return fmt::format("sim?memory={}&devices={}&check=off&schedule={}{}", memory_bytes,
                     options.devices, schedule == nullptr ? "eager" : schedule,
                     options.keep_contents ? "" : "&backing=none");
}

/// What a program or a file recorded, and how many recordings there are.
struct Recorded {
  MemoryTrace trace;
  std::string title;
  std::string path;  // of the recording
  std::size_t recordings = 0;
  std::uint64_t peak_bytes = 0;
};

/// A program may start others, which record too. Keeps the recording with the highest peak.
void add_recording(const std::string& path, Recorded& best) {
  Result<MemoryTrace> trace = try_read_any(path);
  if (!trace) return;
  ++best.recordings;
  const Result<RecordedAllocations> allocations = try_allocations_of(*trace);
  const std::uint64_t peak =
      allocations ? bench::facts_of(allocations->trace).peak_bytes : std::uint64_t{0};
  if (best.recordings > 1 && peak <= best.peak_bytes) return;
  best.trace = *std::move(trace);
  best.path = path;
  best.peak_bytes = peak;
}

/// The devices of the recording: trials on the rehearsed size, and the smallest sizes.
std::vector<RehearsedDevice> measure(const MemoryTrace& trace, std::size_t memory_bytes,
                                     bool is_program, LateProgressLine& progress) {
  std::vector<RehearsedDevice> devices;
  const Result<RecordedAllocations> first = try_allocations_of(trace);
  if (!first) return devices;
  std::vector<std::string> names = {first->name};
  for (const RecordedAllocations::Other& one : first->others) names.push_back(one.name);
  // Memory of the host is not rehearsed.
  std::erase_if(names, [](const std::string& name) {
    return name == "host" || name.starts_with("host?") || name.find(" memory of ") != name.npos;
  });
  if (names.size() > max_devices) names.resize(max_devices);
  for (const std::string& name : names) {
    const Result<RecordedAllocations> recorded = try_allocations_of(trace, name);
    if (!recorded) continue;
    RehearsedDevice one = {.name = name, .refused_requests = recorded->refused_requests};
    const auto show = [&](std::size_t bytes) {
      progress.show(fmt::format("{} with {}", name, format_bytes(bytes)));
    };
    if (!is_program) {
      show(memory_bytes);
      one.trial = try_device_size(recorded->trace, memory_bytes);
      if (!one.trial->fits()) one.refused = refused_request(trace, *recorded, *one.trial);
    }
    one.smallest = find_smallest_device(recorded->trace, PoolLimit::none, show);
    one.smallest_with_limit = find_smallest_device(recorded->trace, PoolLimit::device, show);
    if (one.smallest && one.smallest->one_less) {
      one.refused_by_one_less = refused_request(trace, *recorded, *one.smallest->one_less);
    }
    devices.push_back(std::move(one));
  }
  return devices;
}

int print(const RehearsalReport& report, bool json) {
  fmt::print("{}", json ? report.json() : report.text());
  if (std::fflush(stdout) != 0) {
    fmt::print(stderr, "tern rehearse: the results could not be written: {}\n",
               std::strerror(errno));
    return 2;
  }
  return report.is_success() ? 0 : 1;
}

Result<Recorded> run_program(const RehearseOptions& options, std::size_t memory_bytes,
                             std::optional<ChildEnd>& end) {
  const RecordingFolder folder;
  if (!folder.is_made()) return file_failure(folder.path(), "mkdtemp", errno);
  const Result<ChildEnd> ended = try_run_child({.arguments = options.program,
                                                .rehearsal = rehearsal_of(options, memory_bytes),
                                                .trace = folder.path() + "/%p.trace",
                                                .keeps_contents = options.keep_contents,
                                                .output_to_stderr = options.json});
  if (!ended) return ended.failure();
  end = *ended;
  Recorded recorded;
  recorded.title = std::filesystem::path(options.program.front()).filename().string();
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path(), error)) {
    add_recording(entry.path().string(), recorded);
  }
  if (recorded.recordings > 0) {
    // Copied at the end: an older file with this name must not be taken for the new recording.
    if (!options.trace.empty() &&
        !std::filesystem::copy_file(recorded.path, options.trace,
                                    std::filesystem::copy_options::overwrite_existing, error)) {
      return file_failure(options.trace, "copy", error.value());
    }
    return recorded;
  }
  return Failure(ErrorCode::invalid_argument,
                 "'{value}' {end} and recorded nothing. Rehearse a program that allocates memory "
                 "through Tern.")
      .with("name", "program")
      .with("end", ended->text())
      .with("value", options.program.front());
}

}  // namespace

int run_rehearse(const RehearseOptions& options) {
  const Result<std::size_t> memory = parse_memory(options.memory);
  if (!memory) return fail(memory.failure());
  if (options.file.empty() == options.program.empty()) {
    return fail(Failure(ErrorCode::invalid_argument,
                        "specify either a recording, or a program after `--`, such as "
                        "`tern rehearse -- ./my_program`.")
                    .with("name", "file"));
  }
  std::optional<ChildEnd> end;
  Recorded recorded;
  if (options.program.empty()) {
    Result<MemoryTrace> trace = try_read_any(options.file);
    if (!trace) return fail(trace.failure());
    // Without allocations there is nothing to rehearse.
    if (const auto allocations = try_allocations_of(*trace); !allocations) {
      return fail(allocations.failure());
    }
    recorded.trace = *std::move(trace);
    recorded.title = std::filesystem::path(options.file).filename().string();
    recorded.recordings = 1;
  } else {
    Result<Recorded> ran = run_program(options, *memory, end);
    if (!ran) return fail(ran.failure());
    recorded = *std::move(ran);
  }
  LateProgressLine progress;
  std::vector<RehearsedDevice> devices =
      measure(recorded.trace, *memory, end.has_value(), progress);
  progress.clear();
  if (devices.empty() && !end) {
    fmt::print(
        stderr,
        "tern rehearse: '{}' has no allocations on a device that can be rehearsed. Memory of "
        "the host is not rehearsed.\n",
        options.file);
    return 2;
  }
  const TraceSummary summary(recorded.trace, recorded.title);
  return print({.memory_bytes = *memory,
                .end = end,
                .recordings = recorded.recordings,
                .summary = summary,
                .refusals = refusals_of(recorded.trace),
                .devices = std::move(devices)},
               options.json);
}

}  // namespace tern::tools
