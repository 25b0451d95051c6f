// A PrefetchPlan is an ordered list of memory and the places it should be at, made once and carried
// out as often as wanted.
//
//   PrefetchPlan plan;
//   plan.add(weights, gpu.place()).add(input, gpu.place(), HintRange{0, half});
//   plan.execute(stream);
//
// An entry is looked at when it is added: its range must be inside (invalid_view), its place must
// exist (invalid_device, device_mismatch) and its memory must be one that can go there
// (invalid_argument). Entries hold their memory. Carrying it out sends neighbours that touch and go
// to one place as one, and many at a time where the driver takes them so; order is kept on each
// stream. What the devices would not do, what is there already as far as Tern knows, and zero
// bytes, is skipped and counted.
//
// If an entry is refused then, those before it stay on their way, being only hints. The failure is
// that of its cause, and says `index`, the entry as it was added, `enqueued`, how many entries were
// sent before it, and `cause`. Prefetching towards the host is done where a plan says so and never
// by itself. A plan is a value; it is not for several threads at once.

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
#include "tern/coherence/prefetch_target.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/export.hpp"
#include "tern/core/place.hpp"
#include "tern/core/result.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/budget.hpp"

namespace tern {

/// What has a buffer() is planned by it.
template <class T>
concept HasBuffer = requires(const T& memory) {
  { memory.buffer() } -> std::same_as<const Buffer&>;
};

/// So is what is a unified buffer or a view of one.
template <class T>
concept HasRawUnified = requires(const T& memory) {
  { memory.raw() } -> std::same_as<const RawUnified&>;
};

class TERN_EXPORT PrefetchPlan {
 public:
  struct Entry {
    std::shared_ptr<const PrefetchTarget> target;
    HintRange range = {};  // of the target
    Place place = {};
    std::size_t index = 0;  // of the first that was added, of those it stands for
    std::size_t count = 1;  // how many it stands for
    CallSite site = {};     // where the first was added

    /// "bytes [0, 4096) of buffer 7 to device 1".
    [[nodiscard]] std::string text() const;
  };

  /// The most bytes that a plan has at a place at one time, if nothing else is there.
  struct Peak {
    Place place = {};
    std::size_t bytes = 0;

    friend constexpr bool operator==(const Peak&, const Peak&) noexcept = default;
  };

  /// What was done, in entries as they were added; those that went as one count together.
  struct Report {
    std::size_t sent = 0;
    /// Of these unified buffers nothing had to move, or the device would not do it.
    std::size_t skipped = 0;
    /// Of managed memory those that were sent, of unified buffers those that move.
    std::size_t bytes = 0;
  };

  /// Empty.
  PrefetchPlan() noexcept = default;

  /// A managed buffer or view, or a range of it. A refusal leaves the plan as it was.
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
  /// A unified buffer or view, or a range of bytes of it: what is stale there is copied, in the
  /// order of the stream if it is that device's.
  Result<void> try_add(const RawUnified& view, Place place, std::optional<HintRange> range = {},
                       CallSite site = CallSite::here()) noexcept;
  template <HasRawUnified T>
  PrefetchPlan& add(const T& memory, Place place, std::optional<HintRange> range = {},
                    CallSite site = CallSite::here()) {
    try_add(memory.raw(), place, range, site).value();
    return *this;
  }
  /// Any other memory that knows how to go somewhere.
  Result<void> try_add(std::shared_ptr<const PrefetchTarget> target, Place place,
                       std::optional<HintRange> range = {},
                       CallSite site = CallSite::here()) noexcept;
  PrefetchPlan& add(std::shared_ptr<const PrefetchTarget> target, Place place,
                    std::optional<HintRange> range = {}, CallSite site = CallSite::here()) {
    try_add(std::move(target), place, range, site).value();
    return *this;
  }

  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
  [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }
  /// In the order they were added.
  [[nodiscard]] std::span<const Entry> entries() const noexcept { return entries_; }
  /// One line for each entry, and one before them.
  [[nodiscard]] std::string text() const;

  /// The same with as few entries: one for those that follow each other, continue each other's
  /// range and go to one place. Entries that do not follow each other are not joined, because that
  /// would change their order.
  [[nodiscard]] PrefetchPlan merged() const;

  /// By place. Bytes that a later entry takes elsewhere are gone from the first place then.
  [[nodiscard]] std::vector<Peak> peaks() const;
  /// Would the plan fit? The peak at the place, or out_of_budget with both numbers.
  [[nodiscard]] Result<std::size_t> try_check(Place place, const Budget& budget,
                                              CallSite site = CallSite::here()) const noexcept;
  std::size_t check(Place place, const Budget& budget, CallSite site = CallSite::here()) const {
    return try_check(place, budget, site).value();
  }

  /// All of it in the order of one stream.
  Result<Report> try_execute(StreamRef stream, HintOptions options = {},
                             CallSite site = CallSite::here()) const noexcept;
  Report execute(StreamRef stream, HintOptions options = {},
                 CallSite site = CallSite::here()) const {
    return try_execute(stream, options, site).value();
  }
  /// On the stream of the device that an entry goes to, and for the host on that of the memory's
  /// own. One for each device that is needed (stream_misuse).
  Result<Report> try_execute(std::span<const StreamRef> streams, HintOptions options = {},
                             CallSite site = CallSite::here()) const noexcept;
  Report execute(std::span<const StreamRef> streams, HintOptions options = {},
                 CallSite site = CallSite::here()) const {
    return try_execute(streams, options, site).value();
  }

 private:
  std::vector<Entry> entries_;
};

}  // namespace tern
