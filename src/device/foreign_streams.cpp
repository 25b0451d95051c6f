// The streams of other code that a device borrows, found by the driver's id of the stream, so a
// handle that the driver reuses gets a new stream.
//
// A stream that is borrowed often is kept: end_loan() leaves it idle, without an event after what
// it promised, if the promises are those of a pool. Its owner may destroy it without a word.
// Whoever needs such a promise waits until the stream is borrowed again, or for the whole device:
// settle_idle().

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

#include "device/device_state.hpp"

namespace tern {
namespace {

std::size_t foreign_place(std::uint64_t driver_id, std::size_t probe) noexcept {
  return static_cast<std::size_t>(driver_id * 0x9e37'79b9'7f4a'7c15u >> 51) + probe;
}

}  // namespace

StreamRef DeviceState::lend_default() noexcept {
  // Threads share this line of the cache, so it is written once.
  if (!has_unknown_.load(std::memory_order_relaxed))
    has_unknown_.store(true, std::memory_order_relaxed);
  const StreamRef stream = default_stream();
  return stream.state_->try_lend(stream.id()) ? stream : StreamRef();
}

StreamRef DeviceState::find_lendable(std::uint64_t driver_id) noexcept {
  if (driver_id == 0) return {};
  for (std::size_t probe = 0; probe < max_probes; ++probe) {
    const std::size_t place = foreign_place(driver_id, probe) % foreign_places;
    const std::uint16_t slot = foreign_slots_[place].load(std::memory_order_acquire);
    if (slot == 0) return {};
    StreamState& known = *slots_[slot].load(std::memory_order_relaxed);
    // The id is read first: if the slot gets another stream meanwhile, the loan fails.
    const StreamId id = StreamId::from(known.id.load(std::memory_order_acquire));
    if (known.driver_id.load(std::memory_order_acquire) != driver_id) continue;
    if (known.try_lend(id)) return StreamRef(&known, id);
  }
  return {};
}

void DeviceState::remember_foreign(std::uint64_t driver_id, std::uint32_t slot) noexcept {
  std::size_t free = max_probes;
  for (std::size_t probe = 0; probe < max_probes; ++probe) {
    const std::size_t place = foreign_place(driver_id, probe) % foreign_places;
    const std::uint16_t other = foreign_slots_[place].load(std::memory_order_relaxed);
    if (other == slot) return;
    if (free != max_probes) continue;
    // A place is free if its stream is found elsewhere or not at all.
    const std::uint64_t others_id =
        other == 0 ? 0 : slots_[other].load(std::memory_order_relaxed)->driver_id.load();
    bool is_needed = false;
    for (std::size_t i = 0; others_id != 0 && i < max_probes; ++i) {
      is_needed |= foreign_place(others_id, i) % foreign_places == place;
    }
    if (!is_needed) free = probe;
  }
  // If all places are needed, the stream in the first one is found by the slow path.
  const std::size_t place = foreign_place(driver_id, free % max_probes) % foreign_places;
  foreign_slots_[place].store(static_cast<std::uint16_t>(slot), std::memory_order_release);
}

bool DeviceState::is_borrowed_often(std::uint64_t driver_id) noexcept {
  Seen& seen = seen_[driver_id % seen_.size()];
  if (seen.driver_id != driver_id) seen = {driver_id, 0};
  return ++seen.times >= keep_after;
}

Result<StreamRef> DeviceState::borrow_stream(NativeStream handle, bool keep) noexcept {
  has_unknown_.store(true, std::memory_order_relaxed);
  for (bool may_retry = true;; may_retry = false) {
    {
      const std::lock_guard lock(streams_mutex_);
      if (kept_count_ < max_kept || retire_settled() || !may_retry) {
        Result<StreamRef> borrowed = begin_borrowed(handle, keep);
        if (borrowed || !may_retry || !is_full_of_kept(borrowed.failure())) return borrowed;
      }
    }
    retire_idle();
  }
}

bool DeviceState::is_full_of_kept(const Failure& failure) const noexcept {
  return failure.code() == ErrorCode::capacity && kept_count_ > 0;
}

void DeviceState::retire_idle() noexcept {
  static_cast<void>(settle_idle());
  const std::lock_guard lock(streams_mutex_);
  static_cast<void>(retire_settled());
}

Result<StreamRef> DeviceState::begin_borrowed(NativeStream handle, bool keep) noexcept {
  const Result<BorrowedStream> borrowed = backend_->borrow_stream(handle);
  if (!borrowed) return borrowed.failure();
  if (borrowed->is_default) {
    const StreamRef lent = lend_default();
    if (lent.id()) return lent;
    return Failure(ErrorCode::capacity,
                   "the default stream of device '{device}' is borrowed {max} times, which is the "
                   "maximum. Destroy some of the borrowed Streams.")
        .with("device", info().spec)
        .with("max", StreamState::loans_mask / StreamState::one_loan - 1);
  }
  for (std::size_t slot = 1; slot < slot_count_; ++slot) {
    StreamState& known = *slots_[slot].load(std::memory_order_relaxed);
    const std::uint64_t driver_id = known.driver_id.load(std::memory_order_relaxed);
    const bool is_same_handle = known.foreign_handle.load() == borrowed->native.value;
    if (borrowed->id != 0 && driver_id != borrowed->id) {
      // The driver reuses the handle: the owner has destroyed the idle stream.
      if (is_same_handle && driver_id != 0 && known.try_claim_idle()) retire(known);
      continue;
    }
    // Without an id, a handle is known while somebody borrows it: the stream exists that long.
    if (borrowed->id == 0 && (!is_same_handle || known.is_idle())) continue;
    const StreamId id = StreamId::from(known.id.load(std::memory_order_relaxed));
    if (!known.try_lend(id)) continue;
    if (borrowed->id != 0) remember_foreign(borrowed->id, static_cast<std::uint32_t>(slot));
    backend_->destroy_stream(borrowed->native);  // the first loan is sufficient
    return StreamRef(&known, id);
  }
  // Nothing could be ordered by the stream until the capture ends, and its id is not known.
  if (borrowed->is_captured) {
    backend_->destroy_stream(borrowed->native);
    return Failure(ErrorCode::stream_misuse,
                   "stream {stream} of '{device}' cannot be borrowed: {why}. Borrow the stream "
                   "before the capture begins, and keep the borrowed Stream until the capture "
                   "ends.")
        .with("stream", handle.value, Unit::hex)
        .with("why", "it is being captured into a graph")
        .with("device", info().spec);
  }
  const Result<FreeSlot> place = find_slot();
  if (!place) {
    backend_->destroy_stream(borrowed->native);
    return place.failure();
  }
  const bool keeps =
      borrowed->can_be_kept && borrowed->id != 0 && (keep || is_borrowed_often(borrowed->id));
  if (keeps) {
    backend_->forget_stream(borrowed->native);
    ++kept_count_;
  }
  const StreamRef ref = begin_stream(*place, borrowed->native, {}, trace::StreamOrder::borrowed,
                                     keeps ? StreamState::is_kept : StreamState::must_seal);
  place->stream->foreign_handle.store(borrowed->native.value);
  place->stream->driver_id.store(borrowed->id, std::memory_order_release);
  if (borrowed->id != 0) remember_foreign(borrowed->id, place->slot);
  return ref;
}

void DeviceState::end_loan(StreamRef ref) noexcept {
  StreamState& stream = *ref.state_;
  if (!stream.device->is_in_its_process()) return;
  if (!stream.try_end_loan()) stream.device->end_loan_slowly(stream);
}

// The loan keeps the device open until it is counted as ended, with streams_mutex_ held if the
// program has no other handle.
void DeviceState::end_loan_slowly(StreamState& stream) noexcept {
  const bool is_default = &stream == slots_[0].load(std::memory_order_relaxed);
  const auto loans = [](std::uint64_t word) { return word & StreamState::loans_mask; };
  std::shared_ptr<DeviceState> last_handle;  // closes the device after the lock is released
  for (;;) {
    std::uint64_t now = stream.use.load(std::memory_order_acquire);
    const bool is_last = loans(now) == StreamState::one_loan;
    bool is_sealed = false;
    if (is_last) {
      if (!stream.use.compare_exchange_weak(now, now | StreamState::is_claimed)) continue;
      is_sealed = seal(stream);
    }
    const std::lock_guard lock(streams_mutex_);
    now = stream.use.load(std::memory_order_acquire);
    if (!is_last && loans(now) == StreamState::one_loan) continue;
    std::uint64_t after = 0;
    do {
      after = now - StreamState::one_loan;
      if (is_last) after &= ~StreamState::is_claimed;
      if (is_sealed) after &= ~StreamState::must_seal;
    } while (!stream.use.compare_exchange_weak(now, after, std::memory_order_acq_rel));
    const bool is_over = is_last || (is_default && loans(after) == StreamState::one_loan);
    if (is_over && (after & StreamState::is_handed_over) != 0) {
      stream.use.fetch_and(~StreamState::is_handed_over);
      if (--handed_over_count_ == 0) last_handle = std::move(loan_handle_);
    }
    if (is_last && stream.has_ended.load(std::memory_order_relaxed)) recycle_if_done(stream);
    return;
  }
}

void DeviceState::retire(StreamState& stream) noexcept {
  {
    const std::lock_guard lock(stream.mutex);
    if (stream.has_next.exchange(false, std::memory_order_acq_rel)) {
      stream.issued.fetch_add(1, std::memory_order_acq_rel);
    }
    stream.sealed = stream.issued.load(std::memory_order_acquire);
    const std::uint64_t recorded =
        stream.record_count == 0 ? 0 : stream.records[stream.record_count - 1].sequence;
    stream.has_vanished = true;
    stream.is_unsealed =
        stream.sealed > stream.done.load(std::memory_order_acquire) && stream.sealed > recorded;
    stream.native = {};
    stream.has_ended.store(true, std::memory_order_release);
  }
  stream.use.fetch_and(~(StreamState::is_kept | StreamState::is_claimed | StreamState::must_seal));
  recycle_if_done(stream);
}

bool DeviceState::retire_settled() noexcept {
  const std::size_t before = kept_count_;
  for (std::size_t slot = 1; slot < slot_count_; ++slot) {
    StreamState& stream = *slots_[slot].load(std::memory_order_relaxed);
    if (stream.has_ended.load(std::memory_order_acquire)) recycle_if_done(stream);
    if (!stream.try_claim_idle()) continue;
    const bool is_done = !stream.has_next.load(std::memory_order_acquire) &&
                         stream.issued.load(std::memory_order_acquire) <=
                             stream.done.load(std::memory_order_acquire);
    if (is_done) {
      retire(stream);
    } else {
      stream.use.fetch_and(~StreamState::is_claimed);
    }
  }
  return kept_count_ < before;
}

Result<void> DeviceState::synchronize_context() noexcept {
  for (const std::atomic<StreamState*>& slot : slots_) {
    StreamState* const stream = slot.load(std::memory_order_acquire);
    if (stream == nullptr) break;
    const StreamRef ref(stream, StreamId::from(stream->id.load(std::memory_order_acquire)));
    const StreamPin stay(ref);
    if (!stay) continue;
    if (const Result<bool> captured = backend_->is_capturing(stream->native);
        captured && *captured) {
      return Failure(ErrorCode::stream_misuse,
                     "stream {stream} of '{device}' is being captured, so nothing can wait for a "
                     "foreign stream that is not borrowed: {why}. End the capture first.")
          .with("stream", ref.id().number())
          .with("why", "the wait would end the capture")
          .with("device", info().spec);
    }
  }
  return backend_->synchronize_everything();
}

Result<void> DeviceState::settle_idle() noexcept {
  const std::lock_guard settling(settle_mutex_);
  const auto for_each = [this](auto visit) {
    for (const std::atomic<StreamState*>& slot : slots_) {
      StreamState* const stream = slot.load(std::memory_order_acquire);
      if (stream == nullptr) break;
      visit(*stream);
    }
  };
  for_each([](StreamState& stream) {
    stream.settling = 0;
    if (!stream.try_claim_idle()) {
      const std::lock_guard lock(stream.mutex);
      if (stream.has_vanished || stream.is_unsealed) stream.settling = stream.sealed;
      return;
    }
    stream.has_next.store(false, std::memory_order_release);
    stream.settling = stream.issued.fetch_add(1, std::memory_order_acq_rel) + 1;
    stream.use.fetch_and(~StreamState::is_claimed);
  });
  Result<void> waited = synchronize_context();
  for_each([&waited](StreamState& stream) {
    if (stream.settling == 0) return;
    if (waited) {
      stream.see_done(stream.settling);
    } else if (stream.is_idle()) {
      stream.has_next.store(true, std::memory_order_release);
    }
  });
  return waited;
}

Result<void> DeviceState::wait_for_unknown() noexcept {
  if (!has_unknown_.load(std::memory_order_relaxed)) return {};
  Result<void> result;
  for (const std::atomic<StreamState*>& slot : slots_) {
    StreamState* const stream = slot.load(std::memory_order_acquire);
    if (stream == nullptr) break;
    const StreamId id = StreamId::from(stream->id.load(std::memory_order_acquire));
    std::uint64_t promised = 0;
    {
      const std::lock_guard lock(stream->mutex);
      const std::uint64_t now = stream->use.load(std::memory_order_acquire);
      if (stream->has_vanished || stream->is_unsealed) {
        promised = stream->sealed;
      } else if ((now & StreamState::is_kept) == 0) {
        continue;
      } else {
        // All work of a borrowed stream counts, also that of its owner.
        if ((now & StreamState::loans_mask) != 0) stream->hold_next();
        promised = stream->last_promised();
      }
    }
    const Result<void> waited = wait_on_host(Mark{id, promised}, CallSite::here());
    if (!waited && result) result = waited;
  }
  return result;
}

bool DeviceState::is_out_of_reach(Mark mark) noexcept {
  StreamState* const stream = pending(mark);
  if (stream == nullptr) return false;
  const std::lock_guard lock(stream->mutex);
  if (!stream->is_idle() || pending(mark) == nullptr) return false;
  if (stream->record_count > 0 &&
      stream->records[stream->record_count - 1].sequence >= mark.sequence) {
    return false;
  }
  stream->need_seal();
  return true;
}

}  // namespace tern
