// Waits for a copy that uses the caller's host memory.
//
// A blocking call must not return while a stream may still touch the caller's memory, even if a
// wait fails. A failed wait does not mean that the copy is over. So the stream is queried in every
// possible way until one query confirms completion or the device is lost.

#pragma once

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/device/mark.hpp"
#include "tern/device/stream.hpp"

namespace tern {

/// Returns when all work of the stream up to the mark is over. Fails with device_lost, and with
/// violation if a simulated device reports a mistake. Other failures are retried.
[[nodiscard]] Result<void> try_wait_surely(StreamRef stream, Mark mark,
                                           CallSite site = CallSite::here()) noexcept;

}  // namespace tern
