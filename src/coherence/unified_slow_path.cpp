// The part of UnifiedCore that opens leases on the slow path: bytes may have to move, and the host
// may have to wait for streams (try_wait_sources, try_settle_host). Also handles bytes that do not
// arrive. The caller has claimed the range (try_claim_range), so the lease conflicts with no other.

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "coherence/copy_stream.hpp"
#include "coherence/unified_core.hpp"
#include "core/no_host_memory.hpp"

namespace tern {
namespace {

TransferReason reason_of(const UnifiedCore::Wanted& wanted) noexcept {
  if (wanted.is_host) {
    return wanted.access == Access::read ? TransferReason::host_read : TransferReason::host_rw;
  }
  return wanted.access == Access::read ? TransferReason::device_read : TransferReason::device_rw;
}

}  // namespace

Result<void> UnifiedCore::check_written(ByteRange range, Access access,
                                        CallSite site) const noexcept {
  if (!needs_old_bytes(access)) return {};
  const std::lock_guard lock(mutex_);
  if (const ByteRange lost = copies_.in_flight().first_lost(range, copies_.directory());
      lost.begin != lost.end) {
    return Failure(ErrorCode::never_written,
                   "bytes {begin} to {end} of buffer '{tag}' were lost with a device, and not "
                   "written since. Write them with Access::discard first.",
                   site)
        .with("begin", lost.begin)
        .with("end", lost.end)
        .with("tag", options_.tag.name());
  }
  if (access != Access::read) return {};
  const ByteRange gap = copies_.directory().first_unwritten(range.begin, range.end);
  if (gap.begin == gap.end) return {};
  return Failure(ErrorCode::never_written,
                 "bytes {begin} to {end} of buffer '{tag}' were never written. Write them first.",
                 site)
      .with("begin", gap.begin)
      .with("end", gap.end)
      .with("tag", options_.tag.name());
}

Result<RawLease> UnifiedCore::try_open_device(std::uint32_t slot, const Wanted& wanted) noexcept {
  const auto& [range, access, kind, is_host, is_async, stream, wait, site] = wanted;
  if (Result<void> written = check_written(range, access, site); !written) {
    return written.failure();
  }
  const TransferLock mover(*this);
  const Result<unsigned> place = try_place(stream.device(), site);
  if (!place) return place.failure();
  NewCopy copy(*this, *place, slot);
  if (Result<void> there = try_ensure(*place, stream, site); !there) return there.failure();
  if (Result<void> sound = try_reconcile(*place, stream, slot, site); !sound) {
    return sound.failure();
  }
  if (needs_old_bytes(access)) {
    if (Result<void> fetched = try_fetch({range, *place, stream, reason_of(wanted), slot, site});
        !fetched) {
      return fetched.failure();
    }
  }
  const bool discards = access == Access::discard;
  if (is_checked_ && is_write(access) && !discards) {
    if (Result<void> spoilt = try_poison(*place, range, stream, site); !spoilt) {
      return spoilt.failure();
    }
  }
  UseRecord::Ticket ticket;
  if (Result<void> begun = try_begin_use(*place, stream, access, range, ticket, site); !begun) {
    return begun.failure();
  }
  {
    const std::lock_guard lock(mutex_);
    // Nothing was submitted yet, so the use can still be cancelled.
    if (is_write(access) && !copies_.make_room()) {
      copies_.memory_of(*place).storage->uses().cancel(ticket);
      return no_host_memory("the directory of a unified buffer", site);
    }
  }
  if (is_checked_ && discards) {
    // Last, because it overwrites bytes that are still up to date, and under the use of the lease.
    if (Result<void> spoilt = try_poison_discarded(*place, range, stream, site); !spoilt) {
      const std::lock_guard lock(mutex_);
      copies_.memory_of(*place).storage->uses().cancel(ticket);
      return spoilt.failure();
    }
  }
  const std::lock_guard lock(mutex_);
  Memory& memory = copies_.memory_of(*place);
  Slot& lease = leases_[slot];
  lease.set_place(*place);
  lease.ticket = ticket;
  lease.has_use = true;
  memory.note_stream_use(access);
  lease.stream_uses = memory.stream_uses;
  if (is_write(access)) copies_.directory().apply(access, range.begin, range.end, *place);
  lease.is_unlisted = !copies_.directory().is_valid(range.begin, range.end, *place);
  copy.keep();
  if (kind == Kind::exported && is_write(access)) begin_export(slot);
  return make_lease(slot);
}

Result<void> UnifiedCore::try_wait_sources(ByteRange range, Access access, CallSite site) noexcept {
  if (!needs_old_bytes(access)) return {};
  const FastPathBlocker pause(*this);
  struct CopySource {
    StorageHandle storage;
    unsigned place = 0;
    /// The smallest range around the bytes that this place has and the host lacks.
    ByteRange range = {};
  };
  std::array<CopySource, PlaceSet::max_places> sources;
  StorageHandle own;
  std::size_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    own = copies_.memory_of(host).storage;
    for (unsigned place = 1; place < copies_.count(); ++place) {
      // Bytes that the host has are not copied.
      ByteRange there;
      copies_.directory().visit(range.begin, range.end,
                                [&](std::size_t begin, std::size_t end, PlaceSet valid) {
                                  if (!valid.has(place) || valid.has(host)) return;
                                  there = {there.end == 0 ? begin : there.begin, end};
                                });
      const StorageHandle& storage = copies_.memory_of(place).storage;
      if (there.end != 0 && storage != own) sources[count++] = {storage, place, there};
    }
  }
  PlaceSet lost;
  for (std::size_t i = 0; i < count; ++i) {
    const CopySource& source = sources[i];
    const Result<void> ready = source.storage->uses().try_wait(Access::read, site);
    if (ready) continue;
    ByteRange what = source.range;
    const std::lock_guard lock(mutex_);
    if (ready.failure().code() == ErrorCode::device_lost) {
      // Bytes that other places have too are copied from there.
      lost = lost.with(source.place);
      what = copies_.only_in(lost, range);
      if (what.begin == what.end) continue;
    }
    return sync_failed(source.place, host, what, ready.failure(), site);
  }
  if (count == 0 || !own) return {};
  if (Result<void> ready = own->uses().try_wait(Access::discard, site); !ready) {
    if (ready.failure().code() != ErrorCode::device_lost) {
      const std::lock_guard lock(mutex_);
      return sync_failed(sources[0].place, host, range, ready.failure(), site);
    }
    // Reads by a lost device are over. Writes by it have not arrived.
    if (!own->uses().try_wait(Access::read, site)) {
      return try_wait_without_lost(*own, range, Access::discard, ready.failure(), site);
    }
    if (const std::unique_lock turn(transfer_mutex_, std::try_to_lock); turn) {
      own->uses().forget_lost();
    }
  }
  return {};
}

