// Hints tell the driver how managed memory will be used: where its pages should be, where they are
// needed next, and when their bytes are no longer needed.
//
//   Hints hints(buffer);
//   HintUndo undo = hints.apply(MigrationPolicy::prefer_device(gpu));
//   hints.prefetch(gpu.place(), stream);
//   undo.restore();
//
// A Hints object belongs to a managed buffer or a view of one, and shares ownership of its storage.
// A hint covers all bytes, or a range of them. A range outside of the buffer fails with
// invalid_view.
//
// Drivers apply hints to whole pages, so a hint also affects other bytes in the first and the last
// page; the report says how many. A hint on zero bytes, or one that the device does not support,
// does not reach the driver and is reported as skipped. With HintOptions::strict, a hint that the
// device does not support fails with unsupported.
//
// A hint changes no bytes and no result of a program, except discard(). Advice is a host call that
// takes effect before it returns. Prefetch and discard are stream-ordered, and are recorded as uses
// of the buffer. When the last handle of a buffer is destroyed, Tern takes back the advice on its
// pages, because other buffers get those pages next.
//
// Each x() throws what try_x() returns. Copies of a Hints object refer to the same memory. Several
// threads may give hints on the same memory, each through its own object.

#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tern/buffer/buffer.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/place.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/device/device.hpp"
#include "tern/device/device_info.hpp"
#include "tern/device/operations.hpp"
#include "tern/device/stream.hpp"

namespace tern {

// A MigrationPolicy says where pages of managed memory should be, and which places map them. It is
// a plain value that is made once and applied to any number of buffers with Hints::apply().
//
//   MigrationPolicy::prefer_device(gpu).accessed_by(Place::host())
//
// - none() is the driver's own policy: pages move to whichever processor touches them. It never
//   reaches a driver.
// - read_mostly() lets every reader have its own copy of a page.
// - prefer_device(), prefer_host() and prefer_host_numa() name the place where pages should stay.
// - accessed_by() adds a place that keeps a mapping, so that its accesses do not fault.
//
// Drivers let read-mostly override a preferred place, and a preferred place override mappings;
// text() says so. A policy names its places itself and does not depend on the current device or
// stream. Places are checked when the policy is applied.

/// Returns a name such as "set read-mostly" or "unset preferred location".
[[nodiscard]] TERN_EXPORT const char* name(Advice advice) noexcept;

class TERN_EXPORT MigrationPolicy {
 public:
  /// The driver's own policy: pages move to whichever processor touches them.
  MigrationPolicy() noexcept = default;
  [[nodiscard]] static MigrationPolicy none() noexcept { return {}; }
  [[nodiscard]] static MigrationPolicy read_mostly() noexcept;
  [[nodiscard]] static MigrationPolicy prefer_device(DeviceId device) noexcept;
  [[nodiscard]] static MigrationPolicy prefer_device(const Device& device) noexcept {
    return prefer_device(device.id());
  }
  [[nodiscard]] static MigrationPolicy prefer_host() noexcept;
  [[nodiscard]] static MigrationPolicy prefer_host_numa(std::uint32_t node) noexcept;
  /// Prefers the NUMA node of the thread that applies the policy.
  [[nodiscard]] static MigrationPolicy prefer_host_numa_current() noexcept;

  /// Returns this policy with one more place that keeps a mapping. Adding a place twice has no
  /// effect.
  [[nodiscard]] MigrationPolicy accessed_by(Place place) const;

  /// Returns whether the policy is the driver's own, so that applying it does nothing.
  [[nodiscard]] bool is_default() const noexcept;
  /// Return the parts of the policy: whether every reader may have its own copy of a page, and the
  /// place that prefer_*() named, if any.
  [[nodiscard]] bool is_read_mostly() const noexcept { return is_read_mostly_; }
  [[nodiscard]] std::optional<Place> preferred() const noexcept { return preferred_; }
  /// Returns the places that keep a mapping, sorted.
  [[nodiscard]] const std::vector<Place>& accessors() const noexcept { return accessors_; }
  /// Returns the advice that the driver receives, in this order, and the place that each advice is
  /// about. Empty for the default policy. For advice without a place, the place is the host and has
  /// no meaning.
  [[nodiscard]] std::vector<std::pair<Advice, Place>> advice() const;

