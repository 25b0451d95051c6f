#include "backends/sim/sim_opener.hpp"

#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "backends/sim/sim_backend.hpp"
#include "backends/sim/sim_options.hpp"
#include "core/process.hpp"

namespace tern::sim {
namespace {

/// The number of devices that the catalog lists. A simulation adds its devices in the order in
/// which they are opened.
constexpr std::uint32_t offered_devices = 2;

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

Result<std::unique_ptr<Backend>> open(const DeviceSpec& spec) {
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
  return open_backend(world, spec.text());
}

}  // namespace

Opener opener() {
  return {"sim",
          [](const DeviceSpec&) { return std::string(); },
          [](const DeviceSpec&) { return offered_devices; },
          {"seed=N", "schedule=mix|lazy|eager|random|skewed|stall-one|pct:2..5",
           "reuse=hostile|friendly", "mode=throw|collect|abort", "profile=h200|small|PATH",
           "memory=SIZE", "check=on|off", "concurrent=on|off", "strict_kernels=on|off",
           "per_thread_host=on|off", "implicit_sync=none|documented", "faults=PLAN", "trace=PATH"},
          open};
}

}  // namespace tern::sim
