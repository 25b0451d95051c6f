// Opens devices by spec. A new backend is a folder src/backends/<name> whose Opener is listed in
// openers(). It implements Backend (tern/detail/device/backend.hpp).

#include "tern/backends/catalog.hpp"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "backends/cuda/cuda_opener.hpp"
#include "backends/host/host_opener.hpp"
#include "backends/opencl/opencl_opener.hpp"
#include "backends/opener.hpp"
#include "backends/sim/sim_opener.hpp"
#include "core/no_host_memory.hpp"
#include "core/process.hpp"
#include "tern/detail/core/config.hpp"

namespace tern {
namespace {

/// In the order open_best_device() prefers them.
const std::vector<Opener>& openers() {
  static const std::vector<Opener>& all = *new std::vector<Opener>{
      cuda::opener(),
      opencl::opener(),
      sim::opener(),
      host::opener(),
  };
  return all;
}

/// Devices by canonical spec and by the process that opened them: a forked child cannot use the
/// devices of its parent and opens its own. Never destroyed, so that no driver is called after
/// main.
struct OpenedDevices {
  using Key = std::pair<std::uint64_t, std::string>;
  std::mutex mutex;
  std::map<Key, Device> by_key;  // guarded by mutex
};

std::atomic<OpenedDevices*> current = nullptr;

OpenedDevices& opened_devices() {
  // A forked child starts with an empty catalog: it cannot use the devices of its parent, and a
  // thread of the parent may have held the lock. Holding the lock across the fork is no
  // alternative, because it would have to be acquired before all locks that opening a device takes.
  static const int registered = [] {
    current.store(new OpenedDevices);
    return pthread_atfork(nullptr, nullptr, [] { current.store(new OpenedDevices); });
  }();
  static_cast<void>(registered);
  return *current.load();
}

/// The spec is the last field, because a long spec is cut to the space that is left.
Failure refuse(std::string_view spec, const std::string& why) {
  return Failure(ErrorCode::invalid_device, "'{spec}' cannot be opened: {why}")
      .with("why", why)
      .with("spec", spec);
}

/// Returns the simulated device that TERN_REHEARSE names, or nothing if it is not set.
Result<std::optional<DeviceSpec>> try_rehearsal() {
  // The configuration is read once. A program may list backends before it sets other variables.
  if (std::getenv("TERN_REHEARSE") == nullptr) return std::optional<DeviceSpec>();
  const Result<const Config*> config = try_config();
  if (!config) return config.failure();
  const std::string& text = (*config)->rehearse;
  if (text.empty()) return std::optional<DeviceSpec>();
  const Result<DeviceSpec> spec = try_parse_device_spec(text);
  if (!spec || spec->backend != "sim" || spec->index != 0) {
    return Failure(ErrorCode::invalid_argument,
                   "TERN_REHEARSE='{value}' is not accepted. Set it to a simulated device, such as "
                   "sim?memory=80GiB&backing=none, or unset it.")
        .with("name", "TERN_REHEARSE")
        .with("value", text);
  }
  return std::optional<DeviceSpec>(*spec);
}

/// Memory of the host is what it is, so the host is not rehearsed.
bool is_rehearsed(std::string_view backend) {
  return backend == "cuda" || backend == "opencl" || backend == "sim";
}

/// Returns the simulated device that stands for the one in `spec`. A simulated device keeps those
/// of its options that the rehearsal does not set.
DeviceSpec rehearsed(const DeviceSpec& spec, DeviceSpec rehearsal) {
  rehearsal.index = spec.index;
  if (spec.backend != "sim") return rehearsal;
  for (const auto& option : spec.options) {
    const auto at = std::ranges::lower_bound(rehearsal.options, option.first, {},
                                             &std::pair<std::string, std::string>::first);
    if (at != rehearsal.options.end() && at->first == option.first) continue;
    rehearsal.options.insert(at, option);
  }
  return rehearsal;
}

Result<Device> open_parsed(const DeviceSpec& spec) {
  const std::string text = spec.text();
  if (spec.backend == "disk") {
    return refuse(text,
                  "the spec names a file, and a file is a buffer, not a device. Use open_disk().");
  }
  const auto found = std::ranges::find(openers(), spec.backend, &Opener::name);
  if (found == openers().end()) {
    std::string names;
    for (const Opener& opener : openers()) {
      names += fmt::format("{}{}", names.empty() ? "" : ", ", opener.name);
    }
    return refuse(
        text, fmt::format("there is no backend '{}'. The backends are {}.", spec.backend, names));
  }
  const Result<std::optional<DeviceSpec>> rehearsal =
      is_rehearsed(spec.backend) ? try_rehearsal() : std::optional<DeviceSpec>();
  if (!rehearsal) return rehearsal.failure();
  const bool is_simulated = rehearsal->has_value();
  const DeviceSpec actual = is_simulated ? rehearsed(spec, **rehearsal) : spec;
  const Opener& opener = *std::ranges::find(openers(), actual.backend, &Opener::name);
  if (const std::string absence = opener.absence(actual); !absence.empty()) {
    // The backend's sentence already names the device.
    return Failure(ErrorCode::invalid_device, "{why}").with("why", absence).with("spec", text);
  }
  if (const std::uint32_t count = opener.device_count(actual); spec.index >= count) {
    if (is_simulated) {
      return refuse(text, fmt::format("the rehearsal has devices 0..{}. Rehearse with more: `tern "
                                      "rehearse --devices {}`, or devices={} in TERN_REHEARSE.",
                                      count - 1, spec.index + 1, spec.index + 1));
    }
    return refuse(
        text, count == 0 ? fmt::format("backend '{}' has no device.", spec.backend)
                         : fmt::format("backend '{}' has devices 0..{}.", spec.backend, count - 1));
  }

  OpenedDevices& opened = opened_devices();
  // The lock is held while opening, because two threads that open one spec must get one device.
  // Opening is rare, and a backend does not call the catalog while it opens a device.
  const std::lock_guard lock(opened.mutex);
  OpenedDevices::Key key(process_generation(), text);
  if (const auto known = opened.by_key.find(key); known != opened.by_key.end()) {
    return known->second;
  }
  // The device keeps the name that the program uses.
  Result<std::unique_ptr<Backend>> backend =
      is_simulated ? sim::open_as(actual, text) : opener.open(spec);
  if (!backend) return backend.failure();
  return opened.by_key.emplace(std::move(key), Device(*std::move(backend))).first->second;
}

}  // namespace

std::vector<BackendListing> list_backends() {
  std::vector<BackendListing> listings;
  const Result<std::optional<DeviceSpec>> rehearsal = try_rehearsal();
  for (const Opener& each : openers()) {
    BackendListing listing;
    listing.name = each.name;
    // A program that looks for a GPU finds one. It finds OpenCL devices only where there are some.
    const bool is_simulated =
        rehearsal && *rehearsal && (listing.name == "cuda" || listing.name == "sim");
    const DeviceSpec spec = is_simulated ? **rehearsal : DeviceSpec{each.name, 0, {}, {}};
    const Opener& opener = *std::ranges::find(openers(), spec.backend, &Opener::name);
    listing.reason = opener.absence(spec);
    listing.is_available = listing.reason.empty();
    listing.options = each.options;
    if (listing.is_available && opener.unusable_devices != nullptr) {
      listing.unusable_devices = opener.unusable_devices();
    }
    const std::uint32_t count = listing.is_available ? opener.device_count(spec) : 0;
    for (std::uint32_t index = 0; index < count; ++index) {
      listing.devices.push_back(DeviceSpec{each.name, index, {}, {}}.text());
    }
    listings.push_back(std::move(listing));
  }
  return listings;
}

Result<Device> try_open_device(std::string_view text) try {
  const Result<DeviceSpec> spec = try_parse_device_spec(text);
  if (!spec) return spec.failure();
  return open_parsed(*spec);
} catch (const OutOfMemory& error) {
  return error.failure();
} catch (const std::bad_alloc&) {
  return no_host_memory("the device catalog");
}

Result<Device> try_open_best_device() try {
  const Result<const Config*> config = try_config();
  if (!config) return config.failure();
  if (!(*config)->device.empty()) return try_open_device((*config)->device);
  if (!(*config)->rehearse.empty()) return try_open_device("cuda:0");
  for (const Opener& opener : openers()) {
    const DeviceSpec first{opener.name, 0, {}, {}};
    if (!opener.absence(first).empty()) continue;
    const std::uint32_t count = opener.device_count(first);
    for (std::uint32_t index = 0; index < count; ++index) {
      if (opener.is_preferred != nullptr && !opener.is_preferred(index)) continue;
      return open_parsed(DeviceSpec{opener.name, index, {}, {}});
    }
  }
  return Failure(ErrorCode::invalid_device,
                 "no backend of this machine has a device. Run `tern info` for the reasons.")
      .with("spec", "");
} catch (const OutOfMemory& error) {
  return error.failure();
} catch (const std::bad_alloc&) {
  return no_host_memory("the device catalog");
}

}  // namespace tern
