// What a unified buffer says about itself: the copies it made and why, and which of its copies are
// up to date. All types here are plain values.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tern/core/bytes.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/place.hpp"
#include "tern/detail/core/visibility.hpp"

namespace tern {

// A Transfer describes one copy that a unified buffer made on its own, and why.
//
// Every such copy is counted with its reason and the source line of the access that caused it: per
// buffer (UnifiedBuffer::statistics and transfers) and for the process (unified_totals). If two
// places share memory, the copy between them is elided: it moves no bytes, but is counted with the
// bytes it would have moved. All types here are plain values.

/// All reasons for a transfer:
/// - an access that needed the bytes: `host_read`, `host_rw`, `device_read`, `device_rw`, or
///   `element` (one element was loaded or stored);
/// - an operation: `prefetch`, `drop`, `resize`, `clone`;
/// - a policy of the buffer: `write_through`, or `compare` (a check of two copies);
/// - `untracked_write`: an exported pointer may have changed the bytes;
/// - `reconcile`: the directory had too many intervals;
/// - memory pressure: `evict` (written back from a device to the host), `spill` (to a spill file)
///   and `unspill` (from it).
#define TERN_FOR_EACH_TRANSFER_REASON(TERN_REASON) \
  TERN_REASON(host_read)                           \
  TERN_REASON(host_rw)                             \
  TERN_REASON(device_read)                         \
  TERN_REASON(device_rw)                           \
  TERN_REASON(prefetch)                            \
  TERN_REASON(drop)                                \
  TERN_REASON(resize)                              \
  TERN_REASON(element)                             \
  TERN_REASON(untracked_write)                     \
  TERN_REASON(reconcile)                           \
  TERN_REASON(write_through)                       \
  TERN_REASON(clone)                               \
  TERN_REASON(compare)                             \
  TERN_REASON(evict)                               \
  TERN_REASON(spill)                               \
  TERN_REASON(unspill)

/// Why bytes moved. The list above explains each reason.
enum class TransferReason : std::uint8_t {
#define TERN_REASON(reason) reason,
  TERN_FOR_EACH_TRANSFER_REASON(TERN_REASON)
#undef TERN_REASON
};
#define TERN_REASON(reason) +1
/// The number of reasons.
inline constexpr std::size_t transfer_reasons = 0 TERN_FOR_EACH_TRANSFER_REASON(TERN_REASON);
#undef TERN_REASON

[[nodiscard]] TERN_EXPORT std::string_view name(TransferReason reason) noexcept;

/// Bytes within [`begin`, `end`) of a buffer were copied `from` one place `to` another.
struct Transfer {
  Place from = {}, to = {};
  std::size_t begin = 0, end = 0;
  /// The number of pieces, and their size together.
  std::size_t runs = 0;
  std::size_t bytes = 0;
  TransferReason reason = TransferReason::host_read;
  bool is_elided = false;
  CallSite site = {};
};

/// What a unified buffer has copied, from its creation or, in unified_totals(), from process start.
struct UnifiedStatistics {
  CopyCount to_host = {};    // from devices
  CopyCount to_device = {};  // from the host
  CopyCount between_devices = {};
  CopyCount to_file = {};  // spilled
  CopyCount from_file = {};
  /// Not copied, because the two places share memory.
  CopyCount elided = {};
  std::array<CopyCount, transfer_reasons> by_reason = {};  // includes elided transfers
  /// Bytes that were copied although they were up to date, to coalesce two copies into one.
  std::uint64_t merged_gap_bytes = 0;
  /// Accesses of the host that had to wait.
  std::uint64_t host_waits = 0;
  /// Copies that were evicted, and their bytes.
  CopyCount evicted = {};
  /// Copies of the write_through policy that failed. The bytes are stale in that place.
  std::uint64_t failed_write_throughs = 0;

  /// Returns the copies between places, without those to and from spill files.
  [[nodiscard]] CopyCount moved() const noexcept {
    return {to_host.copies + to_device.copies + between_devices.copies,
            to_host.bytes + to_device.bytes + between_devices.bytes};
  }
  /// Returns the transfers that this reason caused, elided ones included.
  [[nodiscard]] const CopyCount& of(TransferReason reason) const noexcept {
    return by_reason[static_cast<std::size_t>(reason)];
  }
  /// Adds one transfer to the counts.
  void add(const Transfer& transfer) noexcept;
};

/// Returns the sums over all unified buffers of the process so far.
[[nodiscard]] TERN_EXPORT UnifiedStatistics unified_totals() noexcept;

// A BufferState summarizes in one word which copies of a unified buffer are up to date.
//
// The word follows from two facts about each place: whether the place has a copy, and whether that
// copy is up to date. `mixed` covers all cases that the other words cannot express: parts of the
// buffer have different states, or the host and only some of the devices are up to date.
// valid_places() and for_each_interval() return the full details.

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
