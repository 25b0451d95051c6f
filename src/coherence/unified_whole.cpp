// The part of UnifiedCore that works on the whole buffer: drop, free, commit of exports, adopt,
// release, clone.

#include <algorithm>
#include <array>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "buffer/copy_route.hpp"
#include "coherence/copy_stream.hpp"
#include "coherence/unified_core.hpp"
#include "core/no_host_memory.hpp"
#include "launch/last_mark.hpp"
#include "tern/core/bytes.hpp"

namespace tern {
// --- Drop and free

Result<void> UnifiedCore::try_drop(Place where, Drop what, CallSite site) noexcept try {
  Wanted all{.range = everything, .site = site};
  ScopedClaim hold;
  if (Result<void> held = hold.try_claim(*this, all); !held) return held;
  all.range = {0, bytes()};
  const TransferLock mover(*this);
  std::optional<unsigned> place;
  // Returns a lease that uses the copy, or a claim that may use any copy.
  const auto find_user = [&] {
    return leases_.find_other(hold.slot(), [&](const Slot& lease) {
      return lease.place == *place || lease.place == LeaseTable::all_memories;
    });
  };
  {
    const std::lock_guard lock(mutex_);
    place = copies_.find(where);
    if (!place || !copies_.has_copy(*place)) return {};
    if (const Slot* const user = find_user()) return refused(*user, all);
  }
  if (*place == host && what == Drop::write_back) {
    if (Result<void> back = try_unspill(site); !back) return back;
  }
  if (what == Drop::write_back) {
    const std::vector<ByteRange> alone =
        ranges_where(all.range, [&](PlaceSet valid) { return valid == PlaceSet::of(*place); });
    if (!alone.empty()) {
      unsigned target = host;
      if (*place == host) {
        const Result<unsigned> device = try_place(options_.device, site);
        if (!device) return device.failure();
        target = *device;
      }
      NewCopy copy(*this, target, hold.slot());
      if (Result<void> there = try_ensure(target, {}, site); !there) return there;
      if (Result<void> saved = try_fetch({.range = all.range,
                                          .place = target,
                                          .reason = TransferReason::drop,
                                          .own = hold.slot(),
                                          .site = site,
                                          .parts = alone});
          !saved) {
        return saved;
      }
      copy.keep();
      // A device that shares the host's memory needs no copy to the host.
      if (target == host && copies_[*place].memory != host) note_sole_copy(alone, *place);
    }
  }
  StorageHandle gone;
  begin_transit(copies_[*place].memory);
  const std::lock_guard lock(mutex_);
  // A load of a few bytes does not take the transfer lock, and may have begun meanwhile.
  if (const Slot* const user = find_user()) return refused(*user, all);
  if (copies_[*place].memory != host) copies_.keep_sole_copies(PlaceSet::of(*place));
  copies_.directory().remove(0, bytes_, *place);
  gone = leave(*place);
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory("the directory of a unified buffer", site);
}

void UnifiedCore::leave_unused(unsigned place, std::uint32_t own) noexcept {
  if (!copies_.has_copy(place)) return;
  begin_transit(copies_[place].memory);
  StorageHandle gone;
  const std::lock_guard lock(mutex_);
  const auto uses_place = [&](const Slot& lease) { return lease.place == place; };
  if (leases_.find_other(own, uses_place) != nullptr) return;
  if (!spilled_.empty() && copies_[place].memory == host) return;
  if (copies_.directory().valid_somewhere(0, bytes()).has(place)) return;
  gone = leave(place);
}

StorageHandle UnifiedCore::leave(unsigned place) noexcept {
  // A device that shared the memory may have written bytes that have checksums.
  if (copies_[place].memory == host) checks_.forget({0, bytes()});
  return copies_.leave(place);
}

Result<void> UnifiedCore::try_free(bool keep_memory, CallSite site) noexcept {
  ScopedClaim hold;
  if (Result<void> held =
          hold.try_claim(*this, {.range = everything, .access = Access::discard, .site = site});
      !held) {
    return held;
  }
  const TransferLock mover(*this);
  forget_spilled();
  std::array<StorageHandle, PlaceSet::max_places> gone;  // destroyed after the lock is released
  begin_transits();
  const std::lock_guard lock(mutex_);
  copies_.directory().forget(0, bytes_);
  copies_.in_flight().clear();
  if (keep_memory) return {};
  for (std::size_t i = 0; i < copies_.memories().size(); ++i) {
    gone[i] = std::exchange(copies_.memory(i).storage, {});
    copies_.memory(i).parts = {};
  }
  return {};
}

// --- Exports, write-through

Result<void> UnifiedCore::try_commit_range(std::uint32_t slot, std::size_t offset,
                                           std::size_t bytes, StreamRef stream,
                                           CallSite site) noexcept {
  const std::lock_guard lock(mutex_);
  Slot& lease = leases_[slot];
  const std::size_t extent = lease.range.end - lease.range.begin;
  if (!is_within(offset, bytes, extent)) return outside(offset, bytes, extent, site);
  if (!is_write(lease.access)) {
    return Failure(ErrorCode::read_only,
                   "{what} is read-only, so there is nothing to commit. Export the buffer with "
                   "Access::read_write.",
                   site)
        .with("what", "an export for reading");
  }
  if (stream.id() && !stream.is_usable()) return Failure(stream.try_native().failure()).at(site);
  if (!copies_.make_room()) return no_host_memory("the directory of a unified buffer", site);
  Memory& memory = copies_.memory_of(lease.place);
  if (lease.place != host) {
    const StreamRef writer = stream.id() ? stream : lease.stream;
    if (Result<void> noted =
            memory.storage->uses().try_note(writer, last_mark(writer), Access::discard);
        !noted) {
      return Failure(noted.failure()).at(site);
    }
    memory.note_stream_use(Access::discard);
    // A deferred use of any stream does not cover this write, so it ends here.
    memory.deferred_use = {};  // another stream uses the memory now
  }
  leases_.clear_untracked_writer(lease);
  const std::size_t begin = lease.range.begin + offset;
  copies_.directory().apply(Access::discard, begin, begin + bytes, lease.place);
  return {};
}

Result<void> UnifiedCore::try_set_write_through(std::optional<Place> place,
                                                CallSite site) noexcept {
  const TransferLock mover(*this);
  std::optional<unsigned> target;
  if (place && place->is_host()) target = host;
  if (place && !place->is_host()) {
    if (*place == options_.device.place()) {
      const Result<unsigned> own = try_place(options_.device, site);
      if (!own) return own.failure();
      target = *own;
    } else {
      target = copies_.find(*place);
    }
    if (!target) {
      return Failure(ErrorCode::invalid_device,
                     "{spec} is not a place of buffer '{tag}', so writes cannot go through to it. "
                     "Prefetch the buffer to {spec} first.",
                     site)
          .with("spec", place->text())
          .with("tag", options_.tag.name());
    }
  }
  const std::lock_guard lock(mutex_);
  write_through_ = target;
  return {};
}

// --- Adopt, flush, release, clone

Result<void> UnifiedCore::try_adopt(StorageHandle storage) noexcept {
  if (bytes_ == 0) return {};
  if (Result<void> there = storage->try_ensure({}, options_.site); !there) return there;
  const TransferLock mover(*this);
  const std::lock_guard lock(mutex_);
  Memory& memory = copies_.memory(host);
  memory.set(std::move(storage));
  memory.parts = PlaceSet::of(host);
  copies_.directory().apply(Access::discard, 0, bytes_, host);
  return {};
}

Result<void> UnifiedCore::try_flush_host(CallSite site) noexcept try {
  const std::vector<ByteRange> written =
      ranges_where({0, bytes()}, [](PlaceSet valid) { return !valid.empty(); });
  for (const ByteRange& one : written) {
    const Result<RawLease> lease = try_open({.range = one, .site = site});
    if (!lease) return lease.failure();
  }
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory("the directory of a unified buffer", site);
}

Result<Buffer> UnifiedCore::try_release_host(CallSite site) noexcept try {
  if (Result<void> home = try_flush_host(site); !home) return home.failure();
  ScopedClaim hold;
  if (Result<void> held =
          hold.try_claim(*this, {.range = everything, .access = Access::discard, .site = site});
      !held) {
    return held.failure();
  }
  // In a buffer they would look as if they were there.
  if (Result<void> kept = check_written({0, bytes()}, Access::read_write, site); !kept) {
    return kept.failure();
  }
  const TransferLock mover(*this);
  if (Result<void> there = try_ensure(host, {}, site); !there) return there.failure();
  // Copies nothing, unless another thread wrote elsewhere after the flush.
  if (Result<void> home = try_fetch({.range = {0, bytes()},
                                     .place = host,
                                     .reason = TransferReason::host_read,
                                     .own = hold.slot(),
                                     .site = site});
      !home) {
    return home.failure();
  }
  Result<Buffer> buffer = Buffer::try_over(copies_.memory(host).storage, 0, shape_, dtype_, site);
  if (!buffer) return buffer;
  std::array<StorageHandle, PlaceSet::max_places> gone;
  begin_transits();
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < copies_.memories().size(); ++i) {
    gone[i] = std::exchange(copies_.memory(i).storage, {});
    copies_.memory(i).parts = {};
  }
  copies_.directory().forget(0, bytes_);
  copies_.in_flight().clear();
  return buffer;
} catch (const Error& error) {
  return Failure(error.failure()).at(site);  // no host memory for the shape
}