Result<RawLease> UnifiedCore::try_open_host(std::uint32_t slot, const Wanted& wanted) noexcept {
  const auto& [range, access, kind, is_host, is_async, stream, wait, site] = wanted;
  if (Result<void> written = check_written(range, access, site); !written) {
    return written.failure();
  }
  if (!is_async) {
    // The host waits here for everything the copies depend on, so that the copies need no stream of
    // their own.
    if (Result<void> ready = try_wait_sources(range, access, site); !ready) return ready.failure();
  }
  bool is_new = false;
  {
    const TransferLock mover(*this);
    is_new = !copies_.has_copy(host);
    NewCopy copy(*this, host, slot);
    if (Result<void> there = try_ensure(host, {}, site); !there) return there.failure();
    if (Result<void> sound = try_reconcile(host, {}, slot, site); !sound) return sound.failure();
    if (needs_old_bytes(access)) {
      if (Result<void> fetched = try_fetch({range, host, {}, reason_of(wanted), slot, site});
          !fetched) {
        return fetched.failure();
      }
    }
    // Set under the transfer lock, so that the next transfer knows it before this call has waited.
    const std::lock_guard lock(mutex_);
    leases_[slot].is_unlisted =
        !is_write(access) && !copies_.directory().is_valid(range.begin, range.end, host);
    copy.keep();
  }
  if (is_write(access)) checks_.forget(range);
  if (!is_async) {
    if (Result<void> ready = try_settle_host(slot, range, access, site); !ready) {
      const TransferLock mover(*this);
      if (is_new) leave_unused(host, slot);
      return ready.failure();
    }
  }
  const std::lock_guard lock(mutex_);
  if (kind == Kind::exported && is_write(access)) begin_export(slot);
  checks_.set_last_lease(site);
  return make_lease(slot);
}

Result<void> UnifiedCore::try_settle_host(std::uint32_t slot, ByteRange range, Access access,
                                          CallSite site) noexcept {
  // While the host inspects the uses and waits, other accesses use the slow path.
  const FastPathBlocker pause(*this);
  StorageHandle storage;
  std::uint64_t stream_uses = 0;
  bool is_clear = false;
  {
    const std::lock_guard lock(mutex_);
    Memory& memory = copies_.memory_of(host);
    storage = memory.storage;
    stream_uses = memory.stream_uses;
    is_clear = is_write(access) ? memory.is_write_clear : memory.is_read_clear;
    if (!is_clear) log_.count([](UnifiedStatistics& counts) { ++counts.host_waits; });
  }
  if (!is_clear) {
    if (Result<void> ready = storage->uses().try_wait(access, site); !ready) {
      ready = try_wait_without_lost(*storage, range, access, ready.failure(), site);
      if (!ready) return ready;
    }
  }
  const Result<StorageOrigin::Memory> memory = storage->try_memory();
  std::byte* const address = static_cast<std::byte*>(memory->host_address) + range.begin;
  const std::size_t bytes = range.end - range.begin;
  if (storage->device().info().wants_notes) {
    if (Result<void> noted = storage->device().try_note_host_access(address, bytes, access, site);
        !noted) {
      return noted;
    }
  }
  const std::lock_guard lock(mutex_);
  // Another access has found that these bytes did not arrive, and has forgotten the uses of the
  // lost device. The wait above therefore succeeded without the bytes.
  if (leases_[slot].is_missing) {
    return not_completed(PlaceSet::max_places, host, range, Failure(ErrorCode::device_lost), site);
  }
  if (is_write(access) && !copies_.make_room())
    return no_host_memory("the directory of a unified buffer", site);
  Memory& own = copies_.memory_of(host);
  copies_.note_arrived(stream_uses);
  // If a stream has begun another use meanwhile, the next access of the host has to wait again.
  if (own.stream_uses == stream_uses) {
    own.is_read_clear = true;
    if (is_write(access)) own.is_write_clear = true;
  }
  if (is_checked_ && is_write(access)) {
    copies_.directory().visit(
        range.begin, range.end, [&](std::size_t begin, std::size_t end, PlaceSet valid) {
          if (access == Access::discard || valid.empty()) {
            std::fill_n(address + (begin - range.begin), end - begin, std::byte{poison});
          }
        });
  }
  if (is_write(access)) copies_.directory().apply(access, range.begin, range.end, host);
  leases_[slot].place = host;
  return {};
}

