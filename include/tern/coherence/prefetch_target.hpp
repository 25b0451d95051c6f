// A PrefetchTarget is memory whose bytes a plan can bring to a place: what it is, and how it goes.
//
// Managed memory goes by its pages, which a driver may take many at a time; other memory with
// copies of its own implements the interface and is asked one range after another. A target is
// shared by the entries that name it and keeps its memory. Its functions may be called from any
// thread.

#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "tern/buffer/buffer.hpp"
#include "tern/coherence/hints.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/export.hpp"
#include "tern/core/place.hpp"
#include "tern/core/result.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"

namespace tern {

class RawUnified;

class TERN_EXPORT PrefetchTarget {
 public:
  PrefetchTarget() = default;
  PrefetchTarget(const PrefetchTarget&) = delete;
  PrefetchTarget& operator=(const PrefetchTarget&) = delete;
  virtual ~PrefetchTarget();

  /// The same for targets that are one memory: ranges of them that touch may be joined.
  [[nodiscard]] virtual const void* identity() const noexcept = 0;
  [[nodiscard]] virtual std::size_t bytes() const noexcept = 0;
  /// Whose stream brings the bytes to the host.
  [[nodiscard]] virtual const Device& device() const noexcept = 0;
  /// "buffer 7".
  [[nodiscard]] virtual std::string text() const = 0;

  /// Can its bytes be there? Refused with invalid_device, device_mismatch.
  [[nodiscard]] virtual Result<void> check(Place place, CallSite site) const noexcept = 0;
  /// In stream order. Ranges are inside and not empty, and the place was checked.
  [[nodiscard]] virtual Result<HintReport> try_prefetch(HintRange range, Place place,
                                                        StreamRef stream, HintOptions options,
                                                        CallSite site) const noexcept = 0;
  /// All of the memory, if it is managed: then many ranges go at once, as pages.
  [[nodiscard]] virtual const Buffer* managed() const noexcept { return nullptr; }
};

/// The storage of a managed buffer or view, all of it. Refused with invalid_argument for other
/// memory, and with out_of_memory.
[[nodiscard]] TERN_EXPORT Result<std::shared_ptr<const PrefetchTarget>> try_managed_target(
    const Buffer& buffer, CallSite site = CallSite::here()) noexcept;
/// All of the unified buffer that a view is of: bytes go by copies, as a lease for reading would
/// bring them. Refused with not_allocated for none, and with out_of_memory.
[[nodiscard]] TERN_EXPORT Result<std::shared_ptr<const PrefetchTarget>> try_unified_target(
    const RawUnified& view, CallSite site = CallSite::here()) noexcept;

}  // namespace tern