  /// Returns a text such as "Default" or "prefer device 2, accessed by host (overridden by prefer
  /// device 2)".
  [[nodiscard]] std::string text() const;

  friend TERN_EXPORT bool operator==(const MigrationPolicy& a, const MigrationPolicy& b) noexcept;

 private:
  bool is_read_mostly_ = false;
  std::optional<Place> preferred_ = {};
  std::vector<Place> accessors_ = {};
};

struct HintOptions {
  /// Fail if the device does not support a hint, instead of skipping the hint.
  bool strict = false;
};

/// The bytes of a buffer or view that a hint is about.
struct HintRange {
  /// The first byte, counted from the begin of the buffer or view, and the number of bytes.
  std::size_t offset_bytes = 0;
  std::size_t bytes = 0;
  /// The further bytes that a hint affects: those before and after the range in its first and last
  /// page. Set in reports and by effective_range(); hints ignore them.
  std::size_t before_bytes = 0;
  std::size_t after_bytes = 0;

  friend constexpr bool operator==(const HintRange&, const HintRange&) noexcept = default;
};

/// Why a hint did not reach the driver.
enum class HintSkip : std::uint8_t {
  none,            // the hint was sent
  zero_bytes,      // the range is empty
  default_policy,  // the policy is the driver's own, so there is nothing to send
  not_concurrent,  // host and device cannot use managed memory at the same time
  not_supported,   // the device does not support this hint
  already_there,   // unified buffer: nothing has to move
};
/// Returns a short sentence for reports.
[[nodiscard]] TERN_EXPORT const char* name(HintSkip skip) noexcept;

/// What became of a hint.
struct HintReport {
  HintSkip skipped = HintSkip::none;  // why the hint did not reach the driver, if it did not
  HintRange range = {};               // what the hint was about, with the further bytes it affects
  /// The number of bytes that move, for a unified buffer. Empty for managed memory, because drivers
  /// do not report which pages they move.
  std::optional<std::size_t> moved_bytes = {};

  /// Returns false if the hint was skipped.
  [[nodiscard]] bool is_sent() const noexcept { return skipped == HintSkip::none; }
};

class HintUndo;

/// Gives hints on one managed buffer or view.
class TERN_EXPORT Hints {
 public:
  /// Throws what try_make() returns.
  explicit Hints(Buffer buffer, HintOptions options = {}, CallSite site = CallSite::here());
  /// Creates hints on a buffer. Fails with invalid_argument if its memory is not managed.
  [[nodiscard]] static Result<Hints> try_make(Buffer buffer, HintOptions options = {},
                                              CallSite site = CallSite::here()) noexcept;
  /// Creates hints on managed memory that another library has allocated. The hints share `owner`,
  /// which must keep the memory alive. Fails with invalid_argument if `owner` is null, or if the
  /// device does not know the range as managed memory.
  [[nodiscard]] static Result<Hints> try_over(const Device& device, void* address,
                                              std::size_t bytes, std::shared_ptr<void> owner,
                                              HintOptions options = {},
                                              CallSite site = CallSite::here()) noexcept;
  [[nodiscard]] static Hints over(const Device& device, void* address, std::size_t bytes,
                                  std::shared_ptr<void> owner, HintOptions options = {},
                                  CallSite site = CallSite::here()) {
    return try_over(device, address, bytes, std::move(owner), options, site).value();
  }

  /// The managed memory that the hints are about.
  [[nodiscard]] const Buffer& buffer() const noexcept { return buffer_; }
  /// Returns the options of the constructor, which all hints of this object follow.
  [[nodiscard]] HintOptions options() const noexcept { return options_; }

