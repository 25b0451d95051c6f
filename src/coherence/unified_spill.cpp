// The part of UnifiedCore that keeps the host copy in a spill file while its memory is used
// elsewhere.
//
// The file stands in for the copy: the host takes part without memory, and the directory lists the
// host as up to date for the bytes in the file. An access that needs the memory or the bytes reads
// the file back first. It reads all of it, because a host copy has memory for all bytes or for
// none. SpilledCopy (spilled_copy.cpp) writes and reads the bytes.

#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "coherence/totals.hpp"
#include "coherence/unified_core.hpp"
#include "core/no_host_memory.hpp"

namespace tern {

Result<void> UnifiedCore::try_spill(StorageHandle& gone, CallSite site) noexcept try {
  const StorageHandle storage = copies_.memory(host).storage;
  const ByteRange all{0, bytes()};
  const PlaceSet own = copies_.memory(host).parts;  // the host, and devices that share its memory
  const std::vector<ByteRange> alone =
      ranges_where(all, [&](PlaceSet valid) { return !valid.empty() && (valid & own) == valid; });
  if (Result<void> ready = storage->uses().try_wait(Access::discard, site); !ready) {
    // The copy stays, so that the next access reports the failure.
    return Failure(ready.failure()).at(site);
  }
  Result<SpilledCopy> written = SpilledCopy::try_write(*options_.spill, *storage, alone, site);
  if (!written) return written.failure();
  const Transfer moved =
      written->transfer(TransferReason::spill, Place::host(), Place::file(), site);
  begin_transit(host);
  {
    const std::lock_guard lock(mutex_);
    if (!copies_.make_room(alone.size())) {
      return no_host_memory("the directory of a unified buffer", site);
    }
    for (PlaceSet rest = own; !rest.empty(); rest = rest.without(rest.first())) {
      copies_.directory().remove(0, bytes_, rest.first());
    }
    for (const ByteRange& one : alone) {
      copies_.directory().apply(Access::discard, one.begin, one.end, host);
    }
    copies_.memory(host).parts = PlaceSet::of(host);
    spilled_ = *std::move(written);
    gone = std::exchange(copies_.memory(host).storage, {});
    // The host has waited for all uses, so everything that was in flight has arrived.
    copies_.in_flight().note_all_arrived();
    log_.add(moved);
  }
  PressureTotals& totals = PressureTotals::instance();
  const std::lock_guard lock(totals.mutex);
  totals.statistics.spilled_bytes += moved.bytes;
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory("the directory of a unified buffer", site);
}

bool UnifiedCore::needs_spilled(ByteRange range, PlaceSet has) const noexcept {
  if (spilled_.empty()) return false;
  bool needs = false;
  copies_.directory().visit(range.begin, range.end, [&](std::size_t, std::size_t, PlaceSet valid) {
    needs |= valid.has(host) && (valid & has).empty();
  });
  return needs;
}

Result<void> UnifiedCore::try_unspill(CallSite site) noexcept {
  if (spilled_.empty()) return {};
  bool is_needed = false;
  {
    // A closing lease or a commit of an exported lease may change the directory without the
    // transfer lock.
    const std::lock_guard lock(mutex_);
    is_needed = needs_spilled({0, bytes()}, {});
  }
  if (!is_needed) {
    // All of the bytes were written elsewhere since.
    forget_spilled();
    return {};
  }
  Result<StorageHandle> made = try_make_memory(host, bytes_, {}, site);
  if (!made) return made.failure();
  Storage& storage = **made;
  if (Result<void> ready = storage.uses().try_wait(Access::discard, site); !ready) {
    return Failure(ready.failure()).at(site);
  }
  if (Result<void> read = spilled_.try_read(storage, options_.tag, site); !read) return read;
  const Transfer moved =
      spilled_.transfer(TransferReason::unspill, Place::file(), Place::host(), site);
  {
    const std::lock_guard lock(mutex_);
    Memory& memory = copies_.memory(host);
    memory.set(*std::move(made));
    memory.is_read_clear = memory.is_write_clear = true;
    memory.touch();
    spilled_.release();
    log_.add(moved);
  }
  PressureTotals& totals = PressureTotals::instance();
  const std::lock_guard lock(totals.mutex);
  totals.statistics.unspilled_bytes += moved.bytes;
  return {};
}

Result<void> UnifiedCore::try_let_others_end(CallSite site) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (transfer_locks_ == 0 && spilled_.empty()) return {};
  }
  const TransferLock mover(*this);
  return try_unspill(site);
}

void UnifiedCore::forget_spilled() noexcept {
  const std::lock_guard lock(mutex_);
  if (spilled_.empty()) return;
  spilled_.release();
  copies_.memory(host).parts = {};
}

}  // namespace tern
