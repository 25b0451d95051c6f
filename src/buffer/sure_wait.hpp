// The wait behind a copy whose host memory belongs to the caller.
//
// A blocking call must not return while a stream may still touch the caller's memory, also when a
// wait fails. A failed wait says nothing about the copy: it may be under way. So the stream is
// asked in every way there is until one of the answers is yes, or the device is lost and does
// nothing any more.

#pragma once

#include "tern/core/result.hpp"
#include "tern/device/mark.hpp"
#include "tern/device/stream.hpp"

namespace tern {

/// On return all that the stream had up to the mark is over. Fails with device_lost, and with
/// violation where a simulated device reports a mistake; other failures of a wait are retried.
[[nodiscard]] Result<void> try_wait_surely(StreamRef stream, Mark mark) noexcept;

}  // namespace tern