Result<RawUnified> UnifiedCore::try_clone(StreamRef stream, CallSite site) noexcept try {
  if (!stream.is_usable()) return Failure(stream.try_native().failure()).at(site);
  ScopedClaim hold;
  if (Result<void> held = hold.try_claim(*this, {.range = everything, .site = site}); !held) {
    return held.failure();
  }
  Result<RawUnified> made = RawUnified::try_make(shape(), dtype_, element_bytes_, options_);
  if (!made) return made;
  UnifiedCore& other = *made->core_;
  const TransferLock mover(*this);
  if (Result<void> back = try_unspill(site); !back) return back.failure();
  const TransferLock other_mover(other);
  const Result<unsigned> there = other.try_place(stream.device(), site);
  if (!there) return there.failure();
  const Result<unsigned> here = try_place(stream.device(), site);
  if (!here) return here.failure();
  // Planned for a place number that has no bytes, so that this buffer stays as it is.
  std::vector<CopyRun> runs;
  InFlightBytes lost;
  {
    const ByteRange all{0, bytes()};
    const CopyCosts costs = costs_at(*here, std::span(&all, 1));
    const std::lock_guard lock(mutex_);
    for (const Slot& lease : leases_.all()) {
      if (Result<void> noted = try_note_export(lease); !noted) return noted.failure();
    }
    static_cast<void>(copies_.directory().plan(0, bytes(), PlaceSet::max_places - 1, costs, runs));
    lost = copies_.in_flight().only_lost(bytes());
  }
  {
    const std::lock_guard lock(other.mutex_);
    other.copies_.in_flight() = std::move(lost);
  }
  if (runs.empty()) return made;
  if (Result<void> ready = other.try_ensure(*there, stream, site); !ready) return ready.failure();
  const StorageHandle to = other.copies_.memory_of(*there).storage;
  std::vector<Transfer> moves;
  for (const CopyRun& run : runs) {
    const StorageHandle from = copies_.memory_of(run.source).storage;
    // The host copy may be memory of a device that the stream cannot reach.
    const bool is_by_source = (is_host_memory(*to) && run.source != host && from != to) ||
                              !plan_copy(*to, *from, stream.device_id());
    Result<CopyStream> runner = CopyStream{{}, stream};
    if (is_by_source) runner = CopyStream::try_choose(from->device(), *from, Access::read);
    Result<void> queued = runner ? try_issue(std::span(&run, 1), to, from, runner->stream, site)
                                 : Result<void>(runner.failure());
    {
      const std::lock_guard lock(mutex_);
      copies_.memory_of(run.source).note_stream_use(Access::read);
    }
    if (!queued) {
      return sync_failed(run.source, *here, {run.begin, run.end}, queued.failure(), site);
    }
    moves.push_back({.from = copies_[run.source].place,
                     .to = copies_[*here].place,
                     .begin = run.begin,
                     .end = run.end,
                     .runs = 1,
                     .bytes = run.end - run.begin,
                     .reason = TransferReason::clone,
                     .site = site});
  }
  const std::lock_guard lock(other.mutex_);
  if (!other.copies_.make_room(runs.size()))
    return no_host_memory("the directory of a unified buffer", site);
  other.copies_.memory_of(*there).note_stream_use(Access::discard);
  if (other.copies_[*there].memory == host) {
    // Nobody else will have these bytes. If their source is lost before they arrive, they are lost
    // too.
    for (const CopyRun& run : runs) {
      other.copies_.in_flight().add_sole_copy(
          {.range = {run.begin, run.end},
           .stream_uses = other.copies_.memory_of(*there).stream_uses});
    }
  }
  for (const CopyRun& run : runs) {
    other.copies_.directory().apply(Access::discard, run.begin, run.end, *there);
  }
  for (const Transfer& moved : moves) other.log_.add(moved);
  return made;
} catch (const std::bad_alloc&) {
  return no_host_memory("the directory of a unified buffer", site);
}

}  // namespace tern
