// The facts that a storage records besides its uses: written bytes, open host accesses, memory
// advice.

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "buffer/memory_users.hpp"
#include "buffer/storage_cold_state.hpp"
#include "core/no_host_memory.hpp"
#include "core/spare_records.hpp"
#include "tern/buffer/storage_options.hpp"
#include "tern/detail/buffer/storage.hpp"
#include "tern/device/device.hpp"

namespace tern {

auto& Storage::ColdState::spare_records() noexcept {
  static thread_local SpareRecords<sizeof(ColdState), alignof(ColdState), 64> records;
  return records;
}
void* Storage::ColdState::operator new(std::size_t, const std::nothrow_t&) noexcept {
  return spare_records().try_take();
}
void Storage::ColdState::operator delete(void* record) noexcept { spare_records().give(record); }
void Storage::ColdState::operator delete(void* record, const std::nothrow_t&) noexcept {
  operator delete(record);
}

Storage::ColdState* Storage::make_cold() noexcept {
  ColdState* there = cold();
  if (there != nullptr) return there;
  ColdState* const mine = new (std::nothrow) ColdState;
  if (mine == nullptr || cold_.compare_exchange_strong(there, mine, std::memory_order_acq_rel)) {
    return mine;
  }
  delete mine;
  return there;
}

Result<void> Storage::check_ranges_arrived(std::size_t offset, std::size_t bytes,
                                           CallSite site) const noexcept {
  ColdState* const cold = this->cold();
  if (cold == nullptr) return {};
  const std::lock_guard lock(cold->mutex);
  cold->forget_arrived();
  for (const ColdState::Expected& one : cold->expected) {
    if (one.arrival->state() == Arrival::State::failed &&
        one.ranges.has_some(offset, offset + bytes)) {
      return Failure(one.arrival->failure()).at(site);
    }
  }
  if (cold->expected.empty() && cold->written.has_all(this->bytes())) {
    bytes_and_written_.fetch_or(all_written_bit, std::memory_order_acq_rel);
  }
  return {};
}

void Storage::expect(std::size_t offset, std::size_t bytes,
                     std::shared_ptr<Arrival> arrival) noexcept try {
  if (bytes == 0 || arrival->state() == Arrival::State::arrived) return;
  ColdState* const cold = make_cold();
  if (cold == nullptr) return;
  const std::lock_guard lock(cold->mutex);
  // If all bytes were written since, nothing is expected any more.
  if (is_all_written()) {
    cold->expected.clear();
    cold->written.add(0, this->bytes());
  }
  cold->forget_arrived();
  cold->stop_expecting({offset, offset + bytes});
  // The rows of one copy come one after the other.
  if (cold->expected.empty() || cold->expected.back().arrival != arrival) {
    cold->expected.push_back({{}, std::move(arrival)});
  }
  cold->expected.back().ranges.add(offset, offset + bytes);
  bytes_and_written_.fetch_and(~all_written_bit, std::memory_order_release);
} catch (const std::bad_alloc&) {
  // The stream still reports the failure.
}

Result<void> Storage::check_ranges_written(std::size_t offset, std::size_t bytes,
                                           CallSite site) const noexcept {
  if (Result<void> there = check_ranges_arrived(offset, bytes, site); !there) return there;
  if (is_all_written()) return {};
  ByteRange gap = {offset, offset + bytes};
  if (ColdState* const cold = this->cold()) {
    const std::lock_guard lock(cold->mutex);
    const std::optional<ByteRange> first = cold->written.first_gap(gap.begin, gap.end);
    if (!first) return {};
    gap = *first;
  }
  return Failure(ErrorCode::never_written,
                 "bytes {begin} to {end} of buffer {id} were never written. Write them first, or "
                 "create the buffer with Contents::zero or Contents::unspecified.",
                 site)
      .with("id", id_.value)
      .with("begin", gap.begin)
      .with("end", gap.end);
}

void Storage::note_written(std::size_t offset, std::size_t bytes) noexcept {
  if (bytes == 0) return;
  if (are_writes_counted_.load(std::memory_order_acquire)) [[unlikely]] {
    cold()->writes.fetch_add(1, std::memory_order_acq_rel);
  }
  std::size_t word = bytes_and_written_.load(std::memory_order_acquire);
  while ((word & all_written_bit) == 0 && offset == 0 && bytes >= word) {
    if (bytes_and_written_.compare_exchange_weak(word, word | all_written_bit,
                                                 std::memory_order_acq_rel)) {
      return;
    }
  }
  if ((word & all_written_bit) != 0) return;
  try {
    ColdState* const cold = make_cold();
    if (cold == nullptr) throw std::bad_alloc();
    const std::lock_guard lock(cold->mutex);
    cold->written.add(offset, offset + bytes);
    cold->stop_expecting({offset, offset + bytes});
    // The size cannot change under the lock.
    if (cold->expected.empty() && cold->written.has_all(this->bytes())) {
      bytes_and_written_.fetch_or(all_written_bit, std::memory_order_acq_rel);
    }
  } catch (const std::bad_alloc&) {
    // Without memory for the list, allow too much rather than reject a read of written bytes.
    bytes_and_written_.fetch_or(all_written_bit, std::memory_order_acq_rel);
  }
}

void Storage::note_unwritten(std::size_t offset, std::size_t bytes) noexcept {
  if (bytes == 0 || contents_ == Contents::unspecified) return;
  ColdState* const cold = make_cold();
  if (cold == nullptr) return;
  const std::lock_guard lock(cold->mutex);
  try {
    // If all bytes were written since, nothing is expected any more.
    if (is_all_written()) {
      cold->expected.clear();
      cold->written.add(0, this->bytes());
    }
    cold->stop_expecting({offset, offset + bytes});
    cold->written.remove(offset, offset + bytes);
    bytes_and_written_.fetch_and(~all_written_bit, std::memory_order_release);
  } catch (const std::bad_alloc&) {
    // Without memory for the list, allow too much.
  }
}

Result<void> Storage::try_be_found() noexcept {
  ColdState* const cold = make_cold();
  if (cold == nullptr) return no_host_memory("a buffer", site_);
  Result<void> added = MemoryUsers::try_add(*this, device_address_, block_.bytes, site_);
  cold->can_be_paused = bool(added);
  return added;
}

void Storage::stop_being_found() noexcept {
  ColdState* const cold = this->cold();
  if (cold != nullptr && std::exchange(cold->can_be_paused, false)) {
    MemoryUsers::remove(*this, device_address_);
  }
}

Result<UseRecord::Ticket> Storage::try_pause(Tag tag, MarkSet& uses, CallSite site) noexcept {
  Result<UseRecord::Ticket> ticket = uses_.try_pause(tag, uses, site);
  if (!ticket) return ticket;
  // After the pause has begun: an access or an export that begins now fails.
  const auto refuse = [&](const char* why) {
    uses_.cancel(*ticket);
    return Failure(ErrorCode::access_conflict,
                   "buffer {id} with tag '{tag}' cannot be paused: {why}.", site)
        .with("id", id_.value)
        .with("tag", tag.name())
        .with("why", why);
  };
  ColdState& cold = *this->cold();
  {
    const std::lock_guard lock(cold.mutex);
    if (!cold.accesses.is_empty()) return refuse("the host accesses it. End the host views first");
  }
  {
    const std::lock_guard lock(cold.exports_lock);
    if (cold.exports != 0) return refuse("it is exported. Release the exports first");
  }
  if (!are_exports_done()) {
    return refuse(
        "it was exported, and work on the device may still use it. Call synchronize() of the "
        "device first");
  }
  return ticket;
}

void Storage::forget_contents() noexcept {
  note_unwritten(0, bytes());
  note_unspecified(0, bytes());
}

Result<void> Storage::try_note_edges(ByteRange range) noexcept try {
  ColdState* const cold = make_cold();
  if (cold == nullptr) return no_host_memory("the hints of a buffer", site_);
  const std::lock_guard lock(cold->mutex);
  cold->edges.insert(range.begin);
  cold->edges.insert(range.end);
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory("the hints of a buffer", site_);
}

Result<void> Storage::try_note_advice(Advice advice, Place place) noexcept try {
  ColdState* const cold = make_cold();
  if (cold == nullptr) return no_host_memory("the hints of a buffer", site_);
  const std::lock_guard lock(cold->mutex);
  switch (advice) {
    case Advice::set_read_mostly:
      cold->advice.emplace(Advice::unset_read_mostly, Place::host());
      break;
    case Advice::set_preferred_location:
      cold->advice.emplace(Advice::unset_preferred_location, Place::host());
      break;
    case Advice::set_accessed_by:
      cold->advice.emplace(Advice::unset_accessed_by, place);
      break;
    case Advice::unset_read_mostly:
    case Advice::unset_preferred_location:
    case Advice::unset_accessed_by:
      // The unset may cover only a part. Undoing advice that is not there does no harm.
      break;
  }
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory("the hints of a buffer", site_);
}

void Storage::take_advice_back() noexcept {
  ColdState* const cold = this->cold();
  // Memory of another owner keeps its advice, which the owner may want.
  if (cold == nullptr || cold->advice.empty() || !block_) return;
  for (const auto& [advice, place] : cold->advice) {
    static_cast<void>(device().try_advise(device_address_, bytes(), advice, place));
  }
  cold->advice.clear();
}

Result<std::vector<std::size_t>> Storage::try_edges(ByteRange range) const noexcept try {
  std::vector<std::size_t> inside;
  ColdState* const cold = this->cold();
  if (cold == nullptr) return inside;
  const std::lock_guard lock(cold->mutex);
  for (auto edge = cold->edges.upper_bound(range.begin);
       edge != cold->edges.end() && *edge < range.end; ++edge) {
    inside.push_back(*edge);
  }
  return inside;
} catch (const std::bad_alloc&) {
  return no_host_memory("the hints of a buffer", site_);
}

Result<std::uint64_t> Storage::try_count_writes() noexcept {
  ColdState* const cold = make_cold();
  if (cold == nullptr) return no_host_memory("the write count of a buffer", site_);
  are_writes_counted_.store(true, std::memory_order_release);
  return cold->writes.load(std::memory_order_acquire);
}

Result<std::vector<ByteRange>> Storage::try_written_ranges(std::size_t offset,
                                                           std::size_t bytes) const noexcept try {
  if (bytes == 0) return std::vector<ByteRange>();
  if (is_all_written()) {
    return std::vector<ByteRange>{{offset, offset + bytes}};
  }
  ColdState* const cold = this->cold();
  if (cold == nullptr) return std::vector<ByteRange>();
  const std::lock_guard lock(cold->mutex);
  return cold->written.inside(offset, offset + bytes);
} catch (const std::bad_alloc&) {
  return no_host_memory("the written ranges of a buffer", site_);
}

Result<std::uint64_t> Storage::try_begin_host_access(Access access, std::size_t offset,
                                                     std::size_t bytes, CallSite site) noexcept {
  if (!is_checked_ || bytes == 0) return std::uint64_t{0};
  ColdState* const cold = make_cold();
  if (cold == nullptr) return no_host_memory("a checked host access", site);
  const std::lock_guard lock(cold->mutex);
  try {
    const HostAccesses::Open* other = cold->accesses.conflict(access, offset, offset + bytes);
    if (other == nullptr) return cold->accesses.add(access, offset, offset + bytes, site);
    return Failure(
               ErrorCode::access_conflict,
               "bytes {begin} to {end} of buffer {id} are accessed at {b_file}:{b_line} while the "
               "access from {a_file}:{a_line} is open. End the first access before the second.",
               site)
        .with("id", id_.value)
        .with("begin", std::max(offset, other->begin))
        .with("end", std::min(offset + bytes, other->end))
        .with("a_line", other->site.line)
        .with("b_line", site.line)
        .with("a_file", other->site.file)
        .with("b_file", site.file);
  } catch (const std::bad_alloc&) {
    return no_host_memory("a checked host access", site);
  }
}

void Storage::end_host_access(std::uint64_t ticket) noexcept {
  if (ticket == 0) return;
  const std::lock_guard lock(cold()->mutex);
  cold()->accesses.remove(ticket);
}

}  // namespace tern
