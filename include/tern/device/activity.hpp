// DeviceActivity counts what a device was asked to do: events, waits and launches.
//
// Counting is always on and costs one atomic addition per call. Device::activity() returns the
// counts without a driver call.

#pragma once

#include <cstdint>

namespace tern {

/// Successful calls on all streams of a device since the device was opened. A plain value. Subtract
/// two values to see what a piece of code did.
struct DeviceActivity {
  /// Events recorded, including those that the library records for marks.
  std::uint64_t events = 0;
  /// Waits that one stream queued for another stream.
  std::uint64_t stream_waits = 0;
  /// Waits of host threads for a mark, an event, a stream or the whole device.
  std::uint64_t host_waits = 0;
  /// Kernels launched.
  std::uint64_t launches = 0;

  friend bool operator==(const DeviceActivity&, const DeviceActivity&) noexcept = default;
};

}  // namespace tern
