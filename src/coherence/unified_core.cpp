// The part of UnifiedCore that claims byte ranges, opens leases for which no bytes move, and closes
// leases. A claim that conflicts with an open lease fails with access_conflict, or waits, in
// try_claim_range().

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
#include "trace/recording.hpp"

namespace tern {
namespace {

std::uint64_t next_number() noexcept {
  static constinit std::atomic<std::uint64_t> last = 0;
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

UnifiedCore::UnifiedCore(Shape shape, DType dtype, std::size_t element_bytes, std::size_t bytes,
                         const UnifiedOptions& options)
    : is_watched_(options.checked.value_or(false) || options.guard.value_or(false) ||
                  options.compare.value_or(false)),
      is_checked_(options.checked.value_or(false)),
      bytes_(bytes),
      copies_(bytes),
      shape_(std::move(shape)),
      number_(next_number()),
      options_(options),
      allocator_(options_),
      dtype_(dtype),
      element_bytes_(element_bytes) {
  // If a device shares the host's memory, the host copy is memory of that device.
  const Device& device = options_.device;
  const Place place = !device.info().is_host && allocator_.shares_host_copy(device) ? device.place()
                                                                                    : Place::host();
  copies_.memory(host).set_resident(
      std::make_unique<Resident>(Residents::of(place), this, unsigned{host}));
}

UnifiedCore::~UnifiedCore() {
  begin_transits();
  // Removed from all lists before anything is freed, so that a visitor finds a complete buffer or
  // none.
  for (Memory& memory : copies_.memories()) {
    if (memory.resident) memory.resident->leave();
  }
  forget_spilled();
  for (Memory& memory : copies_.memories()) memory.storage = {};
  for (; !transits_.empty();) end_transit(transits_.first());
}

void UnifiedCore::retain() noexcept {
  const std::lock_guard lock(mutex_);
  ++shares_;
}

void UnifiedCore::release() noexcept {
  mutex_.lock();
  const bool is_last = --shares_ == 0 && leases_.is_empty();
  mutex_.unlock();
  if (is_last) delete this;
}

// --- The leases that are open

Failure UnifiedCore::refused(const Slot& other, const Wanted& wanted) const noexcept {
  return Failure(ErrorCode::access_conflict,
                 "bytes {begin} to {end} of buffer '{tag}' are requested at {b_file}:{b_line} "
                 "while the lease of {a_file}:{a_line} is open. Close the open lease first.",
                 wanted.site)
      .with("begin", std::max(other.range.begin, wanted.range.begin))
      .with("end", std::min({other.range.end, wanted.range.end, bytes()}))
      .with("a_line", other.site.line)
      .with("b_line", wanted.site.line)
      .with("tag", options_.tag.name())
      .with("a_file", other.site.file)
      .with("b_file", wanted.site.file);
}

Result<std::uint32_t> UnifiedCore::try_claim_range(const Wanted& wanted, unsigned place) noexcept {
  using Clock = std::chrono::steady_clock;
  LeaseTable::Deadline deadline;
  if (!wanted.wait.is_never() && !wanted.wait.is_forever()) {
    const Clock::time_point now = Clock::now();
    // If the deadline is beyond the range of the clock, wait forever.
    const std::chrono::nanoseconds time(wanted.wait.nanoseconds());
    if (time < Clock::time_point::max() - now) deadline = now + time;
  }
  const std::lock_guard lock(mutex_);
  for (bool is_over = wanted.wait.is_never();;) {
    if (wanted.range.end > bytes_ && wanted.range.end != everything.end) {
      return outside(wanted.range.begin, wanted.range.end - wanted.range.begin, bytes_,
                     wanted.site);
    }
    const Slot* const other = leases_.conflict(wanted.range, wanted.access);
    if (other == nullptr) {
      // An exported lease for writing conflicts with readers until it is granted: before that,
      // try_fetch() would not know that their bytes have to be copied again. begin_export() then
      // lets readers in.
      const Kind kind = is_write(wanted.access) ? Kind::lease : wanted.kind;
      const std::uint32_t slot =
          leases_.open({wanted.range, wanted.access, kind, place, wanted.stream}, wanted.site);
      if (slot == LeaseTable::no_lease) {
        return no_host_memory("the directory of a unified buffer", wanted.site);
      }
      return slot;
    }
    if (is_over) return refused(*other, wanted);
    // The first conflict belongs to another thread, but a later one may belong to this thread.
    if (const Slot* const own =
            leases_.conflict_with_thread(this_thread(), wanted.range, wanted.access)) {
      return refused(*own, wanted);
    }
    is_over = !leases_.wait(mutex_, released_, deadline);
  }
}

[[gnu::noinline]] void UnifiedCore::notify() noexcept {
  leases_.note_release();
  ++shares_;  // a woken thread may drop the last other reference a moment later
  mutex_.unlock();
  released_.wake();
  mutex_.lock();
  --shares_;
}

void UnifiedCore::cancel(std::uint32_t slot) noexcept {
  mutex_.lock();
  leases_.release(slot);
  if (leases_.has_waiters()) notify();
  const bool is_last = shares_ == 0 && leases_.is_empty();
  mutex_.unlock();
  if (is_last) delete this;
}

// --- Opening

bool UnifiedCore::is_ready_at(unsigned place, const Memory& memory, ByteRange range,
                              Access access) noexcept {
  // A transfer may change the directory, and an untracked writer may change bytes, at any time. The
  // slow path records leases.
  if (is_watched_ || trace::is_recording() || transfer_locks_ != 0 ||
      leases_.has_untracked_writers() || !memory.parts.has(place)) {
    return false;
  }
  if (place == host && !spilled_.empty()) return false;
  if (access == Access::read) [[likely]]
    return copies_.directory().is_valid(range.begin, range.end, place);
  if (copies_.directory().is_only(range.begin, range.end, place)) return true;
  if (access == Access::read_write &&
      !copies_.directory().is_valid(range.begin, range.end, place)) {
    return false;
  }
  return copies_.directory().size() < max_intervals && copies_.make_room();
}

UnifiedCore::Opened UnifiedCore::open_host_no_wait(ByteRange range, Access access,
                                                   const CallSite& site) noexcept {
  const std::lock_guard lock(mutex_);
  Memory& memory = copies_.memory(host);
  if (range.end > bytes() || range.begin == range.end ||
      leases_.conflict(range, access) != nullptr || !is_ready_at(host, memory, range, access)) {
    return {};
  }
  const bool is_clear = is_write(access) ? memory.is_write_clear : memory.is_read_clear;
  // The slow path waits for streams, and tells the checker about accesses of the host.
  if (!is_clear || memory.wants_notes) return {};
  const std::uint32_t slot = leases_.open({range, access, Kind::lease, host, {}}, site);
  if (slot == LeaseTable::no_lease) return {};
  copies_.note_write(host, range, access);
  memory.touch();
  return {memory.address + range.begin, slot};
}

UnifiedCore::Opened UnifiedCore::open_device_no_wait(ByteRange range, Access access,
                                                     StreamRef stream,
                                                     const CallSite& site) noexcept {
  if (!stream.is_usable()) return {};
  const std::lock_guard lock(mutex_);
  const unsigned place = copies_.find(stream.device_id());
  if (place == PlaceSet::max_places || range.end > bytes() || range.begin == range.end ||
      leases_.conflict(range, access) != nullptr) {
    return {};
  }
  Memory& memory = copies_.memory_of(place);
  if (!is_ready_at(place, memory, range, access)) return {};
  const bool is_deferred =
      memory.deferred_use == stream.id() && (memory.deferred_use_writes || !is_write(access));
  UseRecord::Ticket ticket;
  if (!is_deferred && !begin_without_waits(memory, access, stream, ticket, site)) return {};
  const std::uint32_t slot = leases_.open({range, access, Kind::lease, place, stream}, site);
  if (slot == LeaseTable::no_lease) {
    if (!is_deferred) memory.storage->uses().cancel(ticket);
    return {};
  }
  Slot& lease = leases_[slot];
  if (is_deferred) {
    lease.is_deferred = true;
  } else {
    lease.ticket = ticket;
    lease.has_use = true;
    memory.note_stream_use(access);
    lease.stream_uses = memory.stream_uses;
  }
  copies_.note_write(place, range, access);
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
      uses.try_begin(stream, access, waits, UseRecord::LockMode::none, site);
  if (!begun) return false;
  if (!waits.all().empty()) {
    uses.cancel(*begun);
    return false;
  }
  ticket = *begun;
  return true;
}

void UnifiedCore::begin_export(std::uint32_t slot) noexcept {
  leases_.set_untracked_writer(leases_[slot]);
  if (leases_.has_waiters()) notify();
}

RawLease UnifiedCore::make_lease(std::uint32_t slot) noexcept {
  const Slot& lease = leases_[slot];
  Memory& memory = copies_.memory_of(lease.place);
  memory.touch();
  if (trace::is_recording()) {
    trace::record(trace::EventKind::lease_begin,
                  {.stream = lease.stream.id().value(),
                   .block = lease_number(slot),
                   .address = reinterpret_cast<std::uintptr_t>(memory.address) + lease.range.begin,
                   .bytes = lease.range.end - lease.range.begin,
                   .site = lease.site,
                   .tag = options_.tag,
                   .detail = static_cast<std::uint8_t>(lease.access)});
  }
  return lease_of({memory.address + lease.range.begin, slot}, lease.range, lease.access);
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
    if (!is_host) place = copies_.find(stream.device_id());
  }
  if (Result<void> sound = check_before_access(range, site); !sound) return sound.failure();
  return wait.is_never() ? try_open_once(wanted, place) : try_open_with_time(wanted, place);
}

Result<RawLease> UnifiedCore::try_open_once(const Wanted& wanted, unsigned place) noexcept {
  const Result<std::uint32_t> slot =
      try_claim_range(wanted, place == PlaceSet::max_places ? 0 : place);
  if (!slot) return slot.failure();
  if (options_.compare.value_or(false) && wanted.access == Access::read) {
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

// --- Closing

[[gnu::noinline]] void UnifiedCore::end_use(Slot& lease) noexcept {
  Memory& memory = copies_.memory_of(lease.place);
  // If no other use began meanwhile and nobody inspects the record, the use is deferred: later work
  // of the stream counts as the same use.
  const bool is_alone = memory.stream_uses == lease.stream_uses && transfer_locks_ == 0 &&
                        lease.kind == Kind::lease && memory.device == lease.stream.device_id();
  memory.deferred_use = {};
  const Mark mark = lease.stream.next_mark();
  memory.storage->uses().end(lease.ticket, lease.stream, is_alone ? Mark{} : mark, lease.access);
  memory.note_stream_use(lease.access);
  if (is_alone && mark) {
    memory.deferred_use = lease.stream.id();
    memory.deferred_use_writes = is_write(lease.access);
  }
  lease.has_use = false;
}

[[gnu::noinline]] void UnifiedCore::after_write(std::uint32_t slot, std::size_t kept) noexcept {
  Slot& lease = leases_[slot];
  const ByteRange range = lease.range;
  if (lease.access == Access::discard && kept < range.end - range.begin && copies_.make_room()) {
    copies_.directory().forget(range.begin + kept, range.end);
  }
  spread(slot);
}

void UnifiedCore::spread(std::uint32_t slot) noexcept {
  if (!write_through_ && !is_checked_) return;
  Slot& lease = leases_[slot];
  const ByteRange range = lease.range;
  const unsigned place = lease.place;
  const CallSite site = lease.site;
  const std::optional<unsigned> through = write_through_;
  lease.access = Access::read;  // while the lock is released
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
      log_.count([](UnifiedStatistics& counts) { ++counts.failed_write_throughs; });
    }
  }
  mutex_.lock();
}

[[gnu::noinline]] bool UnifiedCore::try_end_late(Slot& lease) noexcept {
  Memory& memory = copies_.memory_of(lease.place);
  // The stream may have ended before the lease. Its work until then still has to be recorded.
  const Result<void> noted =
      memory.storage->uses().try_note(lease.stream, last_mark(lease.stream), lease.access);
  memory.deferred_use = {};
  memory.note_stream_use(lease.access);
  return static_cast<bool>(noted);
}

void UnifiedCore::close(std::uint32_t slot, std::size_t kept) noexcept {
  // Before the lock, because recording may have to wait. The slot is not used again before its
  // release.
  if (trace::is_recording()) {
    trace::record(trace::EventKind::lease_end, {.block = lease_number(slot)});
  }
  mutex_.lock();
  Slot& lease = leases_[slot];
  StreamRef late;
  if (lease.has_use) {
    end_use(lease);
  } else if (lease.is_deferred) {
    const Memory& memory = copies_.memory_of(lease.place);
    const StreamRef stream = DeviceState::load_words(lease.stream);
    if (memory.deferred_use == stream.id() &&
        (memory.deferred_use_writes || !is_write(lease.access))) [[likely]] {
      static_cast<void>(stream.next_mark());  // a stream that ends records promised marks
    } else if (!try_end_late(lease)) {
      late = stream;
    }
  }
  if (is_write(lease.access) &&
      (lease.access == Access::discard || write_through_ || is_checked_)) {
    after_write(slot, kept);
  }
  if (is_checked_) [[unlikely]]
    seal(slot);
  leases_.release(slot);
  if (is_watched_) [[unlikely]]
    guard_again();
  if (leases_.has_waiters()) [[unlikely]]
    notify();
  const bool is_last = (shares_ | leases_.count()) == 0;
  mutex_.unlock();
  if (late.id()) [[unlikely]]
    static_cast<void>(DeviceState::wait_for_stream(late, CallSite::here()));
  if (is_last) [[unlikely]]
    delete this;
}

Result<void> UnifiedCore::try_downgrade(std::uint32_t slot, CallSite site) noexcept {
  {
    const std::lock_guard lock(mutex_);
    Slot& lease = leases_[slot];
    const bool was_write = is_write(lease.access);
    if (lease.has_use || lease.is_deferred) {
      // Readers in other places must find the writes in the record. The first read of this lease
      // comes after them.
      MarkSet waits;
      UseRecord& uses = copies_.memory_of(lease.place).storage->uses();
      Result<UseRecord::Ticket> ticket =
          uses.try_begin(lease.stream, Access::read, waits, UseRecord::LockMode::none, site);
      if (!ticket) return ticket.failure();
      // The new use waits for nobody, so its ticket must not claim to come after more than the
      // write did.
      *ticket = UseRecord::Ticket(lease.is_deferred ? 0 : lease.ticket.version(), false, false);
      if (lease.is_deferred) {
        if (Result<void> noted = uses.try_note(lease.stream, last_mark(lease.stream), lease.access);
            !noted) {
          uses.cancel(*ticket);
          return noted;
        }
      } else {
        uses.end(lease.ticket, lease.stream, lease.stream.next_mark(), lease.access);
      }
      copies_.memory_of(lease.place).deferred_use = {};
      lease.is_deferred = false;
      lease.has_use = true;
      lease.ticket = *ticket;
      copies_.memory_of(lease.place).note_stream_use(lease.access);
      lease.stream_uses = 0;
    }
    leases_.clear_untracked_writer(lease);
    lease.access = Access::read;
    if (was_write) spread(slot);
    if (leases_.has_waiters()) notify();
  }
  // Taking and releasing the transfer lock protects the pages again, now against writes.
  if (options_.guard.value_or(false)) const TransferLock mover(*this);
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
