// Not part of the interface.
//
// Config holds the settings of the process, read once from the TERN_* environment variables.
//
// config() reads the environment on its first call and never again. No other part of the library
// reads the environment. A setuid program sees an empty environment, so that its caller cannot
// change what it does.
//
// Parsing is strict. If the value of a variable is not exactly what the variable accepts, config()
// throws InvalidArgument on the first and on every later call. The error names the variable, its
// value and what the variable accepts. No setting takes effect in that case. Unknown TERN_* names
// are not errors; Config keeps them so that `tern info` can show a misspelled name.
//
// All functions are safe from any thread. The Config that config() returns lives as long as the
// process.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tern/core/result.hpp"
#include "tern/detail/core/visibility.hpp"

namespace tern {

struct Config {
  /// TERN_DEVICE: the device spec that open_best_device() opens. Empty if unset.
  std::string device;
  /// TERN_REHEARSE: the spec of a simulated device that is opened instead of every device but the
  /// host. Empty if unset.
  std::string rehearse;
  /// TERN_REQUIRE: comma-separated backends that must be present. Where a test or tool would skip
  /// an absent backend, it fails for a backend in this list.
  std::vector<std::string> require;
  /// TERN_HOST_THREADS: maximum number of threads for one host copy or fill, 1 to 1024. 0 means
  /// unset: one thread per usable core.
  std::size_t host_threads = 0;
  /// TERN_STREAM_POOL: capacity of a StreamPool whose owner names no capacity, 1 to 1024.
  std::size_t stream_pool_capacity = 16;
  /// TERN_STAGING_THREADS: maximum number of threads for one copy between pageable memory and a
  /// device, 0 to 64. 0 leaves such copies to the driver. If unset, the device chooses.
  std::optional<std::size_t> staging_threads = {};
  /// TERN_STAGING_BYTES: maximum page-locked memory that a device holds to stage copies of pageable
  /// memory. 0 leaves such copies to the driver. If unset, the device chooses.
  std::optional<std::size_t> staging_bytes = {};
  /// TERN_CHECKED: 1 makes buffers reject conflicting host accesses, which costs a list of open
  /// accesses per buffer. For unified buffers, 1 also turns on the `poison` and `checksum` checks
  /// of TERN_CHECK.
  bool checked = false;
  /// TERN_CHECK: comma-separated checks for unified buffers whose options do not set them.
  /// UnifiedOptions describes each check. `poison` and `checksum` are one option in UnifiedOptions,
  /// and either word turns that option on.
  bool check_poison = false, check_guard = false, check_checksum = false, check_compare = false;
  /// TERN_MEMORY: comma-separated wrappers around the built-in default resources.
  /// - `guard`: puts guard bytes before and after each block.
  /// - `poison`: `guard`, and fills each block when it is allocated and when it is freed.
  /// - `track`: records who holds each block and where the block was allocated.
  /// - `leaks`: `track`, and prints the blocks that are live when the program exits.
  bool memory_guard = false, memory_poison = false, memory_track = false, memory_leaks = false;

  /// TERN_TRACE: the path of a recording, or `ring:` with a size and optionally a path. Empty if
  /// unset.
  std::string trace = {};

  /// TERN_CXX: the name or the path of the compiler that compiles portable kernels for the host.
  /// Empty if unset.
  std::string cxx = {};
  /// TERN_CACHE_DIR: the folder of compiled kernels; empty to keep none. If unset, cache_folder()
  /// chooses.
  std::optional<std::string> cache_dir = {};
  /// TERN_CACHE_LIMIT: maximum number of bytes of compiled kernels in that folder. 0 keeps none.
  std::uint64_t cache_limit_bytes = std::uint64_t{256} << 20;

  /// TERN_SIM_SEED, _SCHEDULE, _REUSE, _MODE, _REPORT, _PROFILE, _FAULTS, _TRACE: defaults for
  /// simulated devices. A setting in the device spec takes precedence. The values are kept as text,
  /// because the simulated device parses them. Empty if unset.
  std::string sim_seed = {}, sim_schedule = {}, sim_reuse = {}, sim_mode = {};
  std::string sim_report = {}, sim_profile = {}, sim_faults = {}, sim_trace = {};

  /// NVTX_INJECTION64_PATH, set by CUDA debugging tools: the library that receives NVTX calls.
  /// Empty if unset.
  std::string nvtx_injection = {};
  /// HOME, XDG_CACHE_HOME, PATH and TMPDIR. Empty if unset.
  std::string home = {}, xdg_cache_home = {}, search_path = {}, temporary_folder = {};

  /// Names of variables that begin with TERN_ and that Tern does not know.
  std::vector<std::string> unknown_names;
};

/// One row of the list that `tern info --all` prints: the name of a variable, the values that it accepts,
/// and its purpose.
struct ConfigVariable {
  std::string_view name;
  std::string_view accepts;
  std::string_view purpose;
};

/// Returns all variables that Tern knows, in a fixed order.
[[nodiscard]] TERN_EXPORT std::span<const ConfigVariable> config_variables() noexcept;

/// One environment variable: its name and its value.
using EnvironmentEntry = std::pair<std::string_view, std::string_view>;
/// Parses variables into a Config without reading the environment. Fails with invalid_argument for
/// a value that its variable does not accept. Ignores names without the prefix TERN_, except
/// NVTX_INJECTION64_PATH and the variables of the system that Config has.
[[nodiscard]] TERN_EXPORT Result<Config> try_parse_config(
    std::span<const EnvironmentEntry> environment);

/// Returns the configuration of the process. The first call reads and parses the environment. Later
/// calls return the first result, including a failure. The pointer stays valid until the process
/// ends.
[[nodiscard]] TERN_EXPORT Result<const Config*> try_config();
/// Like try_config(), but throws the failure.
[[nodiscard]] TERN_EXPORT const Config& config();

/// Returns the folder of compiled kernels: TERN_CACHE_DIR, or `tern` in the cache folder of the
/// user. Empty if there is none.
[[nodiscard]] TERN_EXPORT std::string cache_folder(const Config& config);

/// Returns the value of a variable in `config` as text, for listings. Returns an empty string for a
/// name that Tern does not know.
[[nodiscard]] TERN_EXPORT std::string effective_value(const Config& config, std::string_view name);

}  // namespace tern
