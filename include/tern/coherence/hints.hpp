// Hints tell the driver about managed memory: what it is for, where it should be, where it goes
// next, and when nobody needs its bytes any more.
//
//   Hints hints(buffer);
//   HintUndo undo = hints.apply(MigrationPolicy::prefer_device(gpu));
//   hints.prefetch(gpu.place(), stream);
//   undo.restore();
//
// They are of a managed buffer or a view of one and hold its storage, so they cannot dangle. All of
// it, or a range of its bytes: one that leaves it is refused with invalid_view. Hints are about
// whole pages, so neighbours in the first and last page are told too; reports say how many bytes
// that is. Zero bytes, and what the device would not do, reach no driver and are reported as
// skipped; HintOptions::strict makes the latter a refusal (unsupported).
//
// Advice goes with the memory: when the last handle of a buffer is gone, what its pages were told
// is taken back, because others have them next. A hint changes no bytes and no result of a program,
// except discard(). Advice is a host call, in force when it returns; prefetch and discard are in
// stream order and recorded as uses of the buffer. Each x() throws what try_x() returns. Copies are
// the same hints; threads may share the memory, but not one object.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tern/buffer/buffer.hpp"
#include "tern/coherence/migration_policy.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/export.hpp"
#include "tern/core/place.hpp"
#include "tern/core/result.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"

namespace tern {

struct HintOptions {
  /// Refuse what the device would not do, instead of skipping it.
  bool strict = false;
};

/// Bytes of a buffer or view that hints are about.
struct HintRange {
  std::size_t offset_bytes = 0;
  std::size_t bytes = 0;
};

/// What a hint on a range covers: the range, and what else is in its first and last page.
struct EffectiveRange {
  std::size_t offset_bytes = 0;
  std::size_t bytes = 0;
  std::size_t before_bytes = 0;
  std::size_t after_bytes = 0;

  friend constexpr bool operator==(const EffectiveRange&, const EffectiveRange&) noexcept = default;
};

/// Why the driver was not told.
enum class HintSkip : std::uint8_t {
  none,            // it was
  zero_bytes,      // there is nothing to tell about
  default_policy,  // there is nothing to tell
  not_concurrent,  // host and device cannot use the memory at the same time
  not_supported,   // the device takes no such hints
  already_there,   // nothing of it is stale there, or nothing has to move (unified memory)
};
[[nodiscard]] TERN_EXPORT const char* name(HintSkip skip) noexcept;

struct HintReport {
  HintSkip skipped = HintSkip::none;
  EffectiveRange range = {};
  /// How many bytes move, where that is known: of unified memory. What drivers do with pages is
  /// not.
  std::optional<std::size_t> moved_bytes = {};

  [[nodiscard]] bool is_sent() const noexcept { return skipped == HintSkip::none; }
};

/// What is in force for a range; where that differs from part to part it is mixed, and the value
/// that of the first part.
template <class T>
struct InForce {
  T value = {};
  bool is_mixed = false;
};

struct HintState {
  InForce<bool> read_mostly;
  InForce<std::optional<Place>> preferred;
  InForce<std::vector<Place>> accessed_by;
  /// Where the pages were last asked to go, which is not always where they are.
  InForce<std::optional<Place>> last_prefetch;
};

class HintUndo;

class TERN_EXPORT Hints {
 public:
  /// Throws what try_make returns.
  explicit Hints(Buffer buffer, HintOptions options = {}, CallSite site = CallSite::here());
  /// Refused with invalid_argument for memory that is not managed.
  [[nodiscard]] static Result<Hints> try_make(Buffer buffer, HintOptions options = {},
                                              CallSite site = CallSite::here()) noexcept;
  /// Of memory that somebody else allocated: the owner keeps it, and is kept. Refused with
  /// invalid_argument without one, and if the device does not know the range as managed memory.
  [[nodiscard]] static Result<Hints> try_over(const Device& device, void* address,
                                              std::size_t bytes, std::shared_ptr<void> owner,
                                              HintOptions options = {},
                                              CallSite site = CallSite::here()) noexcept;
  [[nodiscard]] static Hints over(const Device& device, void* address, std::size_t bytes,
                                  std::shared_ptr<void> owner, HintOptions options = {},
                                  CallSite site = CallSite::here()) {
    return try_over(device, address, bytes, std::move(owner), options, site).value();
  }

  [[nodiscard]] const Buffer& buffer() const noexcept { return buffer_; }
  [[nodiscard]] HintOptions options() const noexcept { return options_; }

  /// What a hint on the range would cover; without one, on all of it. Allocates the memory.
  [[nodiscard]] Result<EffectiveRange> try_effective_range(
      std::optional<HintRange> range = {}, CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] EffectiveRange effective_range(std::optional<HintRange> range = {},
                                               CallSite site = CallSite::here()) const {
    return try_effective_range(range, site).value();
  }

  // --- Advice. The place is a device that is open or the host; a preferred one may also be a NUMA
  // node (invalid_device). Where it means nothing it is ignored.

