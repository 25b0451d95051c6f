// How the memory of a buffer or an array is made: its kind, its contents at first, its resource.
//
//   Buffer buffer(device, Shape{count}, DType::f32, {.contents = Contents::zero, .tag = "rho"});
//
// All types here are plain values.

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

/// Identifies a storage for the life of the process. Ids start at 1, are never reused, and increase
/// in the order in which one thread makes storages.
struct StorageId {
  /// The number; 0 for an id of no storage.
  std::uint64_t value = 0;

  [[nodiscard]] explicit constexpr operator bool() const noexcept { return value != 0; }
  friend constexpr bool operator==(const StorageId&, const StorageId&) noexcept = default;
  friend constexpr auto operator<=>(const StorageId&, const StorageId&) noexcept = default;
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
