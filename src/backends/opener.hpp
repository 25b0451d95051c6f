// What the catalog asks of each backend: is it there, which devices, open one.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backends/device_spec.hpp"
#include "tern/core/result.hpp"
#include "tern/device/backend.hpp"

namespace tern {

struct Opener {
  const char* name;
  /// Empty if the backend works here, else the sentence that says why not. May load a driver, which
  /// the options of the spec may choose.
  std::string (*absence)(const DeviceSpec& spec);
  std::uint32_t (*device_count)(const DeviceSpec& spec);
  std::vector<std::string> options;
  /// The index is in range; options are the backend's to check.
  Result<std::unique_ptr<Backend>> (*open)(const DeviceSpec& spec);
  /// Devices that were found and cannot be used, with what they lack. Null: there are none.
  std::vector<std::string> (*passed_over)() = nullptr;
  /// May open_best_device() choose this one? Null: any of them.
  bool (*is_preferred)(std::uint32_t index) = nullptr;
};

}  // namespace tern
