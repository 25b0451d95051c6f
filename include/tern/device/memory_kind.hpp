// MemoryKind names the kind of memory at an address, which decides who may access it.

#pragma once

#include <cstdint>
#include <string_view>

namespace tern {

/// - `host`: host memory that the device does not know.
/// - `pinned`: page-locked host memory that the device allocated.
/// - `registered`: existing host memory that was page-locked afterwards.
/// - `device`: memory of the device.
/// - `managed`: memory that host and device share through one address.
/// - `mapped`: pages mapped into a reserved address range.
///
/// A Device allocates `device`, `pinned` and `managed`. Device::try_pointer_info() returns any
/// kind.
enum class MemoryKind : std::uint8_t { host, pinned, registered, device, managed, mapped };

/// Returns the enumerator as text.
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
