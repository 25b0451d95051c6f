// What kind of memory a storage is, and the one table that says who may touch it.
//
// Every accessor asks reach_of(), and nothing else, whether it may. Pinned memory is mapped too:
// kernels use it by the same address. Memory that somebody else allocated is of one of these kinds
// as well; whose it is, is another question (Storage::is_external).

#pragma once

#include <cstdint>
#include <string_view>

#include "tern/device/capabilities.hpp"
#include "tern/device/memory_kind.hpp"

namespace tern {

enum class StorageKind : std::uint8_t {
  host,        // ordinary, pageable
  pinned,      // page-locked by allocation
  registered,  // page-locked where it was
  file,        // the bytes of a file, never written
  device,      // a device's own
  managed,     // one pointer for host and device
  mapped,      // pages behind an address range of the device
};

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

/// Who may do what with memory in place, without a copy.
struct Reach {
  bool host_reads = false;
  bool host_writes = false;
  bool kernels_read = false;
  bool kernels_write = false;

  friend constexpr bool operator==(const Reach&, const Reach&) noexcept = default;
};

[[nodiscard]] constexpr Reach reach_of(StorageKind kind, Capabilities device) noexcept {
  switch (kind) {
    case StorageKind::host: {
      // Kernels run on the host device only.
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

/// The kind of what a device calls `kind`; `is_host` is DeviceInfo::is_host.
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
