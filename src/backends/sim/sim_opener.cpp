#include "backends/sim/sim_opener.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "backends/sim/sim_backend.hpp"
#include "backends/sim/sim_options.hpp"
#include "core/process.hpp"

namespace tern::sim {
namespace {

/// The number of devices that the catalog lists, unless the option `devices` sets another one. A
/// simulation adds its devices in the order in which they are opened.
constexpr std::uint32_t offered_devices = 2, max_devices = 64;

/// Simulations by process and by canonical options: a forked child shares no simulation with its
/// parent. Never destroyed, like the devices of the catalog.
struct Worlds {
  using Key = std::pair<std::uint64_t, std::string>;
  std::mutex mutex;
  std::map<Key, std::shared_ptr<World>> by_key;  // guarded by mutex
};

Worlds& worlds() {
  static Worlds& instance = *new Worlds;
  return instance;
}

/// These simulations are never destroyed, but what they watch must be judged at exit, and their
/// traces closed.
void end_all_at_exit() {
  static const int registered = std::atexit([] {
    const std::unique_lock lock(worlds().mutex, std::try_to_lock);
    if (!lock.owns_lock()) return;
    for (const auto& [key, world] : worlds().by_key) {
      if (!world) continue;
      const bool is_own = key.first == process_generation();
      world->end_at_exit(is_own ? World::HostMemory::compare : World::HostMemory::ignore);
    }
  });
  static_cast<void>(registered);
}

/// Returns nothing if the option `devices` is invalid.
std::optional<std::uint32_t> devices_of(const DeviceSpec& spec) {
  const auto set =
      std::ranges::find(spec.options, "devices", &std::pair<std::string, std::string>::first);
  if (set == spec.options.end()) return offered_devices;
  const char* const end = set->second.data() + set->second.size();
  std::uint32_t count = 0;
  const auto [stopped, error] = std::from_chars(set->second.data(), end, count);
  const bool is_valid =
      error == std::errc{} && stopped == end && count >= 1 && count <= max_devices;
  return is_valid ? std::optional(count) : std::nullopt;
}

Result<std::unique_ptr<Backend>> open(const DeviceSpec& spec) { return open_as(spec, spec.text()); }

}  // namespace

Result<std::unique_ptr<Backend>> open_as(const DeviceSpec& given, const std::string& name) {
  if (!devices_of(given)) {
    return Failure(ErrorCode::invalid_device,
                   "'{spec}' cannot be opened: the simulated device does not accept "
                   "devices='{value}'. Accepted: 1 to 64.")
        .with("value", given.option("devices"))
        .with("spec", given.text());
  }
  // The number of devices belongs to the catalog. It does not make another simulation.
  DeviceSpec spec = given;
  std::erase_if(spec.options, [](const auto& option) { return option.first == "devices"; });
  const Result<Options> options = try_read_options(spec);
  if (!options) return options.failure();
  const Result<Profile> profile = try_load_profile(options->profile);
  if (!profile) return profile.failure();
  const std::lock_guard lock(worlds().mutex);
  std::shared_ptr<World>& world = worlds().by_key[{process_generation(), canonical_text(*options)}];
  if (!world) {
    auto made = std::make_shared<World>(*options, *profile, "sim");
    if (Result<void> opened = made->open_trace(); !opened) return opened.failure();
    world = std::move(made);
    end_all_at_exit();
  }
  return open_backend(world, name);
}

Opener opener() {
  return {"sim",
          [](const DeviceSpec&) { return std::string(); },
          [](const DeviceSpec& spec) { return devices_of(spec).value_or(spec.index + 1); },
          {"seed=N", "schedule=mix|lazy|eager|random|skewed|stall-one|pct:2..5",
           "reuse=hostile|friendly", "mode=throw|collect|abort", "profile=h200|small|PATH",
           "memory=SIZE", "devices=1..64", "backing=memory|none", "check=on|off",
           "concurrent=on|off", "strict_kernels=on|off", "per_thread_host=on|off",
           "implicit_sync=none|documented", "faults=PLAN", "trace=PATH"},
          open};
}

}  // namespace tern::sim
