// What kind of memory an address is, and so who may touch it.

#pragma once

#include <cstdint>
#include <string_view>

namespace tern {

/// `device`, `pinned` and `managed` can be allocated through a Device. The others are answers to
/// "what is this pointer": mapped address ranges, registered host memory, and host memory that the
/// device knows nothing of.
enum class MemoryKind : std::uint8_t { host, pinned, registered, device, managed, mapped };

[[nodiscard]] constexpr std::string_view name(MemoryKind kind) noexcept {
  switch (kind) {
    case MemoryKind::host:
      return "host";
    case MemoryKind::pinned:
      return "pinned";
    case MemoryKind::registered:
      return "registered";
    case MemoryKind::device:
      return "device";
    case MemoryKind::managed:
      return "managed";
    case MemoryKind::mapped:
      return "mapped";
  }
  return "unknown";
}

}  // namespace tern
