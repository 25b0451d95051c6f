// How the memory of a buffer or an array is made: its kind, its contents at first, its resource.
//
//   Buffer buffer(device, Shape{count}, DType::f32, {.contents = Contents::zero, .tag = "rho"});
//
// StorageKind is the kind of memory behind a buffer, and Reach says who may use it in place. All
// types here are plain values.

#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "tern/core/call_site.hpp"
#include "tern/core/tag.hpp"
#include "tern/device/device_info.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/resource.hpp"

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

/// Identifies a storage for the life of the process. Ids start at 1, are never reused, and increase
/// in the order in which one thread makes storages.
struct StorageId {
  std::uint64_t value = 0;

  [[nodiscard]] explicit constexpr operator bool() const noexcept { return value != 0; }
  friend constexpr bool operator==(const StorageId&, const StorageId&) noexcept = default;
  friend constexpr auto operator<=>(const StorageId&, const StorageId&) noexcept = default;
};

/// Bytes [begin, end) of a storage.
struct ByteRange {
  std::size_t begin = 0, end = 0;

  friend constexpr bool operator==(const ByteRange&, const ByteRange&) noexcept = default;
};

/// The initial contents of memory.
enum class Contents : std::uint8_t {
  uninitialized,  // no values; a read before the first write fails with never_written
  unspecified,    // no values; reads are allowed and return arbitrary bytes
  zero,           // all bytes 0; counts as written
  poison,         // all bytes 0xDD, for debugging; does not count as written
};

/// Options for making buffers and arrays.
struct StorageOptions {
  /// The resource to allocate from. Null means the device's default resource for `kind`.
  ResourceHandle resource = {};
  /// The kind of memory if `resource` is null: device, pinned or managed.
  MemoryKind kind = MemoryKind::device;
  Contents contents = Contents::uninitialized;
  /// Alignment, a power of two up to 256 MiB. 0 means the alignment of the resource.
  std::size_t alignment = 0;
  /// The stream that is expected to use the memory first; the memory is allocated in its order. If
  /// another stream uses the memory first, that stream takes its place. No stream means the stream
  /// of the first use.
  StreamRef stream = {};
  Tag tag = {};
  /// Check host accesses: conflicting accesses fail with access_conflict. If unset: as TERN_CHECKED
  /// says.
  std::optional<bool> checked = {};
  /// A reservation (Budget::reserve) from which the memory of an Array is charged. The array's
  /// resource must be a BudgetResource or wrap one. Buffers reject a reservation with
  /// invalid_argument, because they allocate later, when the reservation may no longer exist.
  Reservation* reservation = nullptr;
  CallSite site = CallSite::here();
};

}  // namespace tern

template <>
struct std::hash<tern::StorageId> {
  std::size_t operator()(tern::StorageId id) const noexcept {
    return std::hash<std::uint64_t>{}(id.value);
  }
};
