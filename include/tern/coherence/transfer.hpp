// A Transfer is one movement of bytes that a unified buffer made by itself, and why.
//
// Every one is counted, with its reason and the line of the access that caused it: per buffer
// (UnifiedBuffer::stats, transfers) and in total (unified_totals). A copy between places that share
// memory is elided: it is counted with the bytes it would have moved, and moves none. Plain values.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tern/core/call_site.hpp"
#include "tern/core/export.hpp"
#include "tern/core/place.hpp"

namespace tern {

/// One line for each reason.
#define TERN_FOR_EACH_TRANSFER_REASON(TERN_REASON) \
  TERN_REASON(host_read)                           \
  TERN_REASON(host_rw)                             \
  TERN_REASON(device_read)                         \
  TERN_REASON(device_rw)                           \
  TERN_REASON(prefetch)                            \
  TERN_REASON(drop)                                \
  TERN_REASON(resize)                              \
  TERN_REASON(element)                             \
  TERN_REASON(sticky)                              \
  TERN_REASON(reconcile)                           \
  TERN_REASON(write_through)                       \
  TERN_REASON(clone)                               \
  TERN_REASON(compare)                             \
  TERN_REASON(evict)                               \
  TERN_REASON(spill)                               \
  TERN_REASON(unspill)

enum class TransferReason : std::uint8_t {
#define TERN_REASON(reason) reason,
  TERN_FOR_EACH_TRANSFER_REASON(TERN_REASON)
#undef TERN_REASON
};
#define TERN_REASON(reason) +1
inline constexpr std::size_t transfer_reasons = 0 TERN_FOR_EACH_TRANSFER_REASON(TERN_REASON);
#undef TERN_REASON

[[nodiscard]] TERN_EXPORT std::string_view name(TransferReason reason) noexcept;

/// Bytes [begin, end) of a buffer came from one place to another, in so many pieces.
struct Transfer {
  Place from = {}, to = {};
  std::size_t begin = 0, end = 0;
  std::size_t runs = 0;
  std::size_t bytes = 0;  // of the pieces together
  TransferReason reason = TransferReason::host_read;
  bool is_elided = false;
  CallSite site = {};
};

struct MoveCount {
  std::uint64_t copies = 0;  // pieces
  std::uint64_t bytes = 0;

  friend constexpr bool operator==(const MoveCount&, const MoveCount&) noexcept = default;
};

struct UnifiedStatistics {
  MoveCount to_host = {};
  MoveCount to_device = {};  // from the host
  MoveCount between_devices = {};
  MoveCount to_file = {};  // spilled
  MoveCount from_file = {};
  /// Not moved, because the two places share memory.
  MoveCount elided = {};
  std::array<MoveCount, transfer_reasons> by_reason = {};  // elided ones too
  /// Moved although up to date, because one copy is cheaper than two.
  std::uint64_t merged_gap_bytes = 0;
  /// Accesses of the host that had something to wait for.
  std::uint64_t host_waits = 0;
  /// Copies that had to go because memory was short, and their bytes.
  MoveCount evicted = {};
  /// Copies of a write_through policy that could not be made; the bytes are stale there.
  std::uint64_t failed_write_throughs = 0;

  /// Between places; what went to a file and came back is not in it.
  [[nodiscard]] MoveCount moved() const noexcept {
    return {to_host.copies + to_device.copies + between_devices.copies,
            to_host.bytes + to_device.bytes + between_devices.bytes};
  }
  [[nodiscard]] const MoveCount& of(TransferReason reason) const noexcept {
    return by_reason[static_cast<std::size_t>(reason)];
  }
  void add(const Transfer& transfer) noexcept;
};

/// Of all unified buffers of the process so far.
[[nodiscard]] TERN_EXPORT UnifiedStatistics unified_totals() noexcept;

}  // namespace tern
