#include "backends/sim/sim_options.hpp"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <optional>
#include <utility>

#include "backends/sim/fault_plan.hpp"
#include "backends/sim/profile.hpp"
#include "core/text.hpp"
#include "tern/core/bytes.hpp"

namespace tern::sim {
namespace {

Failure refuse(std::string_view key, std::string_view value, const char* accepts) noexcept {
  return Failure(ErrorCode::invalid_argument,
                 "the simulated device does not accept {name}='{value}'. Accepted: {accepts}.")
      .with("name", key)
      .with("accepts", accepts)
      .with("value", value);
}

template <class T, std::size_t count>
bool choose(std::string_view text, const std::pair<std::string_view, T> (&choices)[count],
            T& value) noexcept {
  for (const auto& [name, choice] : choices) {
    if (equals_ignoring_case(text, name)) {
      value = choice;
      return true;
    }
  }
  return false;
}

bool parse_seed(std::string_view text, std::uint64_t& seed) noexcept {
  const bool is_hex = text.starts_with("0x") || text.starts_with("0X");
  if (is_hex) text.remove_prefix(2);
  std::uint64_t number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, is_hex ? 16 : 10);
  if (error != std::errc{} || end != text.data() + text.size()) return false;
  seed = number;
  return true;
}

bool parse_policy(std::string_view text, Options& options) noexcept {
  static constexpr std::pair<std::string_view, Policy> names[] = {
      {"mix", Policy::mix},       {"lazy", Policy::lazy},     {"eager", Policy::eager},
      {"random", Policy::random}, {"skewed", Policy::skewed}, {"stall-one", Policy::stall_one},
      {"pct", Policy::pct}};
  // "pct:3" sets the depth.
  const std::size_t colon = text.find(':');
  Policy policy = options.policy;
  if (!choose(text.substr(0, colon), names, policy)) return false;
  // A plain "pct" means the default depth, even if the environment set another.
  unsigned depth = Options().pct_depth;
  if (colon != text.npos) {
    const std::string_view digits = text.substr(colon + 1);
    if (policy != Policy::pct || digits.size() != 1 || digits[0] < '2' || digits[0] > '5') {
      return false;
    }
    depth = static_cast<unsigned>(digits[0] - '0');
  }
  options.policy = policy;
  options.pct_depth = depth;
  return true;
}

}  // namespace

Result<void> try_set_option(Options& options, std::string_view key, std::string_view value) {
  static constexpr std::pair<std::string_view, bool> switches[] = {
      {"on", true}, {"off", false}, {"1", true}, {"0", false}};
  static constexpr std::pair<std::string_view, Reuse> reuses[] = {{"hostile", Reuse::hostile},
                                                                  {"friendly", Reuse::friendly}};
  static constexpr std::pair<std::string_view, Mode> modes[] = {
      {"throw", Mode::raise}, {"collect", Mode::collect}, {"abort", Mode::abort}};
  static constexpr std::pair<std::string_view, bool> reports[] = {{"print", true},
                                                                  {"quiet", false}};
  static constexpr std::pair<std::string_view, bool> backings[] = {{"memory", true},
                                                                   {"none", false}};
  static constexpr std::pair<std::string_view, bool> credits[] = {{"none", false},
                                                                  {"documented", true}};

  if (key == "seed") {
    if (parse_seed(value, options.seed)) return {};
    return refuse(key, value, "a number below 2^64, such as 7 or 0x1c9f");
  }
  if (key == "schedule") {
    if (parse_policy(value, options)) return {};
    return refuse(key, value, "mix, lazy, eager, random, skewed, stall-one, pct or pct:2 to pct:5");
  }
  if (key == "reuse") {
    if (choose(value, reuses, options.reuse)) return {};
    return refuse(key, value, "hostile or friendly");
  }
  if (key == "mode") {
    if (choose(value, modes, options.mode)) return {};
    return refuse(key, value, "throw, collect or abort");
  }
  if (key == "report") {
    if (choose(value, reports, options.print_findings)) return {};
    return refuse(key, value, "print or quiet");
  }
  if (key == "memory") {
    const Result<std::uint64_t> bytes = try_parse_bytes(value);
    if (bytes && *bytes >= min_memory_bytes && *bytes <= max_memory_bytes) {
      options.memory_bytes = static_cast<std::size_t>(*bytes);
      return {};
    }
    return refuse(key, value, "2MiB to 16TiB");
  }
  if (key == "backing") {
    if (choose(value, backings, options.keeps_contents)) return {};
    return refuse(key, value, "memory or none");
  }
  if (key == "check") {
    if (choose(value, switches, options.check)) return {};
    return refuse(key, value, "on or off");
  }
  if (key == "concurrent") {
    bool is_on = false;
    if (!choose(value, switches, is_on)) return refuse(key, value, "on or off");
    options.concurrent_managed = is_on;
    return {};
  }
  if (key == "float64") {
    if (choose(value, switches, options.float64)) return {};
    return refuse(key, value, "on or off");
  }
  if (key == "profile") {
    if (const Result<Profile> profile = try_load_profile(value); !profile) {
      return profile.failure();
    }
    options.profile = value;
    return {};
  }
  if (key == "strict_kernels") {
    if (choose(value, switches, options.strict_kernels)) return {};
    return refuse(key, value, "on or off");
  }
  if (key == "per_thread_host") {
    if (choose(value, switches, options.per_thread_host)) return {};
    return refuse(key, value, "on or off");
  }
  if (key == "implicit_sync") {
    if (choose(value, credits, options.implicit_sync)) return {};
    return refuse(key, value, "none or documented");
  }
  if (key == "faults") {
    if (const Result<FaultPlan> plan = FaultPlan::try_parse(value, options.seed); !plan) {
      return plan.failure();
    }
    options.faults = value;
    return {};
  }
  if (key == "trace") {
    options.trace = value;
    return {};
  }
  return refuse(
      key, value,
      "the keys seed, schedule, reuse, mode, report, profile, memory, backing, check, concurrent, "
      "float64, strict_kernels, per_thread_host, implicit_sync, faults and trace");
}

