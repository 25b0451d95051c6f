// Opens devices by spec. A new backend is a folder src/backends/<name> whose Opener is listed in
// openers(). It implements Backend (tern/detail/device/backend.hpp).

#include "tern/backends/catalog.hpp"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <new>
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
  if (const std::string absence = found->absence(spec); !absence.empty()) {
    // The backend's sentence already names the device.
    return Failure(ErrorCode::invalid_device, "{why}").with("why", absence).with("spec", text);
  }
  if (const std::uint32_t count = found->device_count(spec); spec.index >= count) {
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
  Result<std::unique_ptr<Backend>> backend = found->open(spec);
  if (!backend) return backend.failure();
  return opened.by_key.emplace(std::move(key), Device(*std::move(backend))).first->second;
}

}  // namespace

std::vector<BackendListing> list_backends() {
  std::vector<BackendListing> listings;
  for (const Opener& opener : openers()) {
    BackendListing listing;
    listing.name = opener.name;
    const DeviceSpec spec{opener.name, 0, {}, {}};
    listing.reason = opener.absence(spec);
    listing.is_available = listing.reason.empty();
    listing.options = opener.options;
    if (listing.is_available && opener.unusable_devices != nullptr) {
      listing.unusable_devices = opener.unusable_devices();
    }
    const std::uint32_t count = listing.is_available ? opener.device_count(spec) : 0;
    for (std::uint32_t index = 0; index < count; ++index) {
      listing.devices.push_back(DeviceSpec{opener.name, index, {}, {}}.text());
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
