// The part of UnifiedCore that adds places and copies, and queues the copies of bytes.

#include <algorithm>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "buffer/copy_engine.hpp"
#include "buffer/copy_route.hpp"
#include "buffer/stream_order.hpp"
#include "buffer/transfer_counts.hpp"
#include "coherence/copy_stream.hpp"
#include "coherence/unified_core.hpp"
#include "core/no_host_memory.hpp"
#include "launch/last_mark.hpp"
#include "tern/buffer/copy.hpp"

namespace tern {
namespace {

/// Returns whether the same copy may succeed later, without a change to the program.
bool may_pass(ErrorCode cause) noexcept {
  return cause == ErrorCode::driver || cause == ErrorCode::out_of_memory ||
         cause == ErrorCode::out_of_budget || cause == ErrorCode::capacity ||
         cause == ErrorCode::file || cause == ErrorCode::timeout;
}

}  // namespace

Failure UnifiedCore::sync_failed(unsigned from, unsigned to, ByteRange range, const Failure& cause,
                                 CallSite site) const noexcept {
  if (cause.code() != ErrorCode::device_lost || from == host || from == PlaceSet::max_places) {
    return not_completed(from, to, range, cause, site);
  }
  return copy_failed(
      "bytes {begin} to {end} of buffer '{tag}' are lost with '{a}', which had the only copy "
      "({cause}). Drop the copy on '{a}' with Drop::discard, and write the bytes again.",
      from, to, range, cause, site);
}

Failure UnifiedCore::not_completed(unsigned from, unsigned to, ByteRange range,
                                   const Failure& cause, CallSite site) const noexcept {
  const char* sentence =
      "copying bytes {begin} to {end} of buffer '{tag}' {direction} ('{a}' to '{b}') failed: "
      "{cause}. The buffer is unchanged.";
  if (cause.code() == ErrorCode::device_lost) {
    sentence =
        "copying bytes {begin} to {end} of buffer '{tag}' {direction} ('{a}' to '{b}') failed: "
        "{cause}. Bytes that only the lost device had are lost. Drop its copy with Drop::discard, "
        "and write the bytes again.";
  } else if (may_pass(cause.code())) {
    sentence =
        "copying bytes {begin} to {end} of buffer '{tag}' {direction} ('{a}' to '{b}') failed: "
        "{cause}. The buffer is unchanged. Try again.";
  }
  return copy_failed(sentence, from, to, range, cause, site);
}

Failure UnifiedCore::copy_failed(const char* sentence, unsigned from, unsigned to, ByteRange range,
                                 const Failure& cause, CallSite site) const noexcept {
  const bool from_host = from == host, to_host = to == host;
  return Failure(ErrorCode::sync_failed, sentence, site)
      .with("begin", range.begin)
      .with("end", range.end)
      .with("cause_code", static_cast<std::uint64_t>(cause.code()))
      .with("direction", to_host     ? "to the host"
                         : from_host ? "to the device"
                                     : "between devices")
      .with("tag", options_.tag.name())
      .with("a", copies_.name_of(from))
      .with("b", copies_.name_of(to))
      .with("cause", name(cause.code()));
}

// --- Places and memories

Result<unsigned> UnifiedCore::try_place(const Device& device, CallSite site) noexcept {
  if (const unsigned found = copies_.find(device.id()); found != PlaceSet::max_places) return found;
  const unsigned place = static_cast<unsigned>(copies_.count());
  if (place == PlaceSet::max_places) {
    return Failure(ErrorCode::capacity,
                   "buffer '{tag}' has its limit of {max} places, so '{device}' cannot be added. "
                   "Make a new buffer.",
                   site)
        .with("max", PlaceSet::max_places)
        .with("tag", options_.tag.name())
        .with("device", device.spec());
  }
  if ((dtype_ == DType::f64 || dtype_ == DType::complex128) && !device.can(Capability::float64)) {
    return Failure(ErrorCode::unsupported,
                   "'{device}' does not support {what}, the element type of buffer '{tag}'. Use "
                   "another type, or another device.",
                   site)
        .with("what", name(dtype_))
        .with("device", device.spec())
        .with("tag", options_.tag.name());
  }
  const bool is_shared = allocator_.shares_host_copy(device);
  std::unique_ptr<Resident> resident;
  try {
    if (!is_shared) {
      resident = std::make_unique<Resident>(Residents::of(device.place()), this, place);
    }
  } catch (const std::bad_alloc&) {
    return no_host_memory("a place of a unified buffer", site);
  }
  const std::lock_guard lock(mutex_);
  // If this fails, `resident` is destroyed after the lock is released: it locks its list, which
  // comes before mutex_ in the lock order.
  if (!copies_.try_add(device, resident)) {
    return no_host_memory("a place of a unified buffer", site);
  }
  return place;
}

Result<void> UnifiedCore::try_ensure(unsigned place, StreamRef stream, CallSite site,
                                     Eviction most) noexcept {
  if (copies_[place].memory == host) {
    if (Result<void> back = try_unspill(site); !back) return back;
  }
  if (copies_.has_copy(place)) return {};
  // If another place already has this memory, the place joins it: a device that shares the host's
  // memory.
  StorageHandle storage = copies_.memory_of(place).storage;
  const bool is_new = !storage;
  if (is_new) {
    Result<StorageHandle> made = try_make_memory(place, bytes_, stream, site, most);
    if (!made) return made.failure();
    storage = *std::move(made);
  }
  {
    const std::lock_guard lock(mutex_);
    Memory& memory = copies_.memory_of(place);
    if (is_new) memory.set(std::move(storage));
    memory.parts = memory.parts.with(place);
  }
  if (is_checked_ && is_new) return try_poison(place, {0, bytes_}, stream, site);
  return {};
}

// --- Copies

CopyCosts UnifiedCore::costs_at(unsigned place, std::span<const ByteRange> wanted) const noexcept {
  CopyCosts costs = copies_.costs_at(place);
  costs.merge_below = options_.coalesce_gap_bytes;
  PlaceSet asked = copies_.sharing(host);
  // Each pass queries the sources that would be chosen. If one of them is lost, other sources may
  // be chosen instead, so the loop ends when a pass queries no new device.
  while (true) {
    PlaceSet taken;
    {
      const std::lock_guard lock(mutex_);
      for (const ByteRange& range : wanted) {
        copies_.directory().visit(range.begin, range.end,
                                  [&](std::size_t, std::size_t, PlaceSet valid) {
                                    if (!valid.has(place) && valid.size() > 1)
                                      taken = taken.with(costs.cheapest(valid));
                                  });
      }
    }
    bool is_new = false;
    for (; !taken.empty(); taken = taken.without(taken.first())) {
      const unsigned source = taken.first();
      if (asked.has(source)) continue;
      asked = asked.with(source);
      is_new = true;
      if (is_lost(copies_[source].device)) costs.of_source[source] = CopyCosts::last_resort;
    }
    if (!is_new) return costs;
  }
}

Result<void> UnifiedCore::try_issue(std::span<const CopyRun> runs, const StorageHandle& to,
                                    const StorageHandle& from, StreamRef stream,
                                    CallSite site) noexcept try {
  if (is_checked_ && to == copies_.memory(host).storage) {
    for (const CopyRun& run : runs) checks_.forget({run.begin, run.end});
  }
  // Runs of equal size at equal distances are one pitched copy. All others are a batch.
  const std::size_t width = runs[0].end - runs[0].begin;
  const std::size_t pitch = runs.size() > 1 ? runs[1].begin - runs[0].begin : 0;
  bool is_regular = true;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    is_regular &=
        runs[i].end - runs[i].begin == width && runs[i].begin == runs[0].begin + i * pitch;
  }
  if (is_regular) {
    const CopyRows::Side side{runs[0].begin, pitch, 0};
    const std::size_t bytes = width * runs.size();
    if (Result<void> may = try_download(*to, *from, bytes, stream.device_id(), site); !may) {
      return may;
    }
    const Result<CopyRoute> queued = try_run_copy({*to, side, *from, side, width, runs.size()},
                                                  stream, FurtherStreams::fresh, site);
    if (!queued) return queued.failure();
    count_transfer(*to, *from, bytes, *queued);
    return {};
  }
  std::vector<BufferCopy> copies;
  copies.reserve(runs.size());
  for (const CopyRun& run : runs) {
    const auto part = [&](const StorageHandle& storage) {
      return Buffer::try_over(storage, run.begin, Shape::flat(run.end - run.begin), DType::byte,
                              site)
          .value();
    };
    copies.push_back({part(to), part(from)});
  }
  const Result<Mark> queued = try_copy_batch(copies, stream, site);
  return queued ? Result<void>() : Result<void>(queued.failure());
} catch (const std::bad_alloc&) {
  return no_host_memory("copies between places", site);
}

