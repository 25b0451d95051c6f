// The part of UnifiedCore that opens and closes leases.

#include "coherence/unified_core.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <new>
#include <utility>

#include "core/no_host_memory.hpp"
#include "core/thread_number.hpp"
#include "device/device_state.hpp"
#include "launch/last_mark.hpp"
#include "tern/core/bytes.hpp"

namespace tern {
namespace {

std::uint64_t next_number() noexcept {
  static constinit std::atomic<std::uint64_t> last = 0;
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

TransferReason reason_of(const UnifiedCore::Wanted& wanted) noexcept {
  if (wanted.is_host) {
    return wanted.access == Access::read ? TransferReason::host_read : TransferReason::host_rw;
  }
  return wanted.access == Access::read ? TransferReason::device_read : TransferReason::device_rw;
}

}  // namespace

UnifiedCore::UnifiedCore(Shape shape, DType dtype, std::size_t element_bytes, std::size_t bytes,
                         const UnifiedOptions& options)
    : is_watched_(options.checked.value_or(false) || options.guard || options.compare),
      is_checked_(options.checked.value_or(false)),
      bytes_(bytes),
      validity_(bytes),
      shape_(std::move(shape)),
      number_(next_number()),
      options_(options),
      dtype_(dtype),
      element_bytes_(element_bytes) {
  places_.reserve(2);
  memories_.reserve(2);
  slots_.reserve(8);
  places_.push_back({});
  memories_.emplace_back();
  // If a device shares the host's memory, the host copy is memory of that device.
  const Device& device = options_.device;
  const Place place = !device.info().is_host && is_shared(device) ? device.place() : Place::host();
  memories_[host].set_resident(
      std::make_unique<Resident>(Residents::of(place), this, unsigned{host}));
}

UnifiedCore::~UnifiedCore() {
  begin_transits();
  // Removed from all lists before anything is freed, so that a visitor finds a complete buffer or
  // none.
  for (Memory& memory : memories_) {
    if (memory.resident) memory.resident->leave();
  }
  forget_spilled();
  for (Memory& memory : memories_) memory.storage = {};
  for (; !transits_.empty();) end_transit(transits_.first());
}

void UnifiedCore::retain() noexcept {
  const std::lock_guard lock(mutex_);
  ++shares_;
}

void UnifiedCore::release() noexcept {
  mutex_.lock();
  const bool is_last = --shares_ == 0 && open_count_ == 0;
  mutex_.unlock();
  if (is_last) delete this;
}

// --- The leases that are open

// A write conflicts with every overlapping lease. A writing escape that was granted lets others
// read.
bool UnifiedCore::collides(const Open& open, ByteRange range, Access access) noexcept {
  if (!open.is_open || !open.overlaps(range)) return false;
  return is_write(access) || (is_write(open.access) && open.kind != Kind::escape);
}

const UnifiedCore::Open* UnifiedCore::conflict(ByteRange range, Access access) const noexcept {
  if (open_count_ == 0) [[likely]]
    return nullptr;
  for (const Open& open : slots_) {
    if (collides(open, range, access)) return &open;
  }
  return nullptr;
}

std::uint32_t UnifiedCore::take_slot(ByteRange range, Access access, Kind kind, unsigned place,
                                     StreamRef stream, const CallSite& site) noexcept {
  if (first_free_ == 0 && !add_slot()) return no_lease;
  const std::uint32_t number = first_free_ - 1;
  begin_slot(number, range, access, kind, place, stream, this_thread(), site);
  return number;
}

bool UnifiedCore::add_slot() noexcept {
  try {
    slots_.emplace_back();
  } catch (const std::bad_alloc&) {
    return false;
  }
  first_free_ = static_cast<std::uint32_t>(slots_.size());
  return true;
}

void UnifiedCore::free_slot(std::uint32_t slot) noexcept {
  Open& open = slots_[slot];
  if (open.has_untracked_writer) --untracked_writers_;
  open.is_open = false;
  open.next_free = std::exchange(first_free_, slot + 1);
  --open_count_;
}

Failure UnifiedCore::refused(const Open& open, const Wanted& wanted) const noexcept {
  return Failure(ErrorCode::access_conflict,
                 "bytes {begin} to {end} of buffer '{tag}' are wanted at {b_file}:{b_line} while "
                 "the lease of {a_file}:{a_line} is open. Close that one first.",
                 wanted.site)
      .with("begin", std::max(open.begin, wanted.range.begin))
      .with("end", std::min({open.end, wanted.range.end, bytes()}))
      .with("a_line", open.site.line)
      .with("b_line", wanted.site.line)
      .with("tag", options_.tag.name())
      .with("a_file", open.site.file)
      .with("b_file", wanted.site.file);
}

Result<std::uint32_t> UnifiedCore::try_take(const Wanted& wanted, unsigned place) noexcept {
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> deadline;
  if (!wanted.wait.is_never() && !wanted.wait.is_forever()) {
    const Clock::time_point now = Clock::now();
    // If the deadline is beyond the range of the clock, wait forever.
    const std::chrono::nanoseconds time(wanted.wait.nanoseconds());
    if (time < Clock::time_point::max() - now) deadline = now + time;
  }
  for (bool is_over = false;;) {
    std::uint64_t closes = 0;
    {
      const std::lock_guard lock(mutex_);
      if (wanted.range.end > bytes_ && wanted.range.end != everything.end) {
        return outside(wanted.range.begin, wanted.range.end - wanted.range.begin, bytes_,
                       wanted.site);
      }
      const Open* const other = conflict(wanted.range, wanted.access);
      if (other == nullptr) {
        // An escape for writing conflicts with readers until it is granted: before that,
        // try_fetch() would not know that their bytes have to be copied again. begin_export() then
        // lets readers in.
        const Kind kind = is_write(wanted.access) ? Kind::lease : wanted.kind;
        const std::uint32_t slot =
            take_slot(wanted.range, wanted.access, kind, place, wanted.stream, wanted.site);
        if (slot == no_lease) {
          return no_host_memory("the directory of a unified buffer", wanted.site);
        }
        return slot;
      }
      if (wanted.wait.is_never() || is_over) return refused(*other, wanted);
      // The first conflict belongs to another thread, but a later one may belong to this thread.
      for (const Open& open : slots_) {
        if (open.thread == this_thread() && collides(open, wanted.range, wanted.access)) {
          return refused(open, wanted);
        }
      }
      closes = closes_;
      ++waiters_;
    }
    {
      std::unique_lock lock(wait_mutex_);
      const auto has_closed = [&] {
        const std::lock_guard brief(mutex_);
        return closes_ != closes;
      };
      if (deadline) {
        is_over = !closed_.wait_until(lock, *deadline, has_closed);
      } else {
        closed_.wait(lock, has_closed);
      }
    }
    const std::lock_guard lock(mutex_);
    --waiters_;
  }
}

[[gnu::noinline]] void UnifiedCore::notify() noexcept {
  ++closes_;
  ++shares_;  // a woken thread may drop the last other reference a moment later
  mutex_.unlock();
  { const std::lock_guard lock(wait_mutex_); }
  closed_.notify_all();
  mutex_.lock();
  --shares_;
}

void UnifiedCore::cancel(std::uint32_t slot) noexcept {
  mutex_.lock();
  free_slot(slot);
  if (waiters_ != 0) notify();
  const bool is_last = shares_ == 0 && open_count_ == 0;
  mutex_.unlock();
  if (is_last) delete this;
}

// --- Opening

std::optional<unsigned> UnifiedCore::find(Place place) const noexcept {
  if (place.is_host()) return host;
  const unsigned found = find_place(place.device_id());
  if (found == PlaceSet::max_places) return std::nullopt;
  return found;
}

void UnifiedCore::note_stream_use(Memory& memory, Access access) noexcept {
  ++memory.stream_uses;
  memory.is_write_clear = false;
  if (is_write(access)) memory.is_read_clear = false;
}

void UnifiedCore::Memory::set(StorageHandle made) noexcept {
  storage = std::move(made);
  address = storage->first_byte();
  device = storage->device().id();
  wants_notes = storage->device().info().wants_notes;
  // A pool may return memory that is still in flight.
  is_read_clear = is_write_clear = false;
  ++stream_uses;
  deferred_use = {};
}

bool UnifiedCore::is_ready_at(unsigned place, const Memory& memory, ByteRange range,
                              Access access) noexcept {
  // A transfer may change the directory, and an escape may change bytes, at any time.
  if (is_watched_ || (transfer_locks_ | untracked_writers_) != 0 || !memory.parts.has(place))
    return false;
  if (place == host && !spilled_.empty()) return false;
  if (access == Access::read) [[likely]]
    return validity_.is_valid(range.begin, range.end, place);
  if (validity_.is_only(range.begin, range.end, place)) return true;
  if (access == Access::read_write && !validity_.is_valid(range.begin, range.end, place)) {
    return false;
  }
  return validity_.size() < max_intervals && make_room();
}

void UnifiedCore::note_write(unsigned place, ByteRange range, Access access) noexcept {
  // If the write changes nothing, is_ready_at() has not reserved room for it.
  if (is_write(access) && !validity_.is_only(range.begin, range.end, place)) {
    validity_.apply(access, range.begin, range.end, place);
  }
}

UnifiedCore::Opened UnifiedCore::open_host_no_wait(ByteRange range, Access access,
                                                   const CallSite& site) noexcept {
  const std::lock_guard lock(mutex_);
  Memory& memory = memories_[host];
  if (range.end > bytes() || range.begin == range.end || conflict(range, access) != nullptr ||
      !is_ready_at(host, memory, range, access)) {
    return {};
  }
  const bool is_clear = is_write(access) ? memory.is_write_clear : memory.is_read_clear;
  // The slow path waits for streams, and tells the checker about accesses of the host.
  if (!is_clear || memory.wants_notes) return {};
  const std::uint32_t slot = take_slot(range, access, Kind::lease, host, {}, site);
  if (slot == no_lease) return {};
  note_write(host, range, access);
  memory.touch();
  return {memory.address + range.begin, slot};
}

UnifiedCore::Opened UnifiedCore::open_device_no_wait(ByteRange range, Access access,
                                                     StreamRef stream,
                                                     const CallSite& site) noexcept {
  if (!stream.is_usable()) return {};
  const std::lock_guard lock(mutex_);
  const unsigned place = find_place(stream.device_id());
  if (place == PlaceSet::max_places || range.end > bytes() || range.begin == range.end ||
      conflict(range, access) != nullptr) {
    return {};
  }
  Memory& memory = memory_of(place);
  if (!is_ready_at(place, memory, range, access)) return {};
  const bool is_deferred =
      memory.deferred_use == stream.id() && (memory.deferred_use_writes || !is_write(access));
  UseRecord::Ticket ticket;
  if (!is_deferred && !begin_without_waits(memory, access, stream, ticket, site)) return {};
  const std::uint32_t slot = take_slot(range, access, Kind::lease, place, stream, site);
  if (slot == no_lease) {
    if (!is_deferred) memory.storage->uses().cancel(ticket);
    return {};
  }
  Open& open = slots_[slot];
  if (is_deferred) {
    open.is_deferred = true;
  } else {
    open.ticket = ticket;
    open.has_use = true;
    note_stream_use(memory, access);
    open.stream_uses = memory.stream_uses;
  }
  note_write(place, range, access);
  memory.touch();
  return {memory.address + range.begin, slot};
}

RawLease UnifiedCore::lease_of(const Opened& opened, ByteRange range, Access access) noexcept {
  return {this, opened.address, range.end - range.begin, opened.slot,
          access == Access::discard ? std::uncaught_exceptions() : RawLease::no_discard};
}

[[gnu::noinline]] bool UnifiedCore::begin_without_waits(Memory& memory, Access access,
                                                        StreamRef stream, UseRecord::Ticket& ticket,
                                                        const CallSite& site) noexcept {
  // A device that shares the memory of another device needs the slow path.
  if (memory.device != stream.device_id()) return false;
  memory.deferred_use = {};
  MarkSet waits;
  UseRecord& uses = memory.storage->uses();
  const Result<UseRecord::Ticket> begun =
      uses.try_begin(stream, access, waits, UseRecord::Turn::none, site);
  if (!begun) return false;
  if (!waits.all().empty()) {
    uses.cancel(*begun);
    return false;
  }
  ticket = *begun;
  return true;
}

void UnifiedCore::begin_export(std::uint32_t slot) noexcept {
  Open& open = slots_[slot];
  open.kind = Kind::escape;
  open.has_untracked_writer = true;
  ++untracked_writers_;
  if (waiters_ != 0) notify();
}

RawLease UnifiedCore::lease(std::uint32_t slot) noexcept {
  const Open& open = slots_[slot];
  Memory& memory = memory_of(open.place);
  memory.touch();
  return lease_of({memory.address + open.begin, slot}, {open.begin, open.end}, open.access);
}

Result<RawLease> UnifiedCore::try_open(const Wanted& wanted) noexcept {
  const auto& [range, access, kind, is_host, is_async, stream, wait, site] = wanted;
  if (!is_host && !stream.is_usable()) return Failure(stream.try_native().failure()).at(site);
  if (kind == Kind::lease) {
    const Opened opened = is_host ? open_host_no_wait(range, access, site)
                                  : open_device_no_wait(range, access, stream, site);
    if (opened) return lease_of(opened, range, access);
  }
  unsigned place = host;
  {
    const std::lock_guard lock(mutex_);
    if (range.end > bytes_) {
      return outside(range.begin, range.end - range.begin, bytes_, site);
    }
    if (range.begin == range.end) return RawLease();
    if (!is_host) place = find_place(stream.device_id());
  }
  if (Result<void> sound = check_before_access(range, site); !sound) return sound.failure();
  return wait.is_never() ? try_open_once(wanted, place) : try_open_with_time(wanted, place);
}

Result<RawLease> UnifiedCore::try_open_once(const Wanted& wanted, unsigned place) noexcept {
  const Result<std::uint32_t> slot = try_take(wanted, place == PlaceSet::max_places ? 0 : place);
  if (!slot) return slot.failure();
  if (options_.compare && wanted.access == Access::read) {
    if (Result<void> same = try_compare(wanted.range, wanted.site); !same) {
      cancel(*slot);
      return same.failure();
    }
  }
  Result<RawLease> opened =
      wanted.is_host ? try_open_host(*slot, wanted) : try_open_device(*slot, wanted);
  if (!opened) cancel(*slot);
  return opened;
}

// Not inlined, so that the fastest path needs no stack frame for these cases.
[[gnu::noinline]] RawLease RawUnified::open_host_fully(Access access, LeaseWait wait,
                                                       const CallSite& site) const {
  if (core_ != nullptr) {
    const ByteRange all = range();
    const UnifiedCore::Opened opened = core_->open_host_no_wait(all, access, site);
    if (opened) return core_->lease_of(opened, all, access);
  }
  return try_host(access, wait, site).value();
}

[[gnu::noinline]] RawLease RawUnified::open_device_fully(Access access, StreamRef stream,
                                                         LeaseWait wait,
                                                         const CallSite& site) const {
  if (core_ != nullptr) {
    const ByteRange all = range();
    const UnifiedCore::Opened opened = core_->open_device_no_wait(all, access, stream, site);
    if (opened) return core_->lease_of(opened, all, access);
  }
  return try_device(access, stream, wait, site).value();
}

// --- Opening on the slow path

ByteRange UnifiedCore::first_lost(ByteRange range) const noexcept {
  for (const InFlight& one : in_flight_sole_copies_) {
    if (!one.is_lost) continue;
    const ByteRange gap = validity_.first_unwritten(std::max(range.begin, one.range.begin),
                                                    std::min(range.end, one.range.end));
    if (gap.begin != gap.end) return gap;
  }
  return {};
}

Result<void> UnifiedCore::check_written(ByteRange range, Access access,
                                        CallSite site) const noexcept {
  if (!needs_old_bytes(access)) return {};
  const std::lock_guard lock(mutex_);
  if (const ByteRange lost = first_lost(range); lost.begin != lost.end) {
    return Failure(ErrorCode::never_written,
                   "bytes {begin} to {end} of buffer '{tag}' were lost with a device, and not "
                   "written since. Write them first, without reading them.",
                   site)
        .with("begin", lost.begin)
        .with("end", lost.end)
        .with("tag", options_.tag.name());
  }
  if (access != Access::read) return {};
  const ByteRange gap = validity_.first_unwritten(range.begin, range.end);
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
  if (is_checked_ && is_write(access)) {
    const bool all = access == Access::discard;
    if (Result<void> spoilt = try_poison(*place, range, all, stream, site); !spoilt) {
      return spoilt.failure();
    }
  }
  UseRecord::Ticket ticket;
  if (Result<void> begun = try_begin_use(*place, stream, access, range, ticket, site); !begun) {
    return begun.failure();
  }
  const std::lock_guard lock(mutex_);
  Memory& memory = memory_of(*place);
  // Nothing was submitted yet, so the use can still be cancelled.
  if (is_write(access) && !make_room()) {
    memory.storage->uses().cancel(ticket);
    return no_host_memory("the directory of a unified buffer", site);
  }
  Open& open = slots_[slot];
  open.place = static_cast<std::uint8_t>(*place);
  open.ticket = ticket;
  open.has_use = true;
  note_stream_use(memory, access);
  open.stream_uses = memory.stream_uses;
  if (is_write(access)) validity_.apply(access, range.begin, range.end, *place);
  open.is_unlisted = !validity_.is_valid(range.begin, range.end, *place);
  copy.keep();
  if (kind == Kind::escape && is_write(access)) begin_export(slot);
  return lease(slot);
}

Result<void> UnifiedCore::try_wait_sources(ByteRange range, Access access, CallSite site) noexcept {
  if (!needs_old_bytes(access)) return {};
  const FastPathBlocker pause(*this);
  struct Holder {
    StorageHandle storage;
    unsigned place = 0;
    /// The smallest range around the bytes that this place has and the host lacks.
    ByteRange range = {};
  };
  std::array<Holder, PlaceSet::max_places> sources;
  StorageHandle own;
  std::size_t count = 0;
  {
    const std::lock_guard lock(mutex_);
    own = memory_of(host).storage;
    for (unsigned place = 1; place < places_.size(); ++place) {
      // Bytes that the host has are not copied.
      ByteRange there;
      validity_.visit(range.begin, range.end,
                      [&](std::size_t begin, std::size_t end, PlaceSet valid) {
                        if (!valid.has(place) || valid.has(host)) return;
                        there = {there.end == 0 ? begin : there.begin, end};
                      });
      const StorageHandle& storage = memory_of(place).storage;
      if (there.end != 0 && storage != own) sources[count++] = {storage, place, there};
    }
  }
  PlaceSet lost;
  for (std::size_t i = 0; i < count; ++i) {
    const Holder& source = sources[i];
    const Result<void> ready = source.storage->uses().try_wait(Access::read);
    if (ready) continue;
    ByteRange what = source.range;
    const std::lock_guard lock(mutex_);
    if (ready.failure().code() == ErrorCode::device_lost) {
      // Bytes that other places have too are copied from there.
      lost = lost.with(source.place);
      what = only_in(lost, range);
      if (what.begin == what.end) continue;
    }
    return sync_failed(source.place, host, what, ready.failure(), site);
  }
  if (count == 0 || !own) return {};
  if (Result<void> ready = own->uses().try_wait(Access::discard); !ready) {
    if (ready.failure().code() != ErrorCode::device_lost) {
      const std::lock_guard lock(mutex_);
      return sync_failed(sources[0].place, host, range, ready.failure(), site);
    }
    // Reads by a lost device are over. Writes by it have not arrived.
    if (!own->uses().try_wait(Access::read)) {
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
    is_new = !takes_part(host);
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
    slots_[slot].is_unlisted =
        !is_write(access) && !validity_.is_valid(range.begin, range.end, host);
    copy.keep();
  }
  if (is_write(access)) seal_.forget(range);
  if (!is_async) {
    if (Result<void> ready = try_settle_host(slot, range, access, site); !ready) {
      const TransferLock mover(*this);
      if (is_new) leave_unused(host, slot);
      return ready.failure();
    }
  }
  const std::lock_guard lock(mutex_);
  if (kind == Kind::escape && is_write(access)) begin_export(slot);
  last_host_lease_ = site;
  return lease(slot);
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
    Memory& memory = memory_of(host);
    storage = memory.storage;
    stream_uses = memory.stream_uses;
    is_clear = is_write(access) ? memory.is_write_clear : memory.is_read_clear;
    if (!is_clear) ++statistics_.host_waits;
  }
  if (!is_clear) {
    if (Result<void> ready = storage->uses().try_wait(access); !ready) {
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
  if (slots_[slot].is_missing) {
    return not_completed(PlaceSet::max_places, host, range, Failure(ErrorCode::device_lost), site);
  }
  if (is_write(access) && !make_room())
    return no_host_memory("the directory of a unified buffer", site);
  Memory& own = memory_of(host);
  note_arrived(stream_uses);
  // If a stream has begun another use meanwhile, the next access of the host has to wait again.
  if (own.stream_uses == stream_uses) {
    own.is_read_clear = true;
    if (is_write(access)) own.is_write_clear = true;
  }
  if (is_checked_ && is_write(access)) {
    validity_.visit(
        range.begin, range.end, [&](std::size_t begin, std::size_t end, PlaceSet valid) {
          if (access == Access::discard || valid.empty()) {
            std::fill_n(address + (begin - range.begin), end - begin, std::byte{poison});
          }
        });
  }
  if (is_write(access)) validity_.apply(access, range.begin, range.end, host);
  slots_[slot].place = host;
  return {};
}

Result<void> UnifiedCore::try_wait_host_copy(Storage& own, Access access) noexcept {
  Result<void> ready = own.uses().try_wait(access);
  if (ready || ready.failure().code() != ErrorCode::device_lost || !is_write(access)) return ready;
  // Reads by a lost device are over. Writes by it have not arrived.
  if (!own.uses().try_wait(Access::read)) return ready;
  const std::unique_lock turn(transfer_mutex_, std::try_to_lock);
  if (!turn) return ready;
  own.uses().forget_lost();
  return own.uses().try_wait(access);
}

void UnifiedCore::note_arrived(std::uint64_t stream_uses) noexcept {
  const auto has_arrived = [&](const InFlight& one) { return one.stream_uses <= stream_uses; };
  if (unwaited_uses_ <= stream_uses) unwaited_uses_ = 0;
  std::erase_if(in_flight_, has_arrived);
  std::erase_if(in_flight_sole_copies_, [&](const InFlight& one) {
    if (!one.is_lost) return has_arrived(one);
    const ByteRange left = validity_.first_unwritten(one.range.begin, one.range.end);
    return left.begin == left.end;
  });
}

Failure UnifiedCore::tell_not_arrived(Storage& storage, ByteRange range, const Failure& cause,
                                      CallSite site) noexcept {
  // A call that holds the transfer lock may have recorded copies that are not in in_flight_ yet. If
  // their marks were forgotten, they would count as arrived. So marks are forgotten only with the
  // transfer lock; without it, the next access finds the lost device again.
  const std::unique_lock turn(transfer_mutex_, std::try_to_lock);
  // Devices are queried without mutex_.
  std::array<Device, PlaceSet::max_places> devices;
  unsigned count = 0;
  {
    const std::lock_guard lock(mutex_);
    for (const PlaceEntry& place : places_) devices[count++] = place.device;
  }
  PlaceSet alive;
  for (unsigned place = host + 1; place < count; ++place) {
    if (!is_device_lost(devices[place])) alive = alive.with(place);
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
  const auto concerns = [&](const InFlight& one) {
    return !one.is_lost && one.range.begin < range.end && range.begin < one.range.end;
  };
  bool is_concerned = cause.code() != ErrorCode::device_lost;
  if (!is_concerned) {
    const std::lock_guard lock(mutex_);
    is_concerned = std::ranges::any_of(in_flight_, concerns) ||
                   std::ranges::any_of(in_flight_sole_copies_, concerns);
  }
  const Failure told = tell_not_arrived(storage, range, cause, site);
  if (is_concerned || !storage.uses().try_wait(access)) return told;
  return {};
}

Failure UnifiedCore::not_arrived(ByteRange range, PlaceSet alive, const Failure& cause,
                                 CallSite site) noexcept {
  const unsigned source = source_in_flight(range);
  const PlaceSet own = memories_[host].parts;  // the host, and devices that share its memory
  const bool is_lost = cause.code() == ErrorCode::device_lost;
  const auto tell_readers = [&](ByteRange what) {
    for (Open& open : slots_) {
      if (!open.is_open || open.place != host || !open.overlaps(what)) continue;
      (is_lost ? open.is_missing : open.is_unlisted) = true;
    }
  };
  const auto may_arrive = [&](const InFlight& one) {
    return is_lost && one.source != PlaceSet::max_places && alive.has(one.source);
  };
  for (const InFlight& one : in_flight_) {
    if (may_arrive(one)) continue;
    for (PlaceSet rest = own; !rest.empty(); rest = rest.without(rest.first())) {
      if (make_room()) validity_.remove_copy(one.range.begin, one.range.end, rest.first());
    }
    tell_readers(one.range);
  }
  std::erase_if(in_flight_, [&](const InFlight& one) { return !may_arrive(one); });
  if (!is_lost) {
    // Bytes that nobody else has may still arrive. The next access waits for them again.
    return not_completed(source, host, range, cause, site);
  }
  ByteRange lost;
  std::size_t lost_bytes = 0;
  unsigned lost_with = source;
  for (InFlight& left : in_flight_sole_copies_) {
    const ByteRange& one = left.range;
    if (left.is_lost || may_arrive(left)) continue;
    left.is_lost = true;
    tell_readers(one);
    // A visit must not change the directory, so each pass finds the next lost range and then
    // forgets it.
    for (std::size_t at = one.begin; at < one.end && make_room();) {
      ByteRange next{one.end, one.end};
      validity_.visit(at, one.end, [&](std::size_t begin, std::size_t end, PlaceSet valid) {
        if (valid.empty() || (valid & own) != valid) return;
        if (next.begin == one.end) next = {begin, end};
      });
      validity_.forget(next.begin, next.end);
      if (next.begin != next.end) {
        lost = lost_bytes == 0
                   ? next
                   : ByteRange{std::min(lost.begin, next.begin), std::max(lost.end, next.end)};
        lost_with =
            lost_bytes == 0 || lost_with == left.source ? left.source : PlaceSet::max_places;
      }
      lost_bytes += next.end - next.begin;
      at = next.end;
    }
  }
  if (lost_bytes == 0) return not_completed(source, host, range, cause, site);
  return Failure(
             ErrorCode::sync_failed,
             "{lost} of bytes {begin} to {end} of buffer '{tag}' are lost: they were on their way "
             "to the host when their copy on '{a}' had to go, and did not arrive ({cause}). "
             "They count as never written; write them again.",
             site)
      .with("begin", lost.begin)
      .with("end", lost.end)
      .with_bytes("lost", lost_bytes)
      .with("cause_code", static_cast<std::uint64_t>(cause.code()))
      .with("direction", "to the host")
      .with("tag", options_.tag.name())
      .with("a", name_of(lost_with))
      .with("cause", name(cause.code()));
}

Result<void> UnifiedCore::try_wait_host(std::uint32_t slot, CallSite site) noexcept {
  ByteRange range;
  Access access;
  {
    const std::lock_guard lock(mutex_);
    range = {slots_[slot].begin, slots_[slot].end};
    access = slots_[slot].access;
  }
  return try_settle_host(slot, range, access, site);
}

// --- Closing

[[gnu::noinline]] void UnifiedCore::end_use(Open& open) noexcept {
  Memory& memory = memory_of(open.place);
  // If no other use began meanwhile and nobody inspects the record, the use is deferred: later work
  // of the stream counts as the same use.
  const bool is_alone = memory.stream_uses == open.stream_uses && transfer_locks_ == 0 &&
                        open.kind == Kind::lease && memory.device == open.stream.device_id();
  memory.deferred_use = {};
  const Mark mark = open.stream.next_mark();
  memory.storage->uses().end(open.ticket, open.stream, is_alone ? Mark{} : mark, open.access);
  note_stream_use(memory, open.access);
  if (is_alone && mark) {
    memory.deferred_use = open.stream.id();
    memory.deferred_use_writes = is_write(open.access);
  }
  open.has_use = false;
}

[[gnu::noinline]] void UnifiedCore::after_write(std::uint32_t slot, std::size_t kept) noexcept {
  Open& open = slots_[slot];
  const ByteRange range{open.begin, open.end};
  if (open.access == Access::discard && kept < range.end - range.begin && make_room()) {
    validity_.forget(range.begin + kept, range.end);
  }
  spread(slot);
}

void UnifiedCore::spread(std::uint32_t slot) noexcept {
  if (!write_through_ && !is_checked_) return;
  Open& open = slots_[slot];
  const ByteRange range{open.begin, open.end};
  const unsigned place = open.place;
  const CallSite site = open.site;
  const std::optional<unsigned> through = write_through_;
  open.access = Access::read;  // while the lock is released
  mutex_.unlock();
  if (is_checked_) poison_stale(range, place, slot, site);
  if (through && *through != place) {
    const TransferLock mover(*this);
    NewCopy copy(*this, *through, slot);
    Result<void> copied = try_ensure(*through, {}, site);
    if (copied) {
      copied = try_fetch({range, *through, {}, TransferReason::write_through, slot, site});
    }
    if (copied) copy.keep();
    if (!copied) {
      const std::lock_guard lock(mutex_);
      ++statistics_.failed_write_throughs;
    }
  }
  mutex_.lock();
}

[[gnu::noinline]] bool UnifiedCore::try_end_late(Open& open) noexcept {
  Memory& memory = memory_of(open.place);
  // The stream may have ended before the lease. Its work until then still has to be recorded.
  const Result<void> noted =
      memory.storage->uses().try_note(open.stream, last_mark(open.stream), open.access);
  memory.deferred_use = {};
  note_stream_use(memory, open.access);
  return static_cast<bool>(noted);
}

void UnifiedCore::close(std::uint32_t slot, std::size_t kept) noexcept {
  mutex_.lock();
  Open& open = slots_[slot];
  StreamRef late;
  if (open.has_use) {
    end_use(open);
  } else if (open.is_deferred) {
    const Memory& memory = memory_of(open.place);
    const StreamRef stream = DeviceState::load_words(open.stream);
    if (memory.deferred_use == stream.id() &&
        (memory.deferred_use_writes || !is_write(open.access))) [[likely]] {
      static_cast<void>(stream.next_mark());  // a stream that ends records promised marks
    } else if (!try_end_late(open)) {
      late = stream;
    }
  }
  if (is_write(open.access) && (open.access == Access::discard || write_through_ || is_checked_)) {
    after_write(slot, kept);
  }
  if (is_checked_) [[unlikely]]
    seal(slot);
  free_slot(slot);
  if (is_watched_) [[unlikely]]
    guard_again();
  if (waiters_ != 0) [[unlikely]]
    notify();
  const bool is_last = (shares_ | open_count_) == 0;
  mutex_.unlock();
  if (late.id()) [[unlikely]]
    static_cast<void>(late.try_synchronize());
  if (is_last) [[unlikely]]
    delete this;
}

Result<void> UnifiedCore::try_downgrade(std::uint32_t slot, CallSite site) noexcept {
  {
    const std::lock_guard lock(mutex_);
    Open& open = slots_[slot];
    const bool was_write = is_write(open.access);
    if (open.has_use || open.is_deferred) {
      // Readers in other places must find the writes in the record. The first read of this lease
      // comes after them.
      MarkSet waits;
      UseRecord& uses = memory_of(open.place).storage->uses();
      Result<UseRecord::Ticket> ticket =
          uses.try_begin(open.stream, Access::read, waits, UseRecord::Turn::none, site);
      if (!ticket) return ticket.failure();
      // The new use waits for nobody, so its ticket must not claim to come after more than the
      // write did.
      *ticket = UseRecord::Ticket(open.is_deferred ? 0 : open.ticket.version(), false, false);
      if (open.is_deferred) {
        if (Result<void> noted = uses.try_note(open.stream, last_mark(open.stream), open.access);
            !noted) {
          uses.cancel(*ticket);
          return noted;
        }
      } else {
        uses.end(open.ticket, open.stream, open.stream.next_mark(), open.access);
      }
      memory_of(open.place).deferred_use = {};
      open.is_deferred = false;
      open.has_use = true;
      open.ticket = *ticket;
      note_stream_use(memory_of(open.place), open.access);
      open.stream_uses = 0;
    }
    if (open.has_untracked_writer) --untracked_writers_;
    open.has_untracked_writer = false;
    open.access = Access::read;
    if (was_write) spread(slot);
    if (waiters_ != 0) notify();
  }
  // Taking and releasing the transfer lock protects the pages again, now against writes.
  if (options_.guard) const TransferLock mover(*this);
  return {};
}

// --- The lease itself

[[gnu::noinline]] void RawLease::end_fully(UnifiedCore* core, std::uint32_t slot, std::size_t bytes,
                                           int kept_exceptions) noexcept {
  const bool was_left =
      kept_exceptions != no_discard && std::uncaught_exceptions() > kept_exceptions;
  core->close(slot, was_left ? 0 : bytes);
}

void RawLease::close() noexcept {
  if (core_ != nullptr) end();
  address_ = nullptr;
  bytes_ = 0;
}

void RawLease::commit(std::size_t bytes) noexcept {
  if (core_ != nullptr) std::exchange(core_, nullptr)->close(slot_, bytes);
  address_ = nullptr;
  bytes_ = 0;
}

Result<void> RawLease::try_downgrade(CallSite site) noexcept {
  if (core_ == nullptr) return {};
  kept_exceptions_ = no_discard;
  return core_->try_downgrade(slot_, site);
}

Result<void> RawLease::try_wait(CallSite site) noexcept {
  if (core_ == nullptr) return {};
  return core_->try_wait_host(slot_, site);
}

Result<void> RawLease::try_commit_range(std::size_t offset, std::size_t bytes, StreamRef stream,
                                        CallSite site) noexcept {
  if (core_ == nullptr) return {};
  return core_->try_commit_range(slot_, offset, bytes, stream, site);
}

}  // namespace tern
