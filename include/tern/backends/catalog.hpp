// The catalog finds devices by name and opens them.
//
// Opening the same spec twice gives the same device, from any thread; a device stays open until the
// process ends, and a forked child opens its own. A backend that is absent is a fact with a
// sentence, not an error: only opening one of its devices fails, with InvalidDevice and that
// sentence. Memory asked for on a device is there or refused; nothing falls back to another device
// silently. Specs are described in device_spec.hpp. Thread-safe.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tern/backends/device_spec.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/export.hpp"
#include "tern/core/result.hpp"
#include "tern/device/device.hpp"

namespace tern {

struct BackendListing {
  std::string name;
  bool is_available = false;
  /// Why not, in one sentence; empty if it is available.
  std::string reason;
  /// Specs of its devices on this machine.
  std::vector<std::string> devices;
  /// What keeps Tern from using further devices that were found, a sentence without its point each.
  std::vector<std::string> passed_over;
  /// The options its specs take, as "key=values".
  std::vector<std::string> options;
};

/// Every backend Tern knows, available or not, in the order open_best_device() prefers them.
[[nodiscard]] TERN_EXPORT std::vector<BackendListing> list_backends();

[[nodiscard]] TERN_EXPORT Result<Device> try_open_device(std::string_view spec);
[[nodiscard]] inline Device open_device(std::string_view spec, CallSite site = CallSite::here()) {
  return try_open_device(spec).value(site);
}

/// TERN_DEVICE if that is set, else the first device of the first available backend. An OpenCL
/// device that is the host's processor under another name is passed over: it is opened by its spec.
[[nodiscard]] TERN_EXPORT Result<Device> try_open_best_device();
[[nodiscard]] inline Device open_best_device(CallSite site = CallSite::here()) {
  return try_open_best_device().value(site);
}

}  // namespace tern
