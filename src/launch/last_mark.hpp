// The mark that stands for everything a stream was given, also when it has ended since.

#pragma once

#include "device/device_state.hpp"
#include "tern/device/mark.hpp"
#include "tern/device/stream.hpp"

namespace tern {

/// Somebody will ask for last_mark(): the stream does not end without an answer.
inline void promise_last_mark(StreamRef stream) noexcept { static_cast<void>(stream.next_mark()); }

[[nodiscard]] inline Mark last_mark(StreamRef stream) noexcept {
  if (const Mark next = stream.next_mark()) return next;
  const DeviceScope device(stream.device_id());
  return device ? device->next_mark(stream.id()) : Mark{};
}

}  // namespace tern