Result<void> UnifiedCore::try_note_export(const Slot& lease) noexcept {
  if (!lease.has_untracked_writer || !lease.has_use) return {};
  Memory& memory = copies_.memory_of(lease.place);
  memory.note_stream_use(Access::discard);
  return memory.storage->uses().try_note(lease.stream, last_mark(lease.stream), Access::discard);
}

Result<void> UnifiedCore::try_begin_use(unsigned place, StreamRef stream, Access access,
                                        ByteRange range, UseRecord::Ticket& ticket,
                                        CallSite site) noexcept {
  Storage& storage = *copies_.memory_of(place).storage;
  const Result<UseRecord::Ticket> begun =
      storage.uses().try_begin(stream, access, site, UseRecord::LockMode::none);
  if (!begun) return begun.failure();
  // Tells the checker if a stream of another backend uses host memory of this device.
  if (Result<void> noted =
          note_foreign_use(storage, stream, access, range.begin, range.end - range.begin, site);
      !noted) {
    storage.uses().cancel(*begun);
    return noted;
  }
  ticket = *begun;
  return {};
}

// --- Checked mode

Result<void> UnifiedCore::try_poison_discarded(unsigned place, ByteRange range, StreamRef stream,
                                               CallSite site) noexcept {
  if (range.begin == range.end) return {};
  StorageHandle storage;
  {
    const std::lock_guard lock(mutex_);
    storage = copies_.memory_of(place).storage;
  }
  if (!storage) return {};  // spilled
  Pattern pattern;
  pattern.bytes[0] = std::byte{poison};
  return stream.try_fill_bytes(address_for(*storage, stream.device_id()) + range.begin,
                               range.end - range.begin, pattern, site);
}

