// A PrefetchPlan is an ordered list of memory and the places it should move to. It is made once and
// executed any number of times.
//
//   PrefetchPlan plan;
//   plan.add(weights, gpu.place()).add(input, gpu.place(), HintRange{0, half});
//   plan.execute(stream);
//
// An entry is checked when it is added. Adding fails with invalid_view if the range is outside of
// the memory, with invalid_device or device_mismatch if the place is not possible, and with
// invalid_argument if the memory cannot be prefetched. Entries share ownership of their memory.
//
// execute() joins consecutive entries that continue each other's range and go to one place, and
// sends many ranges in one driver call where the driver supports it. The order of entries is kept
// on each stream. Entries are skipped and counted if the device does not support the prefetch, if
// Tern knows that the bytes are already there, or if they have no bytes.
//
// If an entry fails during execute(), the entries before it stay in flight, because they are only
// hints. The failure has the code of its cause and the fields `index` (the entry, in the order of
// adding), `enqueued` (the number of entries sent before) and `cause`. Bytes are prefetched to the
// host only if an entry says so. A plan is a value; one object belongs to one thread at a time.

#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tern/buffer/buffer.hpp"
#include "tern/coherence/hints.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/place.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/coherence/prefetch_target.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/budget.hpp"

namespace tern {

/// A type whose buffer() is managed memory, such as ManagedBuffer.
template <class T>
concept HasBuffer = requires(const T& memory) {
  { memory.buffer() } -> std::same_as<const Buffer&>;
};

/// A unified buffer or a view of one.
template <class T>
concept HasRawUnified = requires(const T& memory) {
  { memory.raw() } -> std::same_as<const RawUnified&>;
};

class TERN_EXPORT PrefetchPlan {
 public:
  /// What execute() did, counted in entries as they were added. Joined entries count one by one.
  struct Report {
    std::size_t sent = 0;  // entries whose prefetch is queued
    /// Entries of which nothing had to move, or that the device does not support.
    std::size_t skipped = 0;
    /// For managed memory the bytes that were sent, for unified buffers the bytes that move.
    std::size_t bytes = 0;
  };

  /// Creates an empty plan.
  PrefetchPlan() noexcept = default;

  /// Adds a managed buffer or view, or a byte range of one. If it fails, the plan stays as it was.
  Result<void> try_add(const Buffer& view, Place place, std::optional<HintRange> range = {},
                       CallSite site = CallSite::here()) noexcept;
  PrefetchPlan& add(const Buffer& view, Place place, std::optional<HintRange> range = {},
                    CallSite site = CallSite::here()) {
    try_add(view, place, range, site).value();
    return *this;
  }
  template <HasBuffer T>
  PrefetchPlan& add(const T& memory, Place place, std::optional<HintRange> range = {},
                    CallSite site = CallSite::here()) {
    return add(memory.buffer(), place, range, site);
  }
  /// Adds a unified buffer or view, or a byte range of one. execute() copies the stale bytes to the
  /// place, in the order of the stream if the stream belongs to that device.
  Result<void> try_add(const RawUnified& view, Place place, std::optional<HintRange> range = {},
                       CallSite site = CallSite::here()) noexcept;
  template <HasRawUnified T>
  PrefetchPlan& add(const T& memory, Place place, std::optional<HintRange> range = {},
                    CallSite site = CallSite::here()) {
    try_add(memory.raw(), place, range, site).value();
    return *this;
  }
  /// Adds any other memory that implements PrefetchTarget.
  Result<void> try_add(std::shared_ptr<const PrefetchTarget> target, Place place,
                       std::optional<HintRange> range = {},
                       CallSite site = CallSite::here()) noexcept;
  PrefetchPlan& add(std::shared_ptr<const PrefetchTarget> target, Place place,
                    std::optional<HintRange> range = {}, CallSite site = CallSite::here()) {
    try_add(std::move(target), place, range, site).value();
    return *this;
  }

  /// size() is the number of entries, and empty() whether it is 0. execute() may send fewer
  /// prefetches, because it combines adjacent ranges.
  [[nodiscard]] std::size_t size() const noexcept;
  [[nodiscard]] bool empty() const noexcept { return size() == 0; }
  /// Returns the entries in the order of adding.
  [[nodiscard]] std::span<const PrefetchEntry> entries() const noexcept;
  /// Returns a heading and one line for each entry.
  [[nodiscard]] std::string text() const;

  /// Returns an equivalent plan with as few entries as possible: consecutive entries that continue
  /// each other's range and go to one place are joined. Other entries are not joined, because that
  /// would change the order.
  [[nodiscard]] PrefetchPlan merged() const;

  /// Returns the peak of each place: the largest number of bytes that the plan has there at one
  /// time, not counting other memory. Bytes that a later entry moves elsewhere no longer count for
  /// the earlier place.
  [[nodiscard]] std::vector<std::pair<Place, std::size_t>> peaks() const;
  /// Checks whether the plan fits into a budget. Returns the peak of the place, or fails with
  /// out_of_budget and both numbers.
  [[nodiscard]] Result<std::size_t> try_check(Place place, const Budget& budget,
                                              CallSite site = CallSite::here()) const noexcept;
  std::size_t check(Place place, const Budget& budget, CallSite site = CallSite::here()) const {
    return try_check(place, budget, site).value();
  }

  /// Executes all entries in the order of one stream. Large runs of managed memory use a second
  /// stream internally, ordered between two points of this one.
  Result<Report> try_execute(StreamRef stream, HintOptions options = {},
                             CallSite site = CallSite::here()) const noexcept;
  Report execute(StreamRef stream, HintOptions options = {},
                 CallSite site = CallSite::here()) const {
    return try_execute(stream, options, site).value();
  }
  /// Executes each entry on the stream of the device that it goes to; entries that go to the host
  /// use the stream of the memory's own device. Needs one stream for each of these devices, else
  /// fails with stream_misuse.
  Result<Report> try_execute(std::span<const StreamRef> streams, HintOptions options = {},
                             CallSite site = CallSite::here()) const noexcept;
  Report execute(std::span<const StreamRef> streams, HintOptions options = {},
                 CallSite site = CallSite::here()) const {
    return try_execute(streams, options, site).value();
  }

 private:
  std::vector<PrefetchEntry> entries_;
};

}  // namespace tern
