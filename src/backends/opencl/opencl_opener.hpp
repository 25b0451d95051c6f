// How the catalog finds and opens OpenCL devices.
//
// The library is loaded, and the devices are listed, once and by whoever asks first; where there is
// none to load, whoever asks next looks again. A forked child
// of a process that had begun with that finds the backend absent: the threads of the driver are not
// there, and a lock of its may be held for ever. Thread-safe.

#pragma once

#include "backends/opencl/opencl_devices.hpp"
#include "backends/opencl/opencl_table.hpp"
#include "backends/opener.hpp"

namespace tern::opencl {

/// What was found on this machine; lives for ever.
struct Found {
  Table table;
  DeviceList devices;
};

[[nodiscard]] Opener opener();

/// The sentence for a reason that find_devices() or load_library() gave.
[[nodiscard]] std::string absence_sentence(const std::string& why);

/// Loads OpenCL if nobody has yet; null in a forked child of a process that did. Without devices it
/// says why.
[[nodiscard]] const Found* find_opencl();

}  // namespace tern::opencl
