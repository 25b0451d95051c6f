// What a device was asked to do, as numbers: counted always, for one addition per call.

#pragma once

#include <cstdint>

namespace tern {

/// Calls that succeeded, of all streams of the device since it was opened. A plain value.
struct DeviceActivity {
  /// Events recorded, the library's own for marks included.
  std::uint64_t events = 0;
  /// Waits queued on a stream for another stream.
  std::uint64_t stream_waits = 0;
  /// Waits of host threads: for a mark, an event, a stream, or the whole device.
  std::uint64_t host_waits = 0;
  std::uint64_t launches = 0;

  friend bool operator==(const DeviceActivity&, const DeviceActivity&) noexcept = default;
};

}  // namespace tern
