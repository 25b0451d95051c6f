// Orders one stream after another, also across backends.

#pragma once

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/device/device.hpp"
#include "tern/device/mark.hpp"
#include "tern/device/stream.hpp"

namespace tern {

/// Makes later work of the stream wait for the mark. No stream can wait for a mark of another
/// backend, so in that case the host waits.
[[nodiscard]] inline Result<void> order_behind(StreamRef stream, Mark mark,
                                               CallSite site) noexcept {
  Result<void> queued = stream.try_wait(mark, site);
  if (queued || queued.failure().code() != ErrorCode::device_mismatch) return queued;
  return Device::try_wait(mark);
}

}  // namespace tern
