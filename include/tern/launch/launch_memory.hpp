// LaunchMemory is memory that comes to where a launch needs it: what a unified buffer is to one.
//
// A launch asks in five steps, each for all of its arguments before the next: it claims the bytes,
// so that nobody else can use them in a way that collides; it has room made for all the memory that
// is missing on its device, so that what cannot fit together is refused before anything is
// displaced; it has that memory made; it has bytes brought there, in the order of its stream; and
// when it was submitted, or was not, it says so. A step that is refused undoes the ones before:
// nothing is claimed then, and what the memory holds is as it was. Launches of several such
// memories claim them in the order of their numbers.
//
// A launch looks at it for the length of its call, and whoever makes the argument keeps it that
// long. Thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tern/buffer/storage.hpp"
#include "tern/core/access.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/export.hpp"
#include "tern/core/result.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

/// Bytes [begin, end) that one launch uses in one way. Those of one launch do not overlap.
struct LaunchPart {
  std::size_t begin = 0, end = 0;
  Access access = Access::read;
  std::uint32_t claim = 0;  // for whoever gave it
  /// An argument reads it as it is, whatever others do there: it must have been written.
  bool is_input = false;
};

class TERN_EXPORT LaunchMemory {
 public:
  LaunchMemory() noexcept = default;
  LaunchMemory(const LaunchMemory&) = delete;
  LaunchMemory& operator=(const LaunchMemory&) = delete;

  [[nodiscard]] virtual std::uint64_t number() const noexcept = 0;
  /// All of them or none. Refused with access_conflict, never_written, invalid_view.
  [[nodiscard]] virtual Result<void> try_claim(std::span<LaunchPart> parts, StreamRef stream,
                                               CallSite site) noexcept = 0;
  /// What the stream's device has not yet for it, and who would give that. Refused as asking for
  /// the resource is.
  struct Missing {
    ResourceHandle from = {};
    std::size_t bytes = 0;
  };
  [[nodiscard]] virtual Result<Missing> try_missing(StreamRef stream, CallSite site) noexcept = 0;
  /// Room for so many bytes from where this one's would come: its own, and those of others that the
  /// launch has claimed. Refused with out_of_budget, before anything went, if they cannot fit.
  [[nodiscard]] virtual Result<void> try_make_room(std::size_t bytes, StreamRef stream,
                                                   CallSite site) noexcept = 0;
  /// The storage on the stream's device; `is_new` if it had none.
  [[nodiscard]] virtual Result<StorageHandle> try_make_ready(StreamRef stream, bool& is_new,
                                                             CallSite site) noexcept = 0;
  [[nodiscard]] virtual Result<void> try_bring(std::span<const LaunchPart> parts, StreamRef stream,
                                               CallSite site) noexcept = 0;
  /// The end of what was claimed. Not submitted, a storage that was new and has nothing goes again.
  virtual void finish(std::span<const LaunchPart> parts, StreamRef stream, bool is_submitted,
                      bool was_new) noexcept = 0;

 protected:
  ~LaunchMemory() = default;
};

}  // namespace tern
