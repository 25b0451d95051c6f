// The kinds of memory, and the one table that says who may use each kind in place.
//
// Every accessor calls reach_of() to decide whether an access is allowed, and uses nothing else.
// Pinned memory is also mapped: kernels use it by the same address. Memory that other code
// allocated has one of these kinds too; Storage::is_external() tells who owns it.

#pragma once

#include <cstdint>
#include <string_view>

#include "tern/device/capabilities.hpp"
#include "tern/device/memory_kind.hpp"

namespace tern {

/// The kind of a storage's memory.
enum class StorageKind : std::uint8_t {
  host,        // ordinary pageable memory
  pinned,      // page-locked when it was allocated
  registered,  // existing memory, page-locked later
  file,        // the bytes of a file, read-only
  device,      // memory of a device
  managed,     // one address for host and device; the driver moves pages
  mapped,      // pages mapped to an address range of the device
};

/// Returns the name of the enumerator.
[[nodiscard]] constexpr std::string_view name(StorageKind kind) noexcept {
  switch (kind) {
    case StorageKind::host:
      return "host";
    case StorageKind::pinned:
      return "pinned";
    case StorageKind::registered:
      return "registered";
    case StorageKind::file:
      return "file";
    case StorageKind::device:
      return "device";
    case StorageKind::managed:
      return "managed";
    case StorageKind::mapped:
      return "mapped";
  }
  return "unknown";
}

/// Who may read and write memory in place, without a copy.
struct Reach {
  bool host_reads = false;
  bool host_writes = false;
  bool kernels_read = false;
  bool kernels_write = false;

  friend constexpr bool operator==(const Reach&, const Reach&) noexcept = default;
};

/// Returns who may use memory of this kind, on a device with these capabilities.
[[nodiscard]] constexpr Reach reach_of(StorageKind kind, Capabilities device) noexcept {
  switch (kind) {
    case StorageKind::host: {
      // Kernels can use pageable host memory only if they run on the host device.
      const bool kernels = device.has(Capability::host_access);
      return {true, true, kernels, kernels};
    }
    case StorageKind::pinned:
    case StorageKind::registered:
    case StorageKind::managed:
      return {true, true, true, true};
    case StorageKind::file:
      return {true, false, false, false};
    case StorageKind::device:
    case StorageKind::mapped: {
      const bool host = device.has(Capability::host_access);
      return {host, host, true, true};
    }
  }
  return {};
}

/// Returns the storage kind for a device's memory kind. `is_host` is DeviceInfo::is_host.
[[nodiscard]] constexpr StorageKind storage_kind_of(MemoryKind kind, bool is_host) noexcept {
  switch (kind) {
    case MemoryKind::host:
      return StorageKind::host;
    case MemoryKind::pinned:
      return StorageKind::pinned;
    case MemoryKind::registered:
      return StorageKind::registered;
    case MemoryKind::device:
      return is_host ? StorageKind::host : StorageKind::device;
    case MemoryKind::managed:
      return StorageKind::managed;
    case MemoryKind::mapped:
      return is_host ? StorageKind::host : StorageKind::mapped;
  }
  return StorageKind::device;
}

}  // namespace tern
