// Finds and opens OpenCL devices for the catalog.
//
// The first caller loads the library and lists the devices. If there is no library, the next caller
// tries again. In a forked child of a process that has started to load OpenCL, the backend is
// absent: the driver's threads do not exist in the child, and a lock of the driver may be held for
// ever. Thread-safe.

#pragma once

#include <string>

#include "backends/opencl/opencl_devices.hpp"
#include "backends/opencl/opencl_table.hpp"
#include "backends/opener.hpp"

namespace tern::opencl {

/// The devices of this machine. Never destroyed.
struct Found {
  Table table;
  DeviceList devices;
};

[[nodiscard]] Opener opener();

/// Returns the sentence for a reason of find_devices() or load_library().
[[nodiscard]] std::string absence_sentence(const std::string& why);

/// Loads OpenCL if it is not loaded yet. Returns null in a forked child of a process that loaded
/// it. If there are no devices, the result has the reason.
[[nodiscard]] const Found* find_opencl();

}  // namespace tern::opencl
