// Pressure: how copies of unified buffers are evicted when a place is full, and the statistics of
// it.
//
// If a copy cannot be allocated, because a budget or a device is full, Tern evicts copies of other
// unified buffers in that place, in this order:
// 1. stale: no byte of the copy is up to date. Nothing is copied.
// 2. clean: every up-to-date byte is up to date elsewhere too. Nothing is copied.
// 3. dirty: some bytes are up to date nowhere else. A device copy is written back to the host
//    first, a host copy to the spill file of its buffer. A host copy without a spill file stays.
//
// Within a kind, the least recently used copy goes first. Copies that are leased, exported,
// adopted, claimed by a launch or kept (UnifiedBuffer::pin_residency) are not evicted. A prefetch
// never evicts a dirty copy.
//
// A device copy is freed in the order of the stream that needs the memory, after all its uses. No
// device lease waits on the host for that, and the budget shows the memory as pending. Evicting a
// host copy waits for its uses, and for the disk.
//
// If the copy cannot fit even after evicting everything evictable, the request fails immediately
// and evicts nothing. With a LeaseWait, a lease waits for other threads to close their leases and
// for pending frees, unless the copy could not fit even then.
//
// Eviction is always on. All functions here may be called from any thread.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tern/core/bytes.hpp"
#include "tern/core/place.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/core/visibility.hpp"

namespace tern {

/// The kinds of copies, in the order in which they are evicted.
enum class Eviction : std::uint8_t {
  stale,  // no byte was up to date
  clean,  // every up-to-date byte was up to date elsewhere too
  dirty,  // had bytes that nobody else had; they were written back first
};
/// The number of kinds.
inline constexpr std::size_t eviction_kinds = 3;
/// Returns the name of the enumerator.
[[nodiscard]] TERN_EXPORT std::string_view name(Eviction kind) noexcept;

/// Sums over all unified buffers of the process so far.
struct PressureStatistics {
  std::array<CopyCount, eviction_kinds> device = {};  // evicted device copies, by kind
  std::array<CopyCount, eviction_kinds> host = {};    // evicted host copies, by kind
  /// Bytes copied from devices to the host, because only the evicted copy had them.
  std::uint64_t written_back_bytes = 0;
  /// Bytes written to spill files, and bytes read back.
  std::uint64_t spilled_bytes = 0;
  std::uint64_t unspilled_bytes = 0;
  /// Copies that were chosen for eviction, but could not be written back.
  std::uint64_t failed_evictions = 0;
  /// Requests that failed because eviction could not free enough memory.
  std::uint64_t refused_requests = 0;
  /// Leases that waited for memory, as their LeaseWait allowed.
  std::uint64_t waited_requests = 0;

  /// on_device() and on_host() return the count of one kind in these places.
  [[nodiscard]] const CopyCount& on_device(Eviction kind) const noexcept {
    return device[static_cast<std::size_t>(kind)];
  }
  [[nodiscard]] const CopyCount& on_host(Eviction kind) const noexcept {
    return host[static_cast<std::size_t>(kind)];
  }
  /// Returns the sum over both places and all kinds.
  [[nodiscard]] CopyCount evicted() const noexcept {
    CopyCount all;
    for (std::size_t i = 0; i < eviction_kinds; ++i) {
      all.copies += device[i].copies + host[i].copies;
      all.bytes += device[i].bytes + host[i].bytes;
    }
    return all;
  }
};
/// Returns the statistics of the process.
[[nodiscard]] TERN_EXPORT PressureStatistics pressure_totals() noexcept;

/// The copies of one tag in one place, and how many of their bytes cannot be evicted now.
struct TagResidency {
  Tag tag = {};
  std::size_t copies = 0;
  std::size_t bytes = 0;
  /// Bytes that are in use by a lease, a launch or a transfer.
  std::size_t leased_bytes = 0;
  /// Bytes that are adopted, or kept with pin_residency().
  std::size_t kept_bytes = 0;
};
/// Returns who has memory in the place, the largest tag first. The failure of a request contains
/// the beginning of this list. Throws std::bad_alloc.
[[nodiscard]] TERN_EXPORT std::vector<TagResidency> residency_by_tag(Place place);

}  // namespace tern
