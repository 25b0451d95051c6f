// The catalog lists the available backends and opens devices by name.
//
//   Device gpu = open_device("cuda:0");
//   Device any = open_best_device();
//
// Opening the same spec twice returns the same device, from any thread. A device opened by the
// catalog stays open until the process ends. A forked child cannot use the devices of its parent
// and opens its own.
//
// A missing backend is not an error by itself. list_backends() reports the reason, and opening a
// device of it fails with InvalidDevice and the same reason. The catalog never substitutes
// another device. Thread-safe.
//
// A spec is a text that names a device: "cuda:1", "sim:0?seed=7", "host".
//
//   spec    = backend [":" index] ["?" key "=" value {"&" key "=" value}]
//           | "disk:" path
//
// Names and keys are not case-sensitive. A missing index is 0. `gpu` is another name for `cuda`.
// Device::spec() returns the canonical form, which opens the same device again.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/device/device.hpp"

namespace tern {

/// What the catalog knows about one backend on this machine.
struct BackendListing {
  /// Specs of its devices begin with this name.
  std::string name;
  /// Whether the backend can open devices on this machine.
  bool is_available = false;
  /// The reason why the backend is not available, as one sentence. Empty if the backend is
  /// available.
  std::string reason;
  /// The specs of the backend's devices on this machine.
  std::vector<std::string> devices;
  /// For each device that was found but that Tern cannot use: the reason, as a sentence without the
  /// final period.
  std::vector<std::string> unusable_devices;
  /// The options that specs of this backend accept, as "key=values".
  std::vector<std::string> options;
};

/// Lists every backend that Tern knows, available or not, in the order in which open_best_device()
/// prefers them. May load drivers.
[[nodiscard]] TERN_EXPORT std::vector<BackendListing> list_backends();

/// Opens the device with this spec, or returns it if it is already open. Fails with invalid_device
/// if the spec is malformed, or names an unknown backend, an unavailable backend or a device that
/// does not exist. Fails with out_of_memory, and with failures of the driver. Loads the driver on
/// first use.
[[nodiscard]] TERN_EXPORT Result<Device> try_open_device(std::string_view spec);
[[nodiscard]] inline Device open_device(std::string_view spec, CallSite site = CallSite::here()) {
  return try_open_device(spec).value(site);
}

/// Opens the device that TERN_DEVICE names, if set. Otherwise opens the first device of the first
/// available backend. An OpenCL device that is only the host's processor is skipped; open such a
/// device by its spec. Fails like try_open_device(), and with invalid_argument if a TERN_* variable
/// has an invalid value.
[[nodiscard]] TERN_EXPORT Result<Device> try_open_best_device();
[[nodiscard]] inline Device open_best_device(CallSite site = CallSite::here()) {
  return try_open_best_device().value(site);
}

}  // namespace tern
