// A BufferState summarizes in one word which copies of a unified buffer are up to date.
//
// The word follows from two facts about each place: whether the place has a copy, and whether that
// copy is up to date. `mixed` covers all cases that the other words cannot express: parts of the
// buffer have different states, or the host and only some of the devices are up to date.
// valid_places() and for_each_interval() return the full details.

#pragma once

#include <cstdint>
#include <string_view>

namespace tern {

enum class BufferState : std::uint8_t {
  uninitialized,  // never written
  host_only,      // the host is up to date; no device has a copy
  device_only,    // a device is up to date; the host has no copy
  synchronized,   // every copy is up to date
  host_dirty,     // the host is up to date; all device copies are stale
  device_dirty,   // a device is up to date; the host copy is stale
  mixed,
};

/// Returns the state in capital letters, such as "HOST_ONLY".
[[nodiscard]] constexpr std::string_view name(BufferState state) noexcept {
  switch (state) {
    case BufferState::uninitialized:
      return "UNINITIALIZED";
    case BufferState::host_only:
      return "HOST_ONLY";
    case BufferState::device_only:
      return "DEVICE_ONLY";
    case BufferState::synchronized:
      return "SYNCHRONIZED";
    case BufferState::host_dirty:
      return "HOST_DIRTY";
    case BufferState::device_dirty:
      return "DEVICE_DIRTY";
    case BufferState::mixed:
      return "MIXED";
  }
  return "unknown";
}

}  // namespace tern