  /// Returns the bytes that a hint on the range would affect; without a range, on the whole buffer.
  /// Allocates the memory of the buffer.
  [[nodiscard]] Result<HintRange> try_effective_range(
      std::optional<HintRange> range = {}, CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] HintRange effective_range(std::optional<HintRange> range = {},
                                          CallSite site = CallSite::here()) const {
    return try_effective_range(range, site).value();
  }

  // --- Advice. The place must be the host or an open device; for the preferred location it may
  // also be a NUMA node. Any other place fails with invalid_device. Advice that needs no place
  // ignores the place.

  /// Gives one piece of advice for a range; without a range, for the whole buffer. The six
  /// functions below are short for advise() with one kind of advice: set_read_mostly(),
  /// unset_read_mostly(), set_preferred_location(), unset_preferred_location(), set_accessed_by()
  /// and unset_accessed_by(). An unset takes back the advice of that kind, whoever gave it.
  Result<HintReport> try_advise(std::pair<Advice, Place> advice,
                                std::optional<HintRange> range = {},
                                CallSite site = CallSite::here()) const noexcept;
  HintReport advise(std::pair<Advice, Place> advice, std::optional<HintRange> range = {},
                    CallSite site = CallSite::here()) const {
    return try_advise(advice, range, site).value();
  }
  HintReport set_read_mostly(std::optional<HintRange> range = {},
                             CallSite site = CallSite::here()) const {
    return advise({Advice::set_read_mostly, {}}, range, site);
  }
  HintReport unset_read_mostly(std::optional<HintRange> range = {},
                               CallSite site = CallSite::here()) const {
    return advise({Advice::unset_read_mostly, {}}, range, site);
  }
  HintReport set_preferred_location(Place place, std::optional<HintRange> range = {},
                                    CallSite site = CallSite::here()) const {
    return advise({Advice::set_preferred_location, place}, range, site);
  }
  HintReport unset_preferred_location(std::optional<HintRange> range = {},
                                      CallSite site = CallSite::here()) const {
    return advise({Advice::unset_preferred_location, {}}, range, site);
  }
  HintReport set_accessed_by(Place place, std::optional<HintRange> range = {},
                             CallSite site = CallSite::here()) const {
    return advise({Advice::set_accessed_by, place}, range, site);
  }
  HintReport unset_accessed_by(Place place, std::optional<HintRange> range = {},
                               CallSite site = CallSite::here()) const {
    return advise({Advice::unset_accessed_by, place}, range, site);
  }

  /// Applies all advice of a policy, or none: if one part fails, the parts before it are taken
  /// back. Returns an undo with the settings from before.
  [[nodiscard]] Result<HintUndo> try_apply(const MigrationPolicy& policy,
                                           std::optional<HintRange> range = {},
                                           CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] HintUndo apply(const MigrationPolicy& policy, std::optional<HintRange> range = {},
                               CallSite site = CallSite::here()) const;
  /// Like try_apply(), for callers that name a place as well. Fails with device_mismatch if the
  /// policy prefers another place. A policy without a preferred place accepts any.
  [[nodiscard]] Result<HintUndo> try_apply_at(const MigrationPolicy& policy, Place place,
                                              std::optional<HintRange> range = {},
                                              CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] HintUndo apply_at(const MigrationPolicy& policy, Place place,
                                  std::optional<HintRange> range = {},
                                  CallSite site = CallSite::here()) const;

  /// Returns the settings that the driver reports. If parts of the range have different settings,
  /// the setting is mixed, and its value is that of the first part. Fails with unsupported if the
  /// device takes no advice.
  [[nodiscard]] Result<ManagedInfo> try_query(std::optional<HintRange> range = {},
                                              CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] ManagedInfo query(std::optional<HintRange> range = {},
                                  CallSite site = CallSite::here()) const {
    return try_query(range, site).value();
  }

  // --- Stream-ordered hints

