#include "coherence/lease_table.hpp"

#include <new>

#include "core/thread_number.hpp"

namespace tern {

std::uint32_t LeaseTable::open(const Request& request, const CallSite& site) noexcept {
  if (first_free_ == 0) {
    try {
      slots_.emplace_back();
    } catch (const std::bad_alloc&) {
      return no_lease;
    }
    first_free_ = static_cast<std::uint32_t>(slots_.size());
  }
  return open_free(request, this_thread(), site);
}

const LeaseTable::Slot* LeaseTable::conflict(ByteRange range, Access access) const noexcept {
  if (open_count_ == 0) [[likely]]
    return nullptr;
  for (const Slot& slot : slots_) {
    if (is_conflict(slot, range, access)) return &slot;
  }
  return nullptr;
}

const LeaseTable::Slot* LeaseTable::conflict_with_thread(std::uint64_t thread, ByteRange range,
                                                         Access access) const noexcept {
  for (const Slot& slot : slots_) {
    if (slot.thread == thread && is_conflict(slot, range, access)) return &slot;
  }
  return nullptr;
}

void LeaseTable::set_untracked_writer(Slot& slot) noexcept {
  slot.kind = Kind::exported;
  if (!std::exchange(slot.has_untracked_writer, true)) ++untracked_writers_;
}

bool LeaseTable::wait(SpinLock& mutex, ReleaseSignal& signal, const Deadline& deadline) {
  const std::uint64_t before = releases_;
  ++waiters_;
  mutex.unlock();
  bool is_released = true;
  {
    std::unique_lock lock(signal.mutex_);
    const auto has_released = [&] {
      const std::lock_guard brief(mutex);
      return releases_ != before;
    };
    if (deadline) {
      is_released = signal.released_.wait_until(lock, *deadline, has_released);
    } else {
      signal.released_.wait(lock, has_released);
    }
  }
  mutex.lock();
  --waiters_;
  return is_released;
}

}  // namespace tern