Result<void> check_options(const Options& options) {
  const auto wrong = [](const char* name, std::uint64_t value, const char* accepts) {
    return Failure(ErrorCode::invalid_argument,
                   "the simulated device does not accept {name} = {value}. Accepted: {accepts}.")
        .with("name", name)
        .with("value", value)
        .with("accepts", accepts);
  };
  if (options.policy > Policy::pct) {
    return wrong("policy", static_cast<std::uint64_t>(options.policy), "one of sim::Policy");
  }
  if (options.pct_depth < 2 || options.pct_depth > 5) {
    return wrong("pct_depth", options.pct_depth, "2 to 5");
  }
  if (options.reuse > Reuse::friendly) {
    return wrong("reuse", static_cast<std::uint64_t>(options.reuse), "one of sim::Reuse");
  }
  if (options.mode > Mode::abort) {
    return wrong("mode", static_cast<std::uint64_t>(options.mode), "one of sim::Mode");
  }
  if (options.memory_bytes &&
      (*options.memory_bytes < min_memory_bytes || *options.memory_bytes > max_memory_bytes)) {
    return wrong("memory_bytes", *options.memory_bytes, "2 MiB to 16 TiB");
  }
  if (const Result<FaultPlan> plan = FaultPlan::try_parse(options.faults, options.seed); !plan) {
    return plan.failure();
  }
  return {};
}

Result<Options> try_read_options(const DeviceSpec& spec, const Config& config) {
  Options options;
  struct Variable {
    const char* name;
    std::string_view key, value;
  };
  for (const Variable& variable : {Variable{"TERN_SIM_SEED", "seed", config.sim_seed},
                                   {"TERN_SIM_SCHEDULE", "schedule", config.sim_schedule},
                                   {"TERN_SIM_REUSE", "reuse", config.sim_reuse},
                                   {"TERN_SIM_MODE", "mode", config.sim_mode},
                                   {"TERN_SIM_REPORT", "report", config.sim_report},
                                   {"TERN_SIM_PROFILE", "profile", config.sim_profile},
                                   {"TERN_SIM_FAULTS", "faults", config.sim_faults},
                                   {"TERN_SIM_TRACE", "trace", config.sim_trace}}) {
    if (variable.value.empty()) continue;
    if (Result<void> set = try_set_option(options, variable.key, variable.value); !set) {
      return Failure(set.failure().code(), "{variable} has an invalid value: {why}")
          .with("name", variable.key)
          .with("variable", variable.name)
          .with("why", set.failure().text());
    }
  }
  for (const auto& [key, value] : spec.options) {
    if (Result<void> set = try_set_option(options, key, value); !set) {
      return Failure(ErrorCode::invalid_device, "'{spec}' cannot be opened: {why}")
          .with("why", set.failure().text())
          .with("spec", spec.text());
    }
  }
  return options;
}

Result<Options> try_read_options(const DeviceSpec& spec) {
  const Result<const Config*> config = try_config();
  if (!config) return config.failure();
  return try_read_options(spec, **config);
}

std::string canonical_text(const Options& options) {
  const auto flag = [](std::optional<bool> value) { return !value ? "-" : *value ? "on" : "off"; };
  // Paths come last, after their lengths, because a path may contain anything.
  return fmt::format(
      "{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}\n{}\n{}", options.profile.size(),
      options.trace.size(), options.seed, static_cast<unsigned>(options.policy),
      // The depth matters only for pct, and for mix, which may select pct.
      options.policy == Policy::pct || options.policy == Policy::mix ? options.pct_depth : 0,
      static_cast<unsigned>(options.reuse), static_cast<unsigned>(options.mode),
      options.print_findings ? 0 : 1, options.memory_bytes ? 1 : 0,
      options.memory_bytes.value_or(0), flag(options.keeps_contents), flag(options.check),
      flag(options.concurrent_managed), flag(options.float64), flag(options.strict_kernels),
      flag(options.per_thread_host), options.implicit_sync ? 1 : 0, options.faults, options.profile,
      options.trace);
}

}  // namespace tern::sim