Result<void> UnifiedCore::try_wait_host_copy(Storage& own, Access access, CallSite site) noexcept {
  Result<void> ready = own.uses().try_wait(access, site);
  if (ready || ready.failure().code() != ErrorCode::device_lost || !is_write(access)) return ready;
  // Reads by a lost device are over. Writes by it have not arrived.
  if (!own.uses().try_wait(Access::read, site)) return ready;
  const std::unique_lock turn(transfer_mutex_, std::try_to_lock);
  if (!turn) return ready;
  own.uses().forget_lost();
  return own.uses().try_wait(access, site);
}

Failure UnifiedCore::tell_not_arrived(Storage& storage, ByteRange range, const Failure& cause,
                                      CallSite site) noexcept {
  // A call that holds the transfer lock may have recorded copies that are not listed as in flight
  // yet. If their marks were forgotten, they would count as arrived. So marks are forgotten only
  // with the transfer lock; without it, the next access finds the lost device again.
  const std::unique_lock turn(transfer_mutex_, std::try_to_lock);
  // Devices are queried without mutex_.
  std::array<Device, PlaceSet::max_places> devices;
  unsigned count = 0;
  {
    const std::lock_guard lock(mutex_);
    for (; count < copies_.count(); ++count) devices[count] = copies_[count].device;
  }
  PlaceSet alive;
  for (unsigned place = host + 1; place < count; ++place) {
    if (!is_lost(devices[place])) alive = alive.with(place);
  }
  const Failure told = [&] {
    const std::lock_guard lock(mutex_);
    return not_arrived(range, alive, cause, site);
  }();
  // After not_arrived(): accesses that wait for the same bytes then see the slots it has marked.
  if (turn) storage.uses().forget_lost();
  return told;
}

Result<void> UnifiedCore::try_wait_without_lost(Storage& storage, ByteRange range, Access access,
                                                const Failure& cause, CallSite site) noexcept {
  bool is_concerned = cause.code() != ErrorCode::device_lost;
  if (!is_concerned) {
    const std::lock_guard lock(mutex_);
    is_concerned = copies_.in_flight().touches(range);
  }
  const Failure told = tell_not_arrived(storage, range, cause, site);
  if (is_concerned || !storage.uses().try_wait(access, site)) return told;
  return {};
}

Failure UnifiedCore::not_arrived(ByteRange range, PlaceSet alive, const Failure& cause,
                                 CallSite site) noexcept {
  const unsigned source = copies_.in_flight().source_of(range);
  const InFlightBytes::Outage outage{cause.code() == ErrorCode::device_lost, alive};
  const auto tell_readers = [&](ByteRange what) {
    for (Slot& lease : leases_.all()) {
      if (lease.place != host || !lease.overlaps(what)) continue;
      (outage.is_device_lost ? lease.is_missing : lease.is_unlisted) = true;
    }
  };
  const CopySet::Loss loss = copies_.drop_not_arrived(outage, tell_readers);
  if (loss.bytes == 0) return not_completed(source, host, range, cause, site);
  return Failure(ErrorCode::sync_failed,
                 "{lost} of bytes {begin} to {end} of buffer '{tag}' are lost: they were in flight "
                 "to the host when their copy on '{a}' was freed, and did not arrive ({cause}). "
                 "They count as never written. Write them again.",
                 site)
      .with("begin", loss.range.begin)
      .with("end", loss.range.end)
      .with_bytes("lost", loss.bytes)
      .with("cause_code", static_cast<std::uint64_t>(cause.code()))
      .with("direction", "to the host")
      .with("tag", options_.tag.name())
      .with("a", copies_.name_of(loss.source))
      .with("cause", name(cause.code()));
}

Result<void> UnifiedCore::try_wait_host(std::uint32_t slot, CallSite site) noexcept {
  ByteRange range;
  Access access;
  {
    const std::lock_guard lock(mutex_);
    range = leases_[slot].range;
    access = leases_[slot].access;
  }
  return try_settle_host(slot, range, access, site);
}

}  // namespace tern
