// The part of UnifiedCore that loads and stores a few bytes, fills, prefetches, and records writes
// that were made without a lease.

#include <array>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <string>

#include "buffer/copy_route.hpp"
#include "buffer/sure_wait.hpp"
#include "coherence/copy_stream.hpp"
#include "coherence/unified_core.hpp"
#include "core/no_host_memory.hpp"
#include "device/request_checks.hpp"
#include "launch/last_mark.hpp"

namespace tern {

Result<void> UnifiedCore::try_exchange(unsigned place, ByteRange range, Access access, void* bytes,
                                       CallSite site, TransferReason reason) noexcept {
  const std::size_t count = range.end - range.begin;
  StorageHandle storage;
  {
    const std::lock_guard lock(mutex_);
    storage = copies_.memory_of(place).storage;
  }
  const auto failed = [&](const Failure& cause) {
    const bool is_read = access == Access::read;
    const std::lock_guard lock(mutex_);  // to read copies_
    return sync_failed(is_read ? place : host, is_read ? host : place, range, cause, site);
  };
  // The host waits for the earlier uses, so that the copy stream of the library does not have to.
  const bool is_by_host = is_host_memory(*storage) || storage->reach().host_writes;
  std::uint64_t stream_uses = 0;
  {
    const FastPathBlocker pause(*this);
    {
      const std::lock_guard lock(mutex_);
      stream_uses = copies_.memory_of(place).stream_uses;
    }
    if (Result<void> ready = is_by_host ? try_wait_host_copy(*storage, access, site)
                                        : storage->uses().try_wait(access, site);
        !ready) {
      return failed(ready.failure());
    }
  }
  if (is_by_host) {
    const TransferLock mover(*this);
    if (storage == copies_.memory(host).storage) {
      const std::lock_guard lock(mutex_);
      copies_.note_arrived(stream_uses);
    }
    std::byte* const address = address_for(*storage, {}) + range.begin;
    if (Result<void> noted = storage->device().try_note_host_access(address, count, access, site);
        !noted) {
      return noted;
    }
    if (access == Access::read) {
      std::memcpy(bytes, address, count);
    } else {
      if (is_checked_) checks_.forget(range);
      std::memcpy(address, bytes, count);
    }
    return {};
  }
  Mark mark;
  StreamRef on;
  {
    const TransferLock mover(*this);
    const Result<StreamRef> stream = storage->device().try_copy_stream();
    if (!stream) return failed(stream.failure());
    Result<StorageUse> use = storage->try_use(*stream, access, range.begin, count, site);
    if (!use) return failed(use.failure());
    std::byte* const address = address_for(*storage, stream->device_id()) + range.begin;
    Result<void> queued = access == Access::read ? stream->try_copy(bytes, address, count, site)
                                                 : stream->try_copy(address, bytes, count, site);
    on = *stream;
    mark = stream->next_mark();
    if (!queued) {
      static_cast<void>(
          try_wait_surely(on, mark, site));  // for the part that the driver may have begun
      return failed(queued.failure());
    }
    use->end();
    const std::lock_guard lock(mutex_);
    copies_.memory_of(place).note_stream_use(access);
    log_.add({.from = access == Access::read ? copies_[place].place : Place::host(),
              .to = access == Access::read ? Place::host() : copies_[place].place,
              .begin = range.begin,
              .end = range.end,
              .runs = 1,
              .bytes = count,
              .reason = reason,
              .site = site});
  }
  // The caller may reuse its bytes after the return, so the copy has to be done by then.
  if (const Result<void> done = try_wait_surely(on, mark, site); !done)
    return failed(done.failure());
  return {};
}

Result<void> UnifiedCore::try_load(ByteRange range, void* to, CallSite site) noexcept {
  if (Result<void> sound = check_before_access(range, site); !sound) return sound;
  PlaceSet everywhere;
  {
    ScopedClaim hold;
    if (Result<void> held = hold.try_claim(*this, {.range = range, .site = site}); !held) {
      return held;
    }
    if (Result<void> written = check_written(range, Access::read, site); !written) return written;
    if (Result<void> ended = try_let_others_end(site); !ended) return ended;
    bool has_untracked_writer = false;
    {
      const std::lock_guard lock(mutex_);
      everywhere = copies_.directory().valid_everywhere(range.begin, range.end);
      has_untracked_writer = leases_.has_untracked_writers();
      // The claim gets the place, so that nobody drops that copy meanwhile.
      if (!everywhere.empty()) {
        leases_[hold.slot()].set_place(everywhere.first());
      }
    }
    while (!everywhere.empty() && !has_untracked_writer) {
      const Result<void> loaded = try_exchange(everywhere.first(), range, Access::read, to, site);
      if (loaded || loaded.failure().number("cause_code") !=
                        static_cast<std::uint64_t>(ErrorCode::device_lost)) {
        return loaded;
      }
      // If the device is lost, another place may have the bytes, unless its copy was evicted
      // meanwhile.
      const std::lock_guard lock(mutex_);
      everywhere = everywhere.without(everywhere.first()) &
                   copies_.directory().valid_everywhere(range.begin, range.end);
      if (everywhere.empty()) return loaded;
      leases_[hold.slot()].set_place(everywhere.first());
    }
  }
  // No single place has all of the bytes, or an untracked writer may have changed them.
  const Result<RawLease> lease = try_open({.range = range, .site = site});
  if (!lease) return lease.failure();
  std::memcpy(to, lease->address(), range.end - range.begin);
  return {};
}

Result<void> UnifiedCore::try_store_everywhere(ByteRange range, const void* from, PlaceSet places,
                                               CallSite site) noexcept {
  // Writes one memory after the other. The host comes last, because it is least likely to fail.
  std::array<PlaceSet, PlaceSet::max_places> memories;
  {
    const std::lock_guard lock(mutex_);
    for (PlaceSet rest = places; !rest.empty(); rest = rest.without(rest.first())) {
      PlaceSet& sharing = memories[copies_[rest.first()].memory];
      sharing = sharing.with(rest.first());
    }
  }
  // All places that share a memory become stale together. Otherwise one of them would still count
  // as having the old value.
  const auto forget = [&](PlaceSet gone) {
    const std::lock_guard lock(mutex_);
    for (; !gone.empty(); gone = gone.without(gone.first())) {
      // If the host has no memory for the change, all bytes count as never written. A later read
      // then fails instead of returning a wrong value.
      if (!copies_.make_room()) {
        copies_.directory().forget(0, bytes_);
        return;
      }
      copies_.directory().remove(range.begin, range.end, gone.first());
    }
  };
  PlaceSet written;
  for (unsigned memory = PlaceSet::max_places; memory-- > 0;) {
    const PlaceSet sharing = memories[memory];
    if (sharing.empty()) continue;
    const Result<void> stored =
        try_exchange(sharing.first(), range, Access::read_write, const_cast<void*>(from), site);
    if (stored) {
      written = written | sharing;
      continue;
    }
    PlaceSet others = places;
    for (PlaceSet rest = sharing; !rest.empty(); rest = rest.without(rest.first())) {
      others = others.without(rest.first());
    }
    const bool is_lost =
        stored.failure().number("cause_code") == static_cast<std::uint64_t>(ErrorCode::device_lost);
    if (is_lost && memory != host && !others.empty()) {
      // The lost device becomes stale, because other places have the value.
      forget(sharing);
      places = others;
      continue;
    }
    const bool is_changed =
        stored.failure().number("cause_code") == static_cast<std::uint64_t>(ErrorCode::violation);
    // The copies that were written become stale, so that all others have the old value. A write
    // that failed with violation may have changed its copy too, so that copy also becomes stale if
    // another one is left.
    forget(is_changed && (written | sharing) != places ? written | sharing : written);
    return stored;
  }
  return {};
}

Result<void> UnifiedCore::try_store(ByteRange range, const void* from, CallSite site) noexcept {
  if (Result<void> sound = check_before_access(range, site); !sound) return sound;
  {
    ScopedClaim hold;
    if (Result<void> held =
            hold.try_claim(*this, {.range = range, .access = Access::read_write, .site = site});
        !held) {
      return held;
    }
    if (Result<void> ended = try_let_others_end(site); !ended) return ended;
    PlaceSet places, somewhere;
    {
      const std::lock_guard lock(mutex_);
      places = copies_.directory().valid_everywhere(range.begin, range.end);
      somewhere = copies_.directory().valid_somewhere(range.begin, range.end);
    }
    if (!places.empty() && places == somewhere) {
      return try_store_everywhere(range, from, places, site);
    }
  }
  Result<RawLease> lease = try_open({.range = range, .access = Access::discard, .site = site});
  if (!lease) return lease.failure();
  std::memcpy(lease->address(), from, range.end - range.begin);
  return {};
}

Result<void> UnifiedCore::try_fill(ByteRange range, const Pattern& pattern, StreamRef stream,
                                   CallSite site) noexcept {
  const std::size_t bytes = range.end - range.begin;
  if (Result<void> whole = check_pattern(pattern, bytes, site); !whole) return whole;
  if (bytes == 0) return {};
  unsigned place = host;
  {
    const std::lock_guard lock(mutex_);
    // Prefers a device that has any of the bytes, and of those the device of the stream.
    const PlaceSet devices =
        copies_.directory().valid_somewhere(range.begin, range.end).without(host);
    if (!devices.empty()) place = devices.first();
    const unsigned wanted = stream.id() ? copies_.find(stream.device_id()) : PlaceSet::max_places;
    if (wanted != PlaceSet::max_places && devices.has(wanted)) place = wanted;
  }
  if (place == host) {
    Result<RawLease> lease = try_open({.range = range, .access = Access::discard, .site = site});
    if (!lease) return lease.failure();
    std::byte* const first = static_cast<std::byte*>(lease->address());
    for (std::size_t at = 0; at < bytes; at += pattern.width_bytes) {
      std::memcpy(first + at, pattern.bytes, pattern.width_bytes);
    }
    return {};
  }
  if (Result<void> sound = check_before_access(range, site); !sound) return sound;
  ScopedClaim hold;
  if (Result<void> held =
          hold.try_claim(*this, {.range = range, .access = Access::discard, .site = site});
      !held) {
    return held;
  }
  if (Result<void> filled = try_fill_on(place, range, pattern, stream, site); !filled) {
    return filled;
  }
  const std::lock_guard lock(mutex_);
  leases_[hold.slot()].set_place(place);
  spread(hold.slot());
  return {};
}

Result<void> UnifiedCore::try_fill_on(unsigned place, ByteRange range, const Pattern& pattern,
                                      StreamRef stream, CallSite site) noexcept {
  const std::size_t bytes = range.end - range.begin;
  const TransferLock mover(*this);
  const bool is_own = stream.id() && stream.device_id() == copies_[place].place.device_id();
  // The copy may have been evicted since the place was chosen.
  if (Result<void> there = try_ensure(place, is_own ? stream : StreamRef{}, site); !there) {
    return there;
  }
  const StorageHandle storage = copies_.memory_of(place).storage;
  Result<CopyStream> runner = CopyStream{{}, stream};
  if (!is_own) {
    runner = CopyStream::try_choose(copies_[place].device, *storage, Access::discard);
    if (!runner) return Failure(runner.failure()).at(site);
  }
  const StreamRef on = runner->stream;
  Result<StorageUse> use =
      storage->try_use(on, Access::discard, range.begin, bytes, site, Storage::Streams::any_device);
  if (!use) return use.failure();
  {
    const std::lock_guard lock(mutex_);
    if (!copies_.make_room()) {
      return no_host_memory("the directory of a unified buffer", site);
    }
  }
  if (Result<void> noted =
          note_foreign_use(*storage, on, Access::discard, range.begin, bytes, site);
      !noted) {
    return noted;
  }
  if (Result<void> filled = on.try_fill_bytes(address_for(*storage, on.device_id()) + range.begin,
                                              bytes, pattern, site);
      !filled) {
    return filled;
  }
  use->end();
  const std::lock_guard lock(mutex_);
  copies_.memory_of(place).note_stream_use(Access::discard);
  if (copies_.make_room())
    copies_.directory().apply(Access::discard, range.begin, range.end, place);
  return {};
}

Result<void> UnifiedCore::try_prefetch(ByteRange range, const Device* device, StreamRef stream,
                                       Eviction most, CallSite site) noexcept {
  ScopedClaim hold;
  if (Result<void> held = hold.try_claim(*this, {.range = range, .site = site}); !held) return held;
  if (range.begin == range.end) return {};
  if (Result<void> written = check_written(range, Access::read, site); !written) return written;
  const TransferLock mover(*this);
  const Result<unsigned> place = device != nullptr ? try_place(*device, site) : Result(host);
  if (!place) return place.failure();
  NewCopy copy(*this, *place, hold.slot());
  if (Result<void> there = try_ensure(*place, stream, site, most); !there) return there;
  {
    const std::lock_guard lock(mutex_);
    copies_.memory_of(*place).touch();
  }
  Result<void> fetched =
      try_fetch({range, *place, stream, TransferReason::prefetch, hold.slot(), site});
  if (fetched) copy.keep();
  return fetched;
}

Result<void> UnifiedCore::try_mark_dirty(ByteRange range, Place where, StreamRef stream,
                                         CallSite site) noexcept {
  // A stream that has ended cannot be asked for its last mark. A stream that ends while this call
  // waits for the transfer lock can, because its next mark is requested here.
  if (stream.id() && !stream.next_mark()) return Failure(stream.try_native().failure()).at(site);
  ScopedClaim hold;
  if (Result<void> held =
          hold.try_claim(*this, {.range = range, .access = Access::read_write, .site = site});
      !held) {
    return held;
  }
  const TransferLock mover(*this);
  StreamRef writer = stream;
  {
    const std::lock_guard lock(mutex_);
    const std::optional<unsigned> place = copies_.find(where);
    if (!place || !copies_.has_copy(*place) || !copies_.memory_of(*place).storage) {
      return Failure(ErrorCode::not_allocated,
                     "buffer '{tag}' has no copy on {place}, so it cannot have been written on "
                     "{place}. Open a lease on {place} first.",
                     site)
          .with("id", std::uint64_t{0})
          .with("tag", options_.tag.name())
          .with("place", place ? std::string(copies_.name_of(*place)) : where.text());
    }
    ByteRange newer;
    PlaceSet holders;
    copies_.directory().visit(range.begin, range.end,
                              [&](std::size_t begin, std::size_t end, PlaceSet valid) {
                                if (valid.empty() || valid.has(*place) || newer.begin != newer.end)
                                  return;
                                newer = {begin, end};
                                holders = valid;
                              });
    if (newer.begin != newer.end) {
      return Failure(ErrorCode::coherence_conflict,
                     "bytes {begin} to {end} of buffer '{tag}' were written on '{place}', but "
                     "'{places}' has newer ones. Synchronize before the write, or drop one of the "
                     "copies.",
                     site)
          .with("begin", newer.begin)
          .with("end", newer.end)
          .with("tag", options_.tag.name())
          .with("place", copies_.name_of(*place))
          .with("places", copies_.name_of(holders.first()));
    }
    if (!copies_.make_room()) {
      return no_host_memory("the directory of a unified buffer", site);
    }
    Memory& memory = copies_.memory_of(*place);
    if (*place != host) {
      if (!writer.id()) writer = copies_[*place].device.default_stream();
      if (Result<void> noted =
              memory.storage->uses().try_note(writer, last_mark(writer), Access::discard);
          !noted) {
        return Failure(noted.failure()).at(site);
      }
      memory.note_stream_use(Access::discard);
    }
    copies_.directory().apply(Access::discard, range.begin, range.end, *place);
    if (*place == host) checks_.forget(range);
  }
  return {};
}

Result<void> UnifiedCore::try_synchronize(CallSite site) noexcept {
  const FastPathBlocker pause(*this);
  std::array<StorageHandle, PlaceSet::max_places> all;
  std::size_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    for (const Memory& memory : copies_.memories()) {
      if (memory.storage) all[count++] = memory.storage;
    }
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (Result<void> done = all[i]->uses().try_wait(Access::discard, site); !done) {
      return Failure(done.failure()).at(site);
    }
  }
  return {};
}

}  // namespace tern
