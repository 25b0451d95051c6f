#include "backends/sim/sim_options.hpp"

#include <charconv>
#include <limits>
#include <utility>

#include "backends/sim/fault_plan.hpp"
#include "core/text.hpp"
#include "tern/core/bytes.hpp"
#include "tern/core/config.hpp"

namespace tern::sim {
namespace {

constexpr std::size_t least_memory_bytes = 2 * mib;
constexpr std::size_t most_memory_bytes = std::size_t{1} << 44;

Failure refuse(std::string_view key, std::string_view value, const char* accepts) noexcept {
  return Failure(ErrorCode::invalid_argument,
                 "the simulated device does not take {name}='{value}': it takes {accepts}.")
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
  // "pct:3" says how deep.
  const std::size_t colon = text.find(':');
  Policy policy = options.policy;
  if (!choose(text.substr(0, colon), names, policy)) return false;
  // A plain "pct" means the usual depth, whatever the environment said before.
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

  if (key == "seed") {
    if (parse_seed(value, options.seed)) return {};
    return refuse(key, value, "a number such as 7 or 0x1c9f");
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
  if (key == "memory") {
    const Result<std::uint64_t> bytes = try_parse_bytes(value);
    if (bytes && *bytes >= least_memory_bytes && *bytes <= most_memory_bytes) {
      options.memory_bytes = static_cast<std::size_t>(*bytes);
      return {};
    }
    return refuse(key, value, "2MiB to 16TiB");
  }
  if (key == "check") {
    if (choose(value, switches, options.check)) return {};
    return refuse(key, value, "on or off");
  }
  if (key == "concurrent") {
    if (choose(value, switches, options.concurrent_managed)) return {};
    return refuse(key, value, "on or off");
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
  return refuse(key, value,
                "seed, schedule, reuse, mode, memory, check, concurrent, faults and trace as keys");
}

Result<Options> try_read_options(const DeviceSpec& spec) {
  const Result<const Config*> config = try_config();
  if (!config) return config.failure();
  Options options;
  const std::pair<std::string_view, std::string_view> environment[] = {
      {"seed", (*config)->sim_seed},     {"schedule", (*config)->sim_schedule},
      {"reuse", (*config)->sim_reuse},   {"mode", (*config)->sim_mode},
      {"faults", (*config)->sim_faults}, {"trace", (*config)->sim_trace}};
  for (const auto& [key, value] : environment) {
    if (value.empty()) continue;
    if (Result<void> set = try_set_option(options, key, value); !set) return set.failure();
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

}  // namespace tern::sim
