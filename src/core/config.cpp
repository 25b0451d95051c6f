#include "tern/detail/core/config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <span>

#include "tern/core/bytes.hpp"

namespace tern {
namespace {

constexpr std::string_view prefix = "TERN_";
/// Not a variable of Tern: debugging tools set it to announce themselves to the libraries of a
/// program.
constexpr std::string_view tools_variable = "NVTX_INJECTION64_PATH";

/// Variables of the system that say where programs and the files of the user are.
struct PathVariable {
  std::string_view name;
  std::string Config::*path;
};
constexpr PathVariable path_variables[] = {{"HOME", &Config::home},
                                           {"XDG_CACHE_HOME", &Config::xdg_cache_home},
                                           {"PATH", &Config::search_path},
                                           {"TMPDIR", &Config::temporary_folder}};
constexpr std::size_t max_threads = 1024;
constexpr std::size_t max_streams = 1024;
constexpr std::size_t max_staging_threads = 64;

constexpr std::array<ConfigVariable, 22> variables = {{
    {"TERN_DEVICE", "a device spec, such as host or cuda:1",
     "the device that open_best_device() opens"},
    {"TERN_REHEARSE", "a simulated device, such as sim?memory=80GiB&backing=none",
     "is opened instead of every device but the host; `tern rehearse` sets it"},
    {"TERN_REQUIRE", "backend names separated by commas", "backends that must be present"},
    {"TERN_HOST_THREADS", "1 to 1024", "threads of one host copy or fill; unset: one per core"},
    {"TERN_STREAM_POOL", "1 to 1024", "default size of a stream pool"},
    {"TERN_STAGING_THREADS", "0 to 64",
     "threads of one copy of pageable memory; 0: the driver copies"},
    {"TERN_STAGING_BYTES", "a size such as 64MiB",
     "page-locked memory for copies of pageable memory; 0: none"},
    {"TERN_CHECKED", "0 or 1",
     "host accesses of buffers that conflict are errors; unified buffers check poison,checksum"},
    {"TERN_CHECK", "poison, guard, checksum or compare, or several separated by commas",
     "default checks of unified buffers"},
    {"TERN_MEMORY", "guard, poison, track or leaks, or several separated by commas",
     "debugging resources around the default resources"},
    {"TERN_TRACE", "a path such as run.trace, or ring:64MiB, or ring:64MiB:run.trace",
     "the file that `tern report` shows; ring: written when an allocation fails"},
    {"TERN_CXX", "a compiler such as g++ or /usr/bin/clang++",
     "compiles portable kernels for the host; unset: c++, g++ or clang++"},
    {"TERN_CACHE_DIR", "the path of a folder, or off",
     "where compiled kernels are kept; unset: tern in the cache folder of the user"},
    {"TERN_CACHE_LIMIT", "a size such as 256MiB",
     "bytes of compiled kernels that are kept; 0: none"},
    {"TERN_SIM_SEED", "a number such as 7 or 0x1c9f", "the random seed of a simulated device"},
    {"TERN_SIM_SCHEDULE", "mix, lazy, eager, random, skewed, stall-one, or pct:2 to pct:5",
     "the schedule of a simulated device"},
    {"TERN_SIM_REUSE", "hostile or friendly", "how a simulated device reuses freed memory"},
    {"TERN_SIM_MODE", "throw, collect or abort", "what the checker does with a finding"},
    {"TERN_SIM_REPORT", "print or quiet", "whether findings are printed to standard error"},
    {"TERN_SIM_PROFILE", "h200, small or a file", "the profile of a simulated device"},
    {"TERN_SIM_FAULTS", "a plan such as allocate#3=oom", "the fault plan of a simulated device"},
    {"TERN_SIM_TRACE", "a path such as run.trace", "the trace file of a simulated device"},
}};

/// Returns the field of a variable that is kept as text, or null. The user of the field parses it.
std::string* text_of(Config& config, std::string_view name) noexcept {
  if (name == "TERN_DEVICE") return &config.device;
  if (name == "TERN_REHEARSE") return &config.rehearse;
  if (name == "TERN_TRACE") return &config.trace;
  if (name == "TERN_CXX") return &config.cxx;
  if (name == "TERN_SIM_SEED") return &config.sim_seed;
  if (name == "TERN_SIM_SCHEDULE") return &config.sim_schedule;
  if (name == "TERN_SIM_REUSE") return &config.sim_reuse;
  if (name == "TERN_SIM_MODE") return &config.sim_mode;
  if (name == "TERN_SIM_REPORT") return &config.sim_report;
  if (name == "TERN_SIM_PROFILE") return &config.sim_profile;
  if (name == "TERN_SIM_FAULTS") return &config.sim_faults;
  if (name == "TERN_SIM_TRACE") return &config.sim_trace;
  return nullptr;
}

/// The value is added last: it may be long and then takes all the remaining space for texts.
Failure refuse(std::string_view name, std::string_view value, const char* accepts) noexcept {
  return Failure(ErrorCode::invalid_argument,
                 "{name}='{value}' is not accepted. Set it to {accepts}, or unset it.")
      .with("name", name)
      .with("accepts", accepts)
      .with("value", value);
}

const char* accepted_by(std::string_view name) noexcept {
  const auto* row = std::ranges::find(variables, name, &ConfigVariable::name);
  return row->accepts.data();  // a string literal, so it is zero-terminated
}

Result<std::size_t> parse_count(std::string_view name, std::string_view value, std::size_t min,
                                std::size_t max, const char* accepts) noexcept {
  std::size_t count = 0;
  const char* end = value.data() + value.size();
  const auto [stopped, error] = std::from_chars(value.data(), end, count);
  // from_chars accepts neither a sign nor a space. Trailing text and the range remain to be
  // checked.
  if (error != std::errc{} || stopped != end || count < min || count > max) {
    return refuse(name, value, accepts);
  }
  return count;
}

bool is_name_character(char c) noexcept {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

Result<std::vector<std::string>> parse_names(std::string_view name, std::string_view value) {
  std::vector<std::string> names;
  for (std::string_view rest = value;;) {
    const std::size_t comma = rest.find(',');
    const std::string_view part = rest.substr(0, comma);
    if (part.empty() || !std::ranges::all_of(part, is_name_character)) {
      return refuse(name, value, "backend names in lower case, separated by commas without spaces");
    }
    names.emplace_back(part);
    if (comma == rest.npos) return names;
    rest.remove_prefix(comma + 1);
  }
}

/// A word in a list and the check that it turns on.
struct Word {
  std::string_view word;
  bool Config::*is_on;
};
constexpr Word check_words[] = {{"poison", &Config::check_poison},
                                {"guard", &Config::check_guard},
                                {"checksum", &Config::check_checksum},
                                {"compare", &Config::check_compare}};
constexpr Word memory_words[] = {{"guard", &Config::memory_guard},
                                 {"poison", &Config::memory_poison},
                                 {"track", &Config::memory_track},
                                 {"leaks", &Config::memory_leaks}};

Result<void> parse_words(std::string_view name, std::string_view value, std::span<const Word> words,
                         const char* accepts, Config& config) {
  for (std::string_view rest = value;;) {
    const std::size_t comma = rest.find(',');
    const auto known = std::ranges::find(words, rest.substr(0, comma), &Word::word);
    if (known == words.end()) return refuse(name, value, accepts);
    config.*(known->is_on) = true;
    if (comma == rest.npos) return {};
    rest.remove_prefix(comma + 1);
  }
}

std::string text_of(const Config& config, std::span<const Word> words) {
  std::vector<std::string_view> on;
  for (const Word& one : words) {
    if (config.*(one.is_on)) on.push_back(one.word);
  }
  return fmt::format("{}", fmt::join(on, ","));
}

std::vector<EnvironmentEntry> process_environment() {
  std::vector<EnvironmentEntry> entries;
  // The same test as in secure_getenv: a setuid program must not be controlled by its caller.
  if (getauxval(AT_SECURE) != 0) return entries;
  for (char** line = environ; line != nullptr && *line != nullptr; ++line) {
    const std::string_view text = *line;
    const std::size_t equals = text.find('=');
    const std::string_view name = text.substr(0, equals);
    const bool is_path = std::ranges::find(path_variables, name, &PathVariable::name) !=
                         std::end(path_variables);
    if (!is_path && !name.starts_with(prefix) && name != tools_variable) continue;
    if (equals != text.npos) entries.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return entries;
}

}  // namespace

std::span<const ConfigVariable> config_variables() noexcept { return variables; }

Result<Config> try_parse_config(std::span<const EnvironmentEntry> environment) {
  Config config;
  for (const auto& [name, value] : environment) {
    if (name == tools_variable) config.nvtx_injection = value;
    for (const PathVariable& variable : path_variables) {
      if (name == variable.name) config.*(variable.path) = value;
    }
    if (!name.starts_with(prefix)) continue;
    if (std::string* text = text_of(config, name)) {
      if (value.empty()) return refuse(name, value, accepted_by(name));
      *text = value;
    } else if (name == "TERN_REQUIRE") {
      Result<std::vector<std::string>> names = parse_names(name, value);
      if (!names) return names.failure();
      config.require = *std::move(names);
    } else if (name == "TERN_HOST_THREADS") {
      const Result<std::size_t> count =
          parse_count(name, value, 1, max_threads, "a whole number from 1 to 1024");
      if (!count) return count.failure();
      config.host_threads = *count;
    } else if (name == "TERN_STREAM_POOL") {
      const Result<std::size_t> count =
          parse_count(name, value, 1, max_streams, "a whole number from 1 to 1024");
      if (!count) return count.failure();
      config.stream_pool_capacity = *count;
    } else if (name == "TERN_STAGING_THREADS") {
      const Result<std::size_t> count =
          parse_count(name, value, 0, max_staging_threads, "a whole number from 0 to 64");
      if (!count) return count.failure();
      config.staging_threads = *count;
    } else if (name == "TERN_CHECKED") {
      if (value != "0" && value != "1") return refuse(name, value, accepted_by(name));
      config.checked = value == "1";
    } else if (name == "TERN_CHECK") {
      const Result<void> read =
          parse_words(name, value, check_words,
                      "some of the words poison, guard, checksum and compare, separated by commas "
                      "without spaces",
                      config);
      if (!read) return read.failure();
    } else if (name == "TERN_MEMORY") {
      const Result<void> read = parse_words(
          name, value, memory_words,
          "some of the words guard, poison, track and leaks, separated by commas without "
          "spaces",
          config);
      if (!read) return read.failure();
    } else if (name == "TERN_CACHE_DIR") {
      // A relative path would be another folder whenever the program changes its folder.
      const bool is_off = value.empty() || value == "off";
      if (!is_off && !value.starts_with('/')) {
        return refuse(name, value, "the absolute path of a folder, or to off");
      }
      config.cache_dir = is_off ? "" : value;
    } else if (name == "TERN_CACHE_LIMIT") {
      const Result<std::uint64_t> bytes = try_parse_bytes(value);
      if (!bytes || *bytes > max_request_bytes) return refuse(name, value, accepted_by(name));
      config.cache_limit_bytes = *bytes;
    } else if (name == "TERN_STAGING_BYTES") {
      const Result<std::uint64_t> bytes = try_parse_bytes(value);
      if (!bytes || *bytes > max_request_bytes) return refuse(name, value, accepted_by(name));
      config.staging_bytes = *bytes;
    } else {
      config.unknown_names.emplace_back(name);
    }
  }
  return config;
}

Result<const Config*> try_config() {
  // Never destroyed, and read once, so that all parts of the process see the same settings.
  static const Result<Config>& parsed =
      *new Result<Config>(try_parse_config(process_environment()));
  if (!parsed) return parsed.failure();
  return &parsed.value();
}

const Config& config() { return *try_config().value(); }

std::string cache_folder(const Config& config) {
  if (config.cache_dir) return *config.cache_dir;
  // As the XDG specification says: a path that is not absolute is ignored.
  if (config.xdg_cache_home.starts_with('/')) return config.xdg_cache_home + "/tern";
  if (config.home.starts_with('/')) return config.home + "/.cache/tern";
  return "";
}

std::string effective_value(const Config& config, std::string_view name) {
  if (const std::string* text = text_of(const_cast<Config&>(config), name)) return *text;
  if (name == "TERN_REQUIRE") return fmt::format("{}", fmt::join(config.require, ","));
  if (name == "TERN_HOST_THREADS") {
    return config.host_threads == 0 ? "one per core" : fmt::format("{}", config.host_threads);
  }
  if (name == "TERN_STREAM_POOL") return fmt::format("{}", config.stream_pool_capacity);
  const auto chosen = [](const std::optional<std::size_t>& value) {
    return value ? fmt::format("{}", *value) : "the device's choice";
  };
  if (name == "TERN_STAGING_THREADS") return chosen(config.staging_threads);
  if (name == "TERN_STAGING_BYTES") return chosen(config.staging_bytes);
  if (name == "TERN_CACHE_DIR") {
    const std::string folder = cache_folder(config);
    return folder.empty() ? "off" : folder;
  }
  if (name == "TERN_CACHE_LIMIT") return fmt::format("{}", config.cache_limit_bytes);
  if (name == "TERN_CHECKED") return config.checked ? "1" : "0";
  if (name == "TERN_CHECK") return text_of(config, check_words);
  if (name == "TERN_MEMORY") return text_of(config, memory_words);
  return "";
}

}  // namespace tern
