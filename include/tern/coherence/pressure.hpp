// Pressure is what happens to the copies of unified buffers when a place is full.
//
// A copy that finds no memory, in a budget or on a device, takes it from other unified buffers
// there. First go copies in which nothing is up to date, then those whose bytes are all elsewhere
// too; neither moves a byte. Then go those that alone have something: a device's is written to the
// host first, the host's to the buffer's spill file, if it has one. Of each kind the one goes first
// whose last use is longest ago. What is leased, escaped, adopted, claimed by a launch or kept
// (UnifiedBuffer::keep_on) stays. A fetch ahead of its use displaces no copy that would have to be
// written.
//
// A device's copy is freed in the order of the stream that needs the memory, behind all that uses
// it: no device lease waits for it on the host, and the budget shows it as pending. Copies of the
// host are waited for, and so is the disk. What cannot fit, whatever went, is refused before
// anything goes; a lease that was given time (LeaseWait) waits for leases of other threads to close
// and for frees that are under way, unless it could not fit even then. Nothing here has to be
// switched on. Thread-safe.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tern/core/export.hpp"
#include "tern/core/place.hpp"
#include "tern/core/tag.hpp"

namespace tern {

/// What a copy was that had to go, in the order in which they go.
enum class Eviction : std::uint8_t {
  stale,  // nothing in it was up to date
  clean,  // everything in it was up to date elsewhere too
  dirty,  // it was written elsewhere first
};
inline constexpr std::size_t eviction_kinds = 3;
[[nodiscard]] TERN_EXPORT std::string_view name(Eviction kind) noexcept;

/// Copies that had to go, and their bytes.
struct EvictionCount {
  std::uint64_t copies = 0;
  std::uint64_t bytes = 0;

  friend constexpr bool operator==(const EvictionCount&, const EvictionCount&) noexcept = default;
};

/// Of all unified buffers of the process so far.
struct PressureStatistics {
  std::array<EvictionCount, eviction_kinds> device = {};  // copies of devices
  std::array<EvictionCount, eviction_kinds> host = {};    // copies of the host
  /// From devices to the host, because only they had them.
  std::uint64_t written_back_bytes = 0;
  /// From the host to spill files, and back.
  std::uint64_t spilled_bytes = 0;
  std::uint64_t unspilled_bytes = 0;
  /// Copies that should have gone, and could not be written.
  std::uint64_t failed_evictions = 0;
  /// Requests for which no room could be made.
  std::uint64_t refused_requests = 0;
  /// Leases that waited for room, because they were given the time (LeaseWait).
  std::uint64_t waited_requests = 0;

  [[nodiscard]] const EvictionCount& on_device(Eviction kind) const noexcept {
    return device[static_cast<std::size_t>(kind)];
  }
  [[nodiscard]] const EvictionCount& on_host(Eviction kind) const noexcept {
    return host[static_cast<std::size_t>(kind)];
  }
  /// All that went.
  [[nodiscard]] EvictionCount evicted() const noexcept {
    EvictionCount all;
    for (std::size_t i = 0; i < eviction_kinds; ++i) {
      all.copies += device[i].copies + host[i].copies;
      all.bytes += device[i].bytes + host[i].bytes;
    }
    return all;
  }
};
[[nodiscard]] TERN_EXPORT PressureStatistics pressure_totals() noexcept;

/// Copies under one tag in one place, and which of them could not go now.
struct TagResidency {
  Tag tag = {};
  std::size_t copies = 0;
  std::size_t bytes = 0;
  /// Of these, in somebody's hands; adopted, or kept by keep_on().
  std::size_t leased_bytes = 0;
  std::size_t kept_bytes = 0;
};
/// Who has memory there, the largest first: what a refusal says in short. Throws std::bad_alloc.
[[nodiscard]] TERN_EXPORT std::vector<TagResidency> residents_by_tag(Place place);

}  // namespace tern
