// A BufferState is where the newest bytes of a unified buffer are, as one word.
//
// It follows from two facts of each place: does it take part (has it a copy), and is the copy up to
// date. Six words are not enough for parts that differ, and for a host and only some devices that
// are up to date: those are mixed, and valid_places() and for_each_interval() have the whole truth.

#pragma once

#include <cstdint>
#include <string_view>

namespace tern {

enum class BufferState : std::uint8_t {
  uninitialized,  // nobody wrote it
  host_only,      // the host has it, and no device takes part
  device_only,    // a device has it, and the host does not take part
  synchronized,   // all that take part have it
  host_dirty,     // the host has it, the devices are stale
  device_dirty,   // a device has it, the host is stale
  mixed,
};

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
