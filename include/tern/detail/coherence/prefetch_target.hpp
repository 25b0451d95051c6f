// Not part of the interface.
//
// A PrefetchTarget is memory that a PrefetchPlan can move to a place.
//
// Managed memory moves as pages, and a driver may accept many ranges in one call. Other memory
// implements this interface and is called for one range at a time. All entries of a plan that name
// the same memory may share one target. A target shares ownership of its memory. Its functions may
// be called from any thread.

#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "tern/buffer/buffer.hpp"
#include "tern/coherence/hints.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/place.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/core/visibility.hpp"
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

  /// Returns an address that is equal for all targets of the same memory. Plans join adjacent
  /// ranges of equal identity.
  [[nodiscard]] virtual const void* identity() const noexcept = 0;
  [[nodiscard]] virtual std::size_t bytes() const noexcept = 0;
  /// Returns the device whose stream moves the bytes to the host.
  [[nodiscard]] virtual const Device& device() const noexcept = 0;
  /// Returns a name such as "buffer 7".
  [[nodiscard]] virtual std::string text() const = 0;

  /// Checks whether the bytes can be in this place. Fails with invalid_device or device_mismatch.
  [[nodiscard]] virtual Result<void> check(Place place, CallSite site) const noexcept = 0;
  /// Moves the range in stream order. The range is inside of the memory and not empty, and the
  /// place was checked.
  [[nodiscard]] virtual Result<HintReport> try_prefetch(HintRange range, Place place,
                                                        StreamRef stream, HintOptions options,
                                                        CallSite site) const noexcept = 0;
  /// Returns the whole memory if it is managed; a plan then sends many ranges at once. Else returns
  /// null.
  [[nodiscard]] virtual const Buffer* managed() const noexcept { return nullptr; }
};

/// Returns a target of the whole storage of a managed buffer or view. Fails with invalid_argument
/// for other memory, and with out_of_memory.
[[nodiscard]] TERN_EXPORT Result<std::shared_ptr<const PrefetchTarget>> try_managed_target(
    const Buffer& buffer, CallSite site = CallSite::here()) noexcept;
/// Returns a target of the whole unified buffer that `view` belongs to. Its bytes move by copies,
/// as a read lease would copy them. Fails with not_allocated for an empty handle, and with
/// out_of_memory.
[[nodiscard]] TERN_EXPORT Result<std::shared_ptr<const PrefetchTarget>> try_unified_target(
    const RawUnified& view, CallSite site = CallSite::here()) noexcept;

/// One entry of a PrefetchPlan, or several consecutive entries that were joined.
struct PrefetchEntry {
  std::shared_ptr<const PrefetchTarget> target;
  HintRange range = {};  // in bytes of the target
  Place place = {};
  /// The position of the first joined entry, in the order of adding.
  std::size_t index = 0;
  std::size_t count = 1;  // number of joined entries
  CallSite site = {};     // where the first joined entry was added

  /// Returns a text such as "bytes [0, 4096) of buffer 7 to device 1".
  [[nodiscard]] TERN_EXPORT std::string text() const;
};

}  // namespace tern
