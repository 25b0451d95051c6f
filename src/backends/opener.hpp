// The interface between the catalog and a backend: whether it is available, its devices, and how to
// open one.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backends/device_spec.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/device/backend.hpp"

namespace tern {

struct Opener {
  const char* name;
  /// Returns an empty string if the backend is available, else a sentence with the reason. May load
  /// a driver, which the options of the spec may select.
  std::string (*absence)(const DeviceSpec& spec);
  std::uint32_t (*device_count)(const DeviceSpec& spec);
  std::vector<std::string> options;
  /// The catalog has checked the index. The backend checks the options.
  Result<std::unique_ptr<Backend>> (*open)(const DeviceSpec& spec);
  /// Returns devices that were found but cannot be used, with the reasons. Null if there are never
  /// any.
  std::vector<std::string> (*unusable_devices)() = nullptr;
  /// Returns whether open_best_device() may choose the device. Null means always.
  bool (*is_preferred)(std::uint32_t index) = nullptr;
};

}  // namespace tern
