// Order between two streams, whatever their backends.

#pragma once

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/device/device.hpp"
#include "tern/device/mark.hpp"
#include "tern/device/stream.hpp"

namespace tern {

/// Later work of the stream begins after the mark. No stream can wait for a device of another
/// backend: the host does.
[[nodiscard]] inline Result<void> order_behind(StreamRef stream, Mark mark,
                                               CallSite site) noexcept {
  Result<void> queued = stream.try_wait(mark, site);
  if (queued || queued.failure().code() != ErrorCode::device_mismatch) return queued;
  return Device::try_wait(mark);
}

}  // namespace tern