Result<void> UnifiedCore::try_poison(unsigned place, ByteRange range, StreamRef stream,
                                     CallSite site) noexcept try {
  const unsigned memory = copies_[place].memory;
  const PlaceSet sharing = copies_.sharing(place);
  const std::vector<ByteRange> spoilt =
      ranges_where(range, [&](PlaceSet valid) { return (valid & sharing).empty(); });
  if (!copies_.memory(memory).storage) return {};  // spilled
  Storage& storage = *copies_.memory(memory).storage;
  for (const ByteRange& one : spoilt) {
    const std::size_t bytes = one.end - one.begin;
    if (memory == host) {
      // Done by the host, and only if it need not wait: poison is only a debugging aid.
      const Result<bool> is_free = storage.uses().try_is_ready(Access::discard);
      if (!is_free || !*is_free) continue;
      std::byte* const address = address_for(storage, {}) + one.begin;
      if (Result<void> noted =
              storage.device().try_note_host_access(address, bytes, Access::discard, site);
          !noted) {
        return noted;
      }
      checks_.forget(one);
      std::fill_n(address, bytes, std::byte{poison});
      continue;
    }
    Result<CopyStream> runner = CopyStream{{}, stream};
    if (!stream.id())
      runner = CopyStream::try_choose(copies_[place].device, storage, Access::discard);
    if (!runner) return runner.failure();
    const StreamRef on = runner->stream;
    // A use of its own, recorded before the transfer lock is released, so that nobody finds the
    // memory free between the poison and the lease that it is for.
    Result<StorageUse> use = storage.try_use(on, Access::discard, one.begin, bytes, site);
    if (!use) return use.failure();
    Pattern pattern;
    pattern.bytes[0] = std::byte{poison};
    if (Result<void> filled = on.try_fill_bytes(address_for(storage, on.device_id()) + one.begin,
                                                bytes, pattern, site);
        !filled) {
      return filled;
    }
    use->end();
  }
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory("checked memory", site);
}

void UnifiedCore::poison_stale(ByteRange range, unsigned written, std::uint32_t own,
                               CallSite site) noexcept {
  const TransferLock mover(*this);
  {
    const std::lock_guard lock(mutex_);
    const auto overlaps = [&](const Slot& lease) { return lease.overlaps(range); };
    if (leases_.find_other(own, overlaps) != nullptr) return;
  }
  for (unsigned place = 0; place < copies_.count(); ++place) {
    if (copies_[place].memory == copies_[written].memory || !copies_.has_copy(place)) continue;
    static_cast<void>(try_poison(place, range, {}, site));
  }
}

}  // namespace tern
