// try_begin() decides which earlier uses a use waits for (must_wait).

#include "tern/detail/buffer/use_record.hpp"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <new>
#include <thread>

#include "buffer/stream_order.hpp"
#include "core/no_host_memory.hpp"
#include "core/thread_number.hpp"
#include "device/device_state.hpp"
#include "tern/device/device.hpp"

namespace tern {
namespace {

/// A use that is open for this long is taken as a deadlock between threads.
constexpr std::chrono::seconds longest_turn(60);
constexpr int max_yields = 200;
constexpr std::chrono::microseconds pause(50);

/// Returns whether a use of one kind must wait for a use of another kind.
bool must_wait(Access access, const UseRecord::Entry& earlier) noexcept {
  return earlier.is_write() || is_write(access);
}

}  // namespace

bool MarkSet::try_add(Mark mark) noexcept {
  for (Mark& earlier : marks_) {
    if (earlier.stream != mark.stream) continue;
    earlier.sequence = std::max(earlier.sequence, mark.sequence);
    return true;
  }
  if (!marks_.try_reserve(marks_.size() + 1)) return false;
  marks_.emplace_back(mark);
  return true;
}

void UseRecord::settle(Entry& entry) noexcept {
  if (entry.sequence != still_to_come) return;
  const DeviceScope device(entry.stream.device_id());
  // A destroyed stream whose mark is done needs no wait.
  entry.sequence = device ? device->next_mark(entry.stream.id()).sequence : 0;
}

bool UseRecord::is_done(Entry& entry) noexcept {
  if (entry.sequence == still_to_come) {
    // The stream of a closed device must not be queried.
    const DeviceScope device(entry.stream.device_id());
    if (device && entry.stream.is_usable()) return false;
  }
  settle(entry);
  const Result<bool> done = Device::try_is_done(entry.mark());
  return done && *done;
}

bool UseRecord::make_room() noexcept {
  if (count_ + begun_ < capacity_) return true;
  // Before the record grows: forget uses that are done.
  std::uint16_t kept = 0;
  for (Entry& entry : entries()) {
    if (!is_done(entry)) data()[kept++] = entry;
  }
  count_ = kept;
  if (count_ + begun_ < capacity_) return true;
  const std::uint32_t capacity = std::min(2 * (count_ + begun_ + 1), max_entries);
  if (count_ + begun_ >= capacity) return false;
  if (!entries_.try_grow(count_, capacity)) return false;
  capacity_ = static_cast<std::uint16_t>(capacity);
  return true;
}

Result<UseRecord::Ticket> UseRecord::try_lock_in_turn(Access access, LockMode turn,
                                                      CallSite site) noexcept {
  const bool writes = tern::is_write(access);
  if (turn == LockMode::none) {
    mutex_.lock();
    if (has_pause()) [[unlikely]]
      return leave_paused(site);
    return Ticket(version_, false, writes);
  }
  const auto thread = static_cast<std::uint32_t>(this_thread());
  mutex_.lock();
  if (is_blocked(thread, writes)) [[unlikely]] {
    if (has_pause()) return leave_paused(site);
    if (turn == LockMode::if_free) {
      mutex_.unlock();
      return Ticket();
    }
    if (Result<void> waited = try_wait_for_turn(thread, writes, site); !waited) {
      return waited.failure();
    }
  }
  if (open_uses_ == max_open_uses || (writes && open_writes_ == max_open_writes)) [[unlikely]] {
    mutex_.unlock();
    return Failure(ErrorCode::capacity,
                   "the storage has {max} open uses, which is the maximum. End some of them.", site)
        .with("max", std::uint64_t{writes ? max_open_writes : max_open_uses});
  }
  std::uint32_t slot = 0;
  if (open_uses_ == 0) {
    opener_ = thread;
  } else if (opener_ != thread) {
    slot = try_take_slot(thread);
    if (slot == 0) [[unlikely]] {
      mutex_.unlock();
      return no_host_memory("the record of a buffer's uses", site);
    }
  }
  ++open_uses_;
  open_writes_ = static_cast<std::uint8_t>(open_writes_ + (writes ? 1 : 0));
  return Ticket(version_, true, writes, slot);
}

Result<void> UseRecord::try_wait_for_turn(std::uint32_t thread, bool is_write,
                                          CallSite site) noexcept {
  // This thread has an open use, so no other thread has an open write. The thread waits for
  // readers, to become a writer.
  const bool is_reader = count_own(thread) != 0;
  if (is_reader) {
    if (others_->has_waiting_reader) {
      mutex_.unlock();
      return Failure(ErrorCode::access_conflict,
                     "this thread and another thread both read the storage in open uses, and both "
                     "want to write it: each would wait for the other. End or cancel the read of "
                     "this thread before it writes, or begin with the write.",
                     site);
    }
    others_->has_waiting_reader = true;
  }
  mutex_.unlock();
  const std::chrono::steady_clock::time_point deadline =
      std::chrono::steady_clock::now() + longest_turn;
  for (int round = 0;; ++round) {
    // A use lasts as long as a submission, so yielding to other threads is usually enough.
    if (round < max_yields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(pause);
    }
    mutex_.lock();
    const bool is_over = !is_blocked(thread, is_write);
    const bool is_late =
        !is_over && round >= max_yields && std::chrono::steady_clock::now() > deadline;
    if (is_reader && (is_over || is_late)) others_->has_waiting_reader = false;
    if (is_over) return {};
    if (has_pause()) return leave_paused(site);
    mutex_.unlock();
    if (!is_late) continue;
    return Failure(ErrorCode::access_conflict,
                   "another thread has held a use of the storage open for {seconds} s. End or "
                   "cancel its scope or lease first.",
                   site)
        .with("seconds", static_cast<std::uint64_t>(longest_turn.count()));
  }
}

std::uint32_t UseRecord::count_own(std::uint32_t thread) const noexcept {
  if (opener_ != several_threads) return opener_ == thread ? open_uses_ : 0;
  std::uint32_t own = others_->first_thread == thread ? open_uses_ - others_->uses : 0;
  for (std::uint32_t slot = 1; slot < OtherUsers::nameless; ++slot) {
    if (others_->slots[slot].thread == thread) own += others_->slots[slot].uses;
  }
  return own;
}

std::uint32_t UseRecord::try_take_slot(std::uint32_t thread) noexcept {
  if (!others_) others_.reset(new (std::nothrow) OtherUsers);
  if (!others_) return 0;
  if (opener_ != several_threads) {
    others_->first_thread = opener_;
    opener_ = several_threads;
  }
  constexpr std::uint32_t named = OtherUsers::nameless - 1;
  std::uint32_t slot = OtherUsers::nameless;
  for (std::uint32_t i = 0; i < named; ++i) {
    const std::uint32_t at = 1 + (thread + i) % named;
    OtherUsers::Slot& other = others_->slots[at];
    if (other.uses != 0 && other.thread != thread) continue;
    other.thread = thread;
    slot = at;
    break;
  }
  ++others_->slots[slot].uses;
  ++others_->uses;
  return slot;
}

void UseRecord::leave_slot(std::uint32_t slot) noexcept {
  --others_->slots[slot].uses;
  // The remaining uses belong to the first thread.
  if (--others_->uses == 0) opener_ = others_->first_thread;
}

bool UseRecord::add_waits(StreamId id, Access access, MarkSet& waits) noexcept {
  // Writes that an earlier read of the stream has waited for. (An earlier write has removed them.)
  std::uint64_t behind = 0;
  bool has_others = false;
  for (const Entry& entry : entries()) {
    if (entry.stream.id() == id) {
      behind = std::max(behind, entry.began());
    } else {
      has_others = true;
    }
  }
  if (!has_others) return true;
  for (Entry& entry : entries()) {
    if (entry.stream.id() == id || !must_wait(access, entry)) continue;
    if (entry.is_write() && entry.version <= behind) continue;
    settle(entry);
    if (!waits.try_add(entry.mark())) return false;
  }
  return true;
}

Result<UseRecord::Ticket> UseRecord::try_begin(StreamRef stream, Access access, MarkSet& waits,
                                               LockMode turn, CallSite site) noexcept {
  // Requested now, so that the stream does not end without a mark after the coming work.
  static_cast<void>(stream.next_mark());
  Result<Ticket> ticket = try_lock_in_turn(access, turn, site);
  if (!ticket || (turn == LockMode::if_free && !ticket->has_turn())) [[unlikely]]
    return ticket;
  const std::lock_guard lock(mutex_, std::adopt_lock);
  if (!make_room() || !add_waits(stream.id(), access, waits)) {
    return_turn(*ticket);
    return no_host_memory("the record of a buffer's uses", site);
  }
  ++begun_;
  return ticket;
}

Result<UseRecord::Ticket> UseRecord::try_begin_on_host(Access access, CallSite site) noexcept {
  for (;;) {
    // Wait for devices without holding the turn, because their progress may need other threads.
    if (Result<void> ready = try_wait(access); !ready) return Failure(ready.failure()).at(site);
    const Result<Ticket> ticket = try_lock_in_turn(access, LockMode::wait, site);
    if (!ticket) return ticket;
    ++begun_;
    mutex_.unlock();
    // Other uses may have begun and ended meanwhile.
    const Result<bool> is_ready = try_is_ready(access);
    if (is_ready && *is_ready) return ticket;
    cancel(*ticket);
    if (!is_ready) return Failure(is_ready.failure()).at(site);
  }
}

Result<void> UseRecord::try_order(StreamRef stream, Access access, CallSite site) noexcept {
  MarkSet waits;
  {
    const std::lock_guard lock(mutex_);
    if (has_pause()) [[unlikely]]
      return paused(site);
    if (!add_waits(stream.id(), access, waits)) {
      return no_host_memory("the record of a buffer's uses", site);
    }
  }
  for (const Mark mark : waits.all()) {
    if (Result<void> queued = order_behind(stream, mark, site); !queued) return queued;
  }
  return {};
}

Result<UseRecord::Ticket> UseRecord::try_begin(StreamRef stream, Access access, CallSite site,
                                               LockMode turn) noexcept {
  MarkSet waits;
  Result<Ticket> ticket = try_begin(stream, access, waits, turn, site);
  if (!ticket || (turn == LockMode::if_free && !ticket->has_turn())) return ticket;
  // Devices are queried without the lock.
  for (const Mark mark : waits.all()) {
    if (Result<void> queued = order_behind(stream, mark, site); !queued) {
      cancel(*ticket);
      return queued.failure();
    }
  }
  return ticket;
}

void UseRecord::put(StreamRef stream, std::uint64_t sequence, std::uint64_t began,
                    bool is_write) noexcept {
  ++version_;
  for (Entry& entry : entries()) {
    if (entry.stream == stream && entry.is_write() == is_write) {
      // Overlapping uses of a stream, and threads that share a stream, may end in another order
      // than they began.
      entry = Entry(stream, std::max(sequence, entry.sequence), version_,
                    std::max(began, entry.began()), is_write);
      return;
    }
  }
  ::new (static_cast<void*>(data() + count_)) Entry(stream, sequence, version_, began, is_write);
  ++count_;
}

void UseRecord::forget_up_to(std::uint64_t version) noexcept {
  std::uint16_t kept = 0;
  for (const Entry& entry : entries()) {
    if (entry.version > version) data()[kept++] = entry;
  }
  count_ = kept;
}

void UseRecord::end(const Ticket& ticket, StreamRef stream, Mark mark, Access access) noexcept {
  const std::lock_guard lock(mutex_);
  --begun_;
  return_turn(ticket);
  if (is_write(access)) forget_up_to(ticket.version());
  if (stream.id()) {
    put(stream, mark ? mark.sequence : still_to_come, ticket.version(), is_write(access));
  }
}

void UseRecord::cancel(const Ticket& ticket) noexcept {
  const std::lock_guard lock(mutex_);
  --begun_;
  return_turn(ticket);
}

// --- Pauses

Failure UseRecord::paused(CallSite site) const noexcept {
  return Failure(ErrorCode::access_conflict,
                 "memory with tag '{tag}' is paused and cannot be used. Resume it first.", site)
      .with("tag", others_->paused.name());
}

Failure UseRecord::leave_paused(CallSite site) noexcept {
  Failure why = paused(site);
  mutex_.unlock();
  return why;
}

Result<UseRecord::Ticket> UseRecord::try_pause(Tag tag, MarkSet& uses, CallSite site) noexcept {
  const std::lock_guard lock(mutex_);
  if (has_pause()) return paused(site);
  if (begun_ != 0) {
    return Failure(ErrorCode::access_conflict,
                   "memory with tag '{tag}' cannot be paused: {uses} uses of it have begun and not "
                   "ended. End or cancel the leases, scopes and recorders that use it.",
                   site)
        .with("tag", tag.name())
        .with("uses", begun_);
  }
  if (!others_) others_.reset(new (std::nothrow) OtherUsers);
  if (!others_ || !make_room()) return no_host_memory("the record of a buffer's uses", site);
  for (Entry& entry : entries()) {
    settle(entry);
    if (!uses.try_add(entry.mark())) return no_host_memory("the record of a buffer's uses", site);
  }
  others_->paused = tag;
  ++begun_;
  open_uses_ = 1;
  open_writes_ = 1;
  opener_ = pauser;
  return Ticket(version_, true, true);
}

bool UseRecord::is_paused() const noexcept {
  const std::lock_guard lock(mutex_);
  return has_pause();
}

Result<void> UseRecord::check_not_paused(CallSite site) const noexcept {
  const std::lock_guard lock(mutex_);
  if (!has_pause()) return {};
  return paused(site);
}

Result<void> UseRecord::try_note(StreamRef stream, Mark mark, Access access) noexcept {
  if (!mark) return {};
  const std::lock_guard lock(mutex_);
  if (!make_room()) return no_host_memory("the record of a buffer's uses");
  put(stream, mark.sequence, 0, is_write(access));
  return {};
}

bool UseRecord::try_collect(Access access, MarkSet& earlier) const noexcept {
  const std::lock_guard lock(mutex_);
  for (Entry& entry : const_cast<UseRecord&>(*this).entries()) {
    if (!must_wait(access, entry)) continue;
    settle(entry);
    if (!earlier.try_add(entry.mark())) return false;
  }
  return true;
}

Result<void> UseRecord::try_wait(Access access, CallSite site) const noexcept {
  MarkSet earlier;
  if (!try_collect(access, earlier)) return no_host_memory("the record of a buffer's uses");
  for (const Mark mark : earlier.all()) {
    if (Result<void> done = Device::try_wait(mark, site); !done) return done;
  }
  return {};
}

Result<bool> UseRecord::try_is_ready(Access access) const noexcept {
  MarkSet earlier;
  if (!try_collect(access, earlier)) return no_host_memory("the record of a buffer's uses");
  Result<bool> ready = true;
  for (const Mark mark : earlier.all()) {
    const Result<bool> done = Device::try_is_done(mark);
    if (done && *done) continue;
    // The loss of one device says nothing about uses on other devices.
    if (done || done.failure().code() != ErrorCode::device_lost) return done;
    ready = done;
  }
  return ready;
}

void UseRecord::settle() noexcept {
  const std::lock_guard lock(mutex_);
  for (Entry& entry : entries()) settle(entry);
}

std::size_t UseRecord::list(std::span<Entry> out) const noexcept {
  const std::lock_guard lock(mutex_);
  UseRecord& self = const_cast<UseRecord&>(*this);
  const std::span<Entry> all = self.entries();
  for (Entry& entry : all) settle(entry);
  std::copy_n(all.begin(), std::min(all.size(), out.size()), out.begin());
  return all.size();
}

std::uint64_t UseRecord::version() const noexcept {
  const std::lock_guard lock(mutex_);
  return version_;
}

std::size_t UseRecord::size() const noexcept {
  const std::lock_guard lock(mutex_);
  return count_;
}

void UseRecord::forget_lost() noexcept {
  const std::lock_guard lock(mutex_);
  std::uint16_t kept = 0;
  for (Entry& entry : entries()) {
    settle(entry);
    const Result<bool> done = Device::try_is_done(entry.mark());
    if (done || done.failure().code() != ErrorCode::device_lost) data()[kept++] = entry;
  }
  count_ = kept;
}

void UseRecord::prune() noexcept {
  const std::lock_guard lock(mutex_);
  std::uint16_t kept = 0;
  for (Entry& entry : entries()) {
    if (!is_done(entry)) data()[kept++] = entry;
  }
  count_ = kept;
}

}  // namespace tern