  Result<HintReport> try_advise(AdvicePair advice, std::optional<HintRange> range = {},
                                CallSite site = CallSite::here()) const noexcept;
  HintReport advise(AdvicePair advice, std::optional<HintRange> range = {},
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

  /// All of a policy, or nothing of it if a part is refused. What was there before is in the undo.
  [[nodiscard]] Result<HintUndo> try_apply(const MigrationPolicy& policy,
                                           std::optional<HintRange> range = {},
                                           CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] HintUndo apply(const MigrationPolicy& policy, std::optional<HintRange> range = {},
                               CallSite site = CallSite::here()) const;
  /// The same for callers that name the place once more: the policy's counts, and another one is
  /// refused with device_mismatch. A policy that prefers none takes any.
  [[nodiscard]] Result<HintUndo> try_apply_at(const MigrationPolicy& policy, Place place,
                                              std::optional<HintRange> range = {},
                                              CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] HintUndo apply_at(const MigrationPolicy& policy, Place place,
                                  std::optional<HintRange> range = {},
                                  CallSite site = CallSite::here()) const;

  /// What the driver says is in force. Refused with unsupported where it takes no advice.
  [[nodiscard]] Result<HintState> try_query(std::optional<HintRange> range = {},
                                            CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] HintState query(std::optional<HintRange> range = {},
                                CallSite site = CallSite::here()) const {
    return try_query(range, site).value();
  }

  // --- In stream order

  /// Brings the pages to a place, ahead of their use there and behind those who write them.
  Result<HintReport> try_prefetch(Place place, StreamRef stream,
                                  std::optional<HintRange> range = {},
                                  CallSite site = CallSite::here()) const noexcept;
  HintReport prefetch(Place place, StreamRef stream, std::optional<HintRange> range = {},
                      CallSite site = CallSite::here()) const {
    return try_prefetch(place, stream, range, site).value();
  }
  /// Nobody needs the bytes any more: they count as never written, and pages need not move for
  /// them. Where the device cannot be told, only the former.
  Result<HintReport> try_discard(StreamRef stream, std::optional<HintRange> range = {},
                                 CallSite site = CallSite::here()) const noexcept;
  HintReport discard(StreamRef stream, std::optional<HintRange> range = {},
                     CallSite site = CallSite::here()) const {
    return try_discard(stream, range, site).value();
  }
  /// For memory that is written next at a place: its pages go there, empty. Where the device cannot
  /// discard it is a prefetch.
  Result<HintReport> try_discard_prefetch(Place place, StreamRef stream,
                                          std::optional<HintRange> range = {},
                                          CallSite site = CallSite::here()) const noexcept;
  HintReport discard_prefetch(Place place, StreamRef stream, std::optional<HintRange> range = {},
                              CallSite site = CallSite::here()) const {
    return try_discard_prefetch(place, stream, range, site).value();
  }

 private:
  friend class HintUndo;
  Hints(Buffer buffer, HintOptions options, std::nullptr_t) noexcept;

  /// The parts of a range between the edges of earlier hints, and what is in force for each.
  struct Part {
    HintRange range;
    ManagedInfo info;
  };
  [[nodiscard]] Result<std::vector<Part>> try_parts(HintRange range, CallSite site) const noexcept;
  [[nodiscard]] Result<HintRange> try_resolve(std::optional<HintRange> range,
                                              CallSite site) const noexcept;
  [[nodiscard]] Result<void> try_note_edges(HintRange range, CallSite site) const noexcept;
  /// What will be done about a range: whether the device can, and which pages it covers.
  [[nodiscard]] Result<HintReport> try_report(HintRange range, Capability wanted,
                                              CallSite site) const noexcept;
  [[nodiscard]] Result<void> try_tell(AdvicePair advice, HintRange range,
                                      CallSite site) const noexcept;
  [[nodiscard]] Result<HintReport> try_give_up(std::optional<Place> place, StreamRef stream,
                                               std::optional<HintRange> range,
                                               CallSite site) const noexcept;

  Buffer buffer_;
  HintOptions options_;
};

/// What was in force before a policy was applied, part by part. It restores that when it is told to
/// and does nothing by itself; undos of several levels are restored in the opposite order of their
/// applications. A value that holds the storage.
class TERN_EXPORT HintUndo {
 public:
  /// Why the driver was not told, and there is nothing to restore.
  [[nodiscard]] HintReport report() const noexcept { return report_; }

  /// What the policy had changed is as it was; all parts are tried, and the first refusal returned.
  Result<void> try_restore(CallSite site = CallSite::here()) const noexcept;
  void restore(CallSite site = CallSite::here()) const { try_restore(site).value(); }

 private:
  friend class Hints;
  HintUndo(Hints hints, std::vector<AdvicePair> told, std::vector<Hints::Part> before,
           HintReport report) noexcept;

  Hints hints_;
  std::vector<AdvicePair> told_;
  std::vector<Hints::Part> before_;
  HintReport report_;
};

}  // namespace tern
