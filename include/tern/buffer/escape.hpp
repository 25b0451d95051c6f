// An Escape is memory in hands that Tern does not know: a tensor or a table that was exported.
//
// Whoever holds it may use it on streams nobody told us of, and lets go when the host is done, not
// when those streams are. So as long as an Escape lives, its storage lives, stays charged and keeps
// its address; and when the last one has ended, memory of a device goes back to its resource only
// behind a wait for everything the device had then: one that Tern makes anyway
// (Device::synchronize), one by reclaim_escaped(), one for want of memory, when an allocation would
// fail otherwise, one by an Escape that begins when a thousand are kept, or one with the device's
// last handle. Until then it is among the kept storages. Memory that was never exported pays
// nothing for this, and pageable memory of the host is free at once.
//
// Moves, does not copy. It may end on any thread, takes no lock that is held across foreign code,
// and never throws.

#pragma once

#include <cstddef>
#include <utility>

#include "tern/buffer/storage.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/export.hpp"
#include "tern/core/result.hpp"
#include "tern/device/device.hpp"

namespace tern {

class TERN_EXPORT Escape {
 public:
  /// Nothing.
  Escape() noexcept = default;
  Escape(Escape&&) noexcept = default;
  Escape& operator=(Escape&& other) noexcept {
    end();
    storage_ = std::move(other.storage_);
    return *this;
  }
  ~Escape() { end(); }

  /// Refused with not_allocated for no storage, with out_of_memory if the host has none.
  [[nodiscard]] static Result<Escape> try_begin(const StorageHandle& storage,
                                                CallSite site = CallSite::here()) noexcept;

  [[nodiscard]] const StorageHandle& storage() const noexcept { return storage_; }
  /// They have let go.
  void end() noexcept;

 private:
  StorageHandle storage_;
};

/// What is in foreign hands now.
struct EscapedCount {
  std::size_t escapes = 0;
  std::size_t bytes = 0;  // of their storages, each once, as they were when they went out
};
[[nodiscard]] TERN_EXPORT EscapedCount escaped_memory() noexcept;

/// Waits for everything the devices have whose memory escaped and was let go, and gives it back.
/// (It keeps its device open until then, as all memory does.)
TERN_EXPORT Result<KeptStorageCount> try_reclaim_escaped() noexcept;
inline KeptStorageCount reclaim_escaped(CallSite site = CallSite::here()) {
  return try_reclaim_escaped().value(site);
}

}  // namespace tern
