// The mark that covers all work of a stream, even if the stream has ended since.

#pragma once

#include "device/device_state.hpp"
#include "tern/device/mark.hpp"
#include "tern/device/stream.hpp"

namespace tern {

/// Announces that last_mark() will be called, so that the stream does not end without a mark.
inline void promise_last_mark(StreamRef stream) noexcept { static_cast<void>(stream.next_mark()); }

[[nodiscard]] inline Mark last_mark(StreamRef stream) noexcept {
  if (const Mark next = stream.next_mark()) return next;
  const DeviceScope device(stream.device_id());
  return device ? device->next_mark(stream.id()) : Mark{};
}

}  // namespace tern
