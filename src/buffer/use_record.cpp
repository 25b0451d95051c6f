#include "tern/buffer/use_record.hpp"

#include <algorithm>
#include <new>
#include <thread>

#include "buffer/stream_order.hpp"
#include "core/no_host_memory.hpp"
#include "device/device_state.hpp"
#include "tern/device/device.hpp"

namespace tern {
namespace {

/// Does a use of one kind have to wait for another?
bool must_wait(Access access, const UseRecord::Entry& earlier) noexcept {
  return earlier.is_write() || is_write(access);
}

}  // namespace

void BriefLock::lock_among_others() noexcept {
  do {
    std::this_thread::yield();
  } while (!try_lock());
}

bool MarkSet::try_add(Mark mark) noexcept {
  Mark* const marks = more_ ? more_.get() : inline_;
  for (std::size_t i = 0; i < count_; ++i) {
    if (marks[i].stream != mark.stream) continue;
    marks[i].sequence = std::max(marks[i].sequence, mark.sequence);
    return true;
  }
  if (count_ == capacity_) {
    std::unique_ptr<Mark[]> larger(new (std::nothrow) Mark[2 * capacity_]);
    if (!larger) return false;
    std::copy_n(marks, count_, larger.get());
    more_ = std::move(larger);
    capacity_ *= 2;
  }
  std::construct_at((more_ ? more_.get() : inline_) + count_++, mark);
  return true;
}

void UseRecord::settle(Entry& entry) noexcept {
  if (entry.sequence != still_to_come) return;
  const DeviceVisit device(entry.stream.device_id());
  // Of a stream that is gone there is no mark, and nothing to wait for.
  entry.sequence = device ? device->next_mark(entry.stream.id()).sequence : 0;
}

bool UseRecord::is_done(Entry& entry) noexcept {
  if (entry.sequence == still_to_come) {
    // The stream of a device that was closed must not even be asked.
    const DeviceVisit device(entry.stream.device_id());
    if (device && entry.stream.is_usable()) return false;
  }
  settle(entry);
  const Result<bool> done = Device::try_is_done(entry.mark());
  return done && *done;
}

bool UseRecord::make_room() noexcept {
  if (count_ + begun_ < capacity_) return true;
  // Before it grows: what is done need not be remembered.
  std::uint32_t kept = 0;
  for (Entry& entry : entries()) {
    if (!is_done(entry)) data()[kept++] = entry;
  }
  count_ = kept;
  if (count_ + begun_ < capacity_) return true;
  const std::uint32_t capacity = 2 * (count_ + begun_ + 1);
  std::unique_ptr<Entry[]> larger(new (std::nothrow) Entry[capacity]);
  if (!larger) return false;
  std::copy_n(data(), count_, larger.get());
  more_ = std::move(larger);
  capacity_ = capacity;
  return true;
}

bool UseRecord::add_waits(StreamId id, Access access, MarkSet& waits) noexcept {
  // Writes that an earlier read of the stream has waited for. (An earlier write has made them
  // forgotten.)
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
                                               CallSite site) noexcept {
  // Asked for, so that the stream does not end without a mark behind what it is going to do.
  static_cast<void>(stream.next_mark());
  const std::lock_guard lock(mutex_);
  if (!make_room() || !add_waits(stream.id(), access, waits)) {
    return no_host_memory("the record of a buffer's uses", site);
  }
  ++begun_;
  return Ticket{version_};
}

Result<void> UseRecord::try_order(StreamRef stream, Access access, CallSite site) noexcept {
  MarkSet waits;
  {
    const std::lock_guard lock(mutex_);
    if (!add_waits(stream.id(), access, waits)) {
      return no_host_memory("the record of a buffer's uses", site);
    }
  }
  for (const Mark mark : waits.all()) {
    if (Result<void> queued = order_behind(stream, mark, site); !queued) return queued;
  }
  return {};
}

Result<UseRecord::Ticket> UseRecord::try_begin(StreamRef stream, Access access,
                                               CallSite site) noexcept {
  MarkSet waits;
  Result<Ticket> ticket = try_begin(stream, access, waits, site);
  if (!ticket) return ticket;
  // Devices are asked without the lock.
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
      // Uses of a stream that overlap, and threads that share one, may end in another order than
      // they began.
      entry = Entry(stream, std::max(sequence, entry.sequence), version_,
                    std::max(began, entry.began()), is_write);
      return;
    }
  }
  ::new (static_cast<void*>(data() + count_)) Entry(stream, sequence, version_, began, is_write);
  ++count_;
}

void UseRecord::forget_up_to(std::uint64_t version) noexcept {
  std::uint32_t kept = 0;
  for (const Entry& entry : entries()) {
    if (entry.version > version) data()[kept++] = entry;
  }
  count_ = kept;
}

void UseRecord::end(const Ticket& ticket, StreamRef stream, Mark mark, Access access) noexcept {
  const std::lock_guard lock(mutex_);
  --begun_;
  if (is_write(access)) forget_up_to(ticket.version);
  if (stream.id()) {
    put(stream, mark ? mark.sequence : still_to_come, ticket.version, is_write(access));
  }
}

void UseRecord::cancel(const Ticket&) noexcept {
  const std::lock_guard lock(mutex_);
  --begun_;
}

Result<void> UseRecord::try_note(StreamRef stream, Mark mark, Access access) noexcept {
  if (!mark) return {};
  const std::lock_guard lock(mutex_);
  if (!make_room()) return no_host_memory("the record of a buffer's uses", {});
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

Result<void> UseRecord::try_wait(Access access) const noexcept {
  MarkSet earlier;
  if (!try_collect(access, earlier)) return no_host_memory("the record of a buffer's uses", {});
  for (const Mark mark : earlier.all()) {
    if (Result<void> done = Device::try_wait(mark); !done) return done;
  }
  return {};
}

Result<bool> UseRecord::try_is_ready(Access access) const noexcept {
  MarkSet earlier;
  if (!try_collect(access, earlier)) return no_host_memory("the record of a buffer's uses", {});
  for (const Mark mark : earlier.all()) {
    const Result<bool> done = Device::try_is_done(mark);
    if (!done || !*done) return done;
  }
  return true;
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

bool UseRecord::has_any_since(std::uint64_t version) const noexcept {
  const std::lock_guard lock(mutex_);
  const std::span<const Entry> all = unshared();
  return std::ranges::any_of(all, [=](const Entry& entry) { return entry.version > version; });
}

std::size_t UseRecord::size() const noexcept {
  const std::lock_guard lock(mutex_);
  return count_;
}

void UseRecord::forget_lost() noexcept {
  const std::lock_guard lock(mutex_);
  std::uint32_t kept = 0;
  for (Entry& entry : entries()) {
    settle(entry);
    const Result<bool> done = Device::try_is_done(entry.mark());
    if (done || done.failure().code() != ErrorCode::device_lost) data()[kept++] = entry;
  }
  count_ = kept;
}

void UseRecord::prune() noexcept {
  const std::lock_guard lock(mutex_);
  std::uint32_t kept = 0;
  for (Entry& entry : entries()) {
    if (!is_done(entry)) data()[kept++] = entry;
  }
  count_ = kept;
}

}  // namespace tern
