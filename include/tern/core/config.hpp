// The configuration of the process: the TERN_* environment variables, read once.
//
// config() reads them on its first call and never again; nothing else in the library asks the
// environment. The grammar is strict: a value that is not exactly what its variable takes, trailing
// text included, is an InvalidArgument that names variable, value and what would be accepted, on
// this and every later call, and nothing is half-read. Names that Tern does not know are kept, so
// that `tern info` can show a misspelt one. Privileged programs (setuid) see an empty environment.
// Thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tern/core/export.hpp"
#include "tern/core/result.hpp"

namespace tern {

struct Config {
  /// TERN_DEVICE: the spec open_best_device() tries first. Empty: unset.
  std::string device;
  /// TERN_REQUIRE: backends, separated by commas, whose absence is a failure instead of a skip.
  std::vector<std::string> require;
  /// TERN_HOST_THREADS: threads a host copy or fill may use, 1 to 1024. 0: one per usable core.
  std::size_t host_threads = 0;
  /// TERN_STREAM_POOL: streams a StreamPool holds if its owner names no number, 1 to 1024.
  std::size_t stream_pool_capacity = 16;
  /// TERN_STAGING_THREADS: threads a copy between pageable memory and a device may use, 0 to 64; 0
  /// leaves such copies to the driver. Unset: the device's choice.
  std::optional<std::size_t> staging_threads = {};
  /// TERN_STAGING_BYTES: page-locked memory a device may hold for such copies; 0 leaves them to the
  /// driver. Unset: the device's choice.
  std::optional<std::size_t> staging_bytes = {};
  /// TERN_CHECKED: host accesses to a buffer that collide are refused, at the price of a list, and
  /// unified buffers are checked as with the words poison and checksum below.
  bool checked = false;
  /// TERN_CHECK: words, separated by commas, that turn on what unified buffers find where the
  /// program says nothing of it. UnifiedOptions says what each does; poison and checksum are one
  /// option there, which either of them turns on.
  struct Checks {
    bool poison = false, guard = false, checksum = false, compare = false;
  };
  Checks checks = {};
  /// TERN_MEMORY: words, separated by commas, that put wrappers around the built-in default
  /// resources: guard (bands around each block), poison (bands, and blocks are filled when they are
  /// given and when they are freed), track (who holds what, and where it was asked for).
  struct MemoryChecks {
    bool guard = false, poison = false, track = false;
  };
  MemoryChecks memory = {};

  /// TERN_SIM_SEED, _SCHEDULE, _REUSE, _MODE, _REPORT, _PROFILE, _FAULTS, _TRACE: what a simulated
  /// device is opened with where its spec says nothing. As text; the device knows the grammar.
  /// Empty: unset.
  std::string sim_seed = {}, sim_schedule = {}, sim_reuse = {}, sim_mode = {};
  std::string sim_report = {}, sim_profile = {}, sim_faults = {}, sim_trace = {};

  /// NVTX_INJECTION64_PATH, which debugging tools of CUDA set: the library that wants to be told.
  std::string nvtx_injection = {};

  /// Variables that begin with TERN_ and are none of the above.
  std::vector<std::string> unknown_names;
};

/// What a variable is for, as `tern info` lists it.
struct ConfigVariable {
  std::string_view name;
  std::string_view accepts;
  std::string_view purpose;
};

[[nodiscard]] TERN_EXPORT std::span<const ConfigVariable> config_variables() noexcept;

/// Name and value pairs to a configuration. Pure; config() is this on the process's environment.
using EnvironmentEntry = std::pair<std::string_view, std::string_view>;
[[nodiscard]] TERN_EXPORT Result<Config> try_parse_config(
    std::span<const EnvironmentEntry> environment);

/// The process's configuration, read once.
[[nodiscard]] TERN_EXPORT Result<const Config*> try_config();
[[nodiscard]] TERN_EXPORT const Config& config();

/// The effective value of a variable as text, for listings. Empty for a name Tern does not know.
[[nodiscard]] TERN_EXPORT std::string effective_value(const Config& config, std::string_view name);

}  // namespace tern