  /// Moves the pages to a place, after the recorded writes and before later work on the stream.
  /// Pages that were never written may be prefetched too.
  Result<HintReport> try_prefetch(Place place, StreamRef stream,
                                  std::optional<HintRange> range = {},
                                  CallSite site = CallSite::here()) const noexcept;
  HintReport prefetch(Place place, StreamRef stream, std::optional<HintRange> range = {},
                      CallSite site = CallSite::here()) const {
    return try_prefetch(place, stream, range, site).value();
  }
  /// Says that the bytes are no longer needed: they count as never written, and the driver need not
  /// move their pages. If the device does not support this, the bytes still count as never written.
  /// Ordered like a write.
  Result<HintReport> try_discard(StreamRef stream, std::optional<HintRange> range = {},
                                 CallSite site = CallSite::here()) const noexcept;
  HintReport discard(StreamRef stream, std::optional<HintRange> range = {},
                     CallSite site = CallSite::here()) const {
    return try_discard(stream, range, site).value();
  }
  /// Discards the bytes and moves the empty pages to a place where they will be written next. If
  /// the device cannot discard, the pages are prefetched instead.
  Result<HintReport> try_discard_prefetch(Place place, StreamRef stream,
                                          std::optional<HintRange> range = {},
                                          CallSite site = CallSite::here()) const noexcept;
  HintReport discard_prefetch(Place place, StreamRef stream, std::optional<HintRange> range = {},
                              CallSite site = CallSite::here()) const {
    return try_discard_prefetch(place, stream, range, site).value();
  }

 private:
  friend class HintUndo;
  /// Skips the checks of try_make().
  Hints(Buffer buffer, HintOptions options, std::nullptr_t) noexcept;

  /// A part of a range between the edges of earlier hints, with the settings of that part.
  struct Part {
    HintRange range;
    ManagedInfo info;
  };
  [[nodiscard]] Result<std::vector<Part>> try_parts(HintRange range, CallSite site) const noexcept;
  [[nodiscard]] Result<HintRange> try_resolve(std::optional<HintRange> range,
                                              CallSite site) const noexcept;
  /// Records where this hint begins and ends, so that try_parts() can query each part separately.
  [[nodiscard]] Result<void> try_note_edges(HintRange range, CallSite site) const noexcept;
  /// Returns whether the device supports the hint, and which bytes the hint would affect.
  [[nodiscard]] Result<HintReport> try_report(HintRange range, Capability wanted,
                                              CallSite site) const noexcept;
  /// Gives one piece of advice to the driver, and records it so that it can be taken back.
  [[nodiscard]] Result<void> try_tell(std::pair<Advice, Place> advice, HintRange range,
                                      CallSite site) const noexcept;
  /// Discards the range and, if a place is given, moves the pages there.
  [[nodiscard]] Result<HintReport> try_give_up(std::optional<Place> place, StreamRef stream,
                                               std::optional<HintRange> range,
                                               CallSite site) const noexcept;

  Buffer buffer_;
  HintOptions options_;
};

/// The settings that were in force before a policy was applied, part by part. An undo restores them
/// only when restore() is called. Restore several undos in the reverse order of their applications.
/// An undo is a value that shares ownership of the storage.
class TERN_EXPORT HintUndo {
 public:
  /// Returns what try_apply() did. If the policy was skipped, there is nothing to restore.
  [[nodiscard]] HintReport report() const noexcept { return report_; }

  /// Restores the settings that the policy has changed. Tries all parts, and returns the first
  /// failure.
  Result<void> try_restore(CallSite site = CallSite::here()) const noexcept;
  void restore(CallSite site = CallSite::here()) const { try_restore(site).value(); }

 private:
  friend class Hints;
  HintUndo(Hints hints, std::vector<std::pair<Advice, Place>> told, std::vector<Hints::Part> before,
           HintReport report) noexcept;

  Hints hints_;
  std::vector<std::pair<Advice, Place>> told_;
  std::vector<Hints::Part> before_;
  HintReport report_;
};

}  // namespace tern

template <>
struct std::hash<tern::MigrationPolicy> {
  TERN_EXPORT std::size_t operator()(const tern::MigrationPolicy& policy) const noexcept;
};
