// The fastest path: leases for which the whole buffer is up to date in the wanted place, no other
// lease is open, and no device is called.
//
// Most leases are of this kind. Three functions handle only them, and call no other function: two
// open a lease, and one closes it. In all other cases they do nothing and pass on to the functions
// that handle every case. They have no arrays on the stack, so the stack protector, which would
// cost a tenth of their time, is off.

#include <utility>

#include "coherence/unified_core.hpp"
#include "core/thread_number.hpp"
#include "device/device_state.hpp"
#include "trace/recording.hpp"

#define TERN_FAST_PATH __attribute__((no_stack_protector))

namespace tern {
namespace {

/// StreamRef::is_usable(), inlined.
bool is_usable(StreamRef stream) noexcept {
  const StreamState* const state = DeviceState::state_of(stream);
  return state != nullptr && state->is_open_as(stream.id()) && state->device->is_in_its_process();
}

/// Promises the next mark of the stream, so that the stream records the mark if it ends.
void promise_next_mark(StreamRef stream) noexcept {
  StreamState* const state = DeviceState::state_of(stream);
  if (state->is_open_as(stream.id())) state->hold_next();
}

}  // namespace

// --- Opening

[[gnu::always_inline]] inline bool UnifiedCore::is_simple(ByteRange range, Access access,
                                                          const Memory& memory,
                                                          unsigned place) const noexcept {
  if ((transfer_locks_ | leases_.count()) != 0 || is_watched_ || !leases_.has_free_slot() ||
      trace::is_recording()) {
    return false;
  }
  if (range.end > bytes() || range.begin >= range.end || !memory.parts.has(place)) return false;
  const PlaceSet there = copies_.directory().uniform();
  return access == Access::read ? there.has(place)
                                : access == Access::read_write && there == PlaceSet::of(place);
}

[[gnu::always_inline]] inline UnifiedCore::Opened UnifiedCore::open_host_fast(
    ByteRange range, Access access, const CallSite& site) noexcept {
  const std::uint64_t thread = thread_number;
  if (thread == 0 || !mutex_.try_lock()) return {};
  Memory& memory = copies_.memory(host);
  const bool is_clear = access == Access::read ? memory.is_read_clear : memory.is_write_clear;
  Opened opened;
  if (is_simple(range, access, memory, host) && is_clear && !memory.wants_notes && spilled_.empty())
      [[likely]] {
    memory.touch();
    opened = {memory.address + range.begin,
              leases_.open_free({range, access, Kind::lease, host, {}}, thread, site)};
  }
  mutex_.unlock();
  return opened;
}

[[gnu::always_inline]] inline UnifiedCore::Opened UnifiedCore::open_device_fast(
    ByteRange range, Access access, StreamRef stream, const CallSite& site) noexcept {
  const std::uint64_t thread = thread_number;
  if (thread == 0 || !is_usable(stream) || !mutex_.try_lock()) return {};
  Opened opened;
  if (const unsigned place = copies_.find(stream.device_id()); place != PlaceSet::max_places)
      [[likely]] {
    Memory& memory = copies_.memory_of(place);
    // A deferred use is also in the UseRecord. Code that ends it inspects the record, and clears
    // `deferred_use` first.
    if (is_simple(range, access, memory, place) && memory.deferred_use == stream.id() &&
        (access == Access::read || memory.deferred_use_writes)) [[likely]] {
      memory.touch();
      opened = {memory.address + range.begin,
                leases_.open_free({range, access, Kind::lease, place, stream}, thread, site)};
      leases_[opened.slot].is_deferred = true;
    }
  }
  mutex_.unlock();
  return opened;
}

[[gnu::always_inline]] inline RawLease UnifiedCore::lease_of_simple(const Opened& opened,
                                                                    ByteRange range) noexcept {
  return {this, opened.address, range.end - range.begin, opened.slot, RawLease::no_discard};
}

TERN_FAST_PATH RawLease RawUnified::open_host(Access access, LeaseWait wait,
                                              const CallSite& site) const {
  if (core_ != nullptr) [[likely]] {
    const ByteRange all = range();
    const UnifiedCore::Opened opened = core_->open_host_fast(all, access, site);
    if (opened) [[likely]]
      return core_->lease_of_simple(opened, all);
  }
  return open_host_fully(access, wait, site);
}

TERN_FAST_PATH RawLease RawUnified::open_device(Access access, StreamRef stream, LeaseWait wait,
                                                const CallSite& site) const {
  if (core_ != nullptr) [[likely]] {
    const ByteRange all = range();
    const UnifiedCore::Opened opened = core_->open_device_fast(all, access, stream, site);
    if (opened) [[likely]]
      return core_->lease_of_simple(opened, all);
  }
  return open_device_fully(access, stream, wait, site);
}

// --- Closing

[[gnu::noinline, gnu::cold]] void UnifiedCore::end(UnifiedCore* core) noexcept { delete core; }

[[gnu::always_inline]] inline bool UnifiedCore::close_fast(std::uint32_t slot) noexcept {
  if (!mutex_.try_lock()) return false;
  Slot& lease = leases_[slot];
  bool is_simple = !is_watched_ && !leases_.has_waiters() && !lease.has_use &&
                   !lease.has_untracked_writer && (!is_write(lease.access) || !write_through_) &&
                   !trace::is_recording();
  if (lease.is_deferred) {
    const Memory& memory = copies_.memory_of(lease.place);
    const StreamRef stream = DeviceState::load_words(lease.stream);
    is_simple &= memory.deferred_use == stream.id() &&
                 (memory.deferred_use_writes || !is_write(lease.access));
    if (is_simple) promise_next_mark(stream);  // a stream that ends records promised marks
  }
  if (!is_simple) {
    mutex_.unlock();
    return false;
  }
  leases_.release_tracked(lease, slot);
  const bool is_last = (leases_.count() | shares_) == 0;
  mutex_.unlock();
  if (is_last) [[unlikely]]
    end(this);
  return true;
}

TERN_FAST_PATH void RawLease::end() noexcept {
  UnifiedCore* const core = std::exchange(core_, nullptr);
  if (kept_exceptions_ == no_discard && core->close_fast(slot_)) [[likely]]
    return;
  end_fully(core, slot_, bytes_, kept_exceptions_);
}

}  // namespace tern
