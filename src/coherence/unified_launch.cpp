// The part of UnifiedCore that prepares the buffer as an argument of a launch (LaunchMemory).

#include <algorithm>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <utility>

#include "coherence/eviction_request.hpp"
#include "coherence/unified_core.hpp"
#include "core/no_host_memory.hpp"

namespace tern {

Result<void> UnifiedCore::try_claim(std::span<LaunchPart> parts, StreamRef stream,
                                    CallSite site) noexcept {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    LaunchPart& part = parts[i];
    const ByteRange range{part.begin, part.end};
    Result<void> claimed = check_before_access(range, site);
    std::size_t taken = i;
    if (claimed) {
      const Result<std::uint32_t> slot = try_claim_range(
          {.range = range, .access = part.access, .is_host = false, .stream = stream, .site = site},
          LeaseTable::nowhere);
      if (slot) {
        part.claim = *slot;
        ++taken;
        claimed = check_written(range, part.is_input ? Access::read : part.access, site);
      } else {
        claimed = Result<void>(slot.failure());
      }
    }
    if (claimed) continue;
    for (std::size_t k = 0; k < taken; ++k) cancel(parts[k].claim);
    return claimed;
  }
  return {};
}

Result<LaunchMemory::Missing> UnifiedCore::try_missing(StreamRef stream, CallSite site) noexcept {
  const Device device = stream.device();
  if (allocator_.shares_host_copy(device)) return Missing{};
  {
    const std::lock_guard lock(mutex_);
    const unsigned place = copies_.find(device.id());
    if (place != PlaceSet::max_places && copies_.has_copy(place)) return Missing{};
  }
  Result<ResourceHandle> resource = allocator_.try_device_resource(device);
  if (!resource) return Failure(resource.failure()).at(site);
  const std::size_t bytes =
      (*resource)->good_size({.bytes = this->bytes(), .stream = stream, .tag = options_.tag});
  return Missing{*std::move(resource), bytes};
}

Result<void> UnifiedCore::try_make_room(std::size_t bytes, StreamRef stream, CallSite site) noexcept
    try {
  const Device device = stream.device();
  const Result<ResourceHandle> resource = allocator_.try_device_resource(device);
  if (!resource) return Failure(resource.failure()).at(site);
  const std::shared_ptr<Residents> where = Residents::of(device.place());
  EvictionRequest room(*where, {.bytes = bytes,
                                .resource = resource->get(),
                                .stream = stream,
                                .tag = options_.tag,
                                .place = device.spec(),
                                .site = site});
  const std::size_t missing = room.missing_bytes();
  if (missing == 0) return {};
  const Failure why(ErrorCode::out_of_budget);
  if (room.is_hopeless(why)) return room.refusal(why);
  room.part_uses();
  // If this was not enough, try_make_ready() evicts more, or fails.
  static_cast<void>(room.free(missing, why));
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory("the arguments of a launch", site);
}

Result<StorageHandle> UnifiedCore::try_make_ready(StreamRef stream, bool& is_new,
                                                  CallSite site) noexcept {
  const TransferLock mover(*this);
  const Result<unsigned> place = try_place(stream.device(), site);
  if (!place) return place.failure();
  is_new = !copies_.has_copy(*place);
  if (Result<void> there = try_ensure(*place, stream, site); !there) {
    is_new = false;
    return there.failure();
  }
  // From here on, the claims of the stream's launches use this copy, so that nobody drops it.
  const std::lock_guard lock(mutex_);
  for (Slot& lease : leases_.all()) {
    if (lease.place == LeaseTable::nowhere && lease.stream.id() == stream.id()) {
      lease.set_place(*place);
    }
  }
  return copies_.memory_of(*place).storage;
}

Result<void> UnifiedCore::try_bring(std::span<const LaunchPart> parts, StreamRef stream,
                                    CallSite site) noexcept {
  const TransferLock mover(*this);
  const unsigned place = copies_.find(stream.device_id());
  for (const LaunchPart& part : parts) {
    if (!needs_old_bytes(part.access)) continue;
    const TransferReason reason =
        part.access == Access::read ? TransferReason::device_read : TransferReason::device_rw;
    if (Result<void> fetched =
            try_fetch({{part.begin, part.end}, place, stream, reason, part.claim, site});
        !fetched) {
      return fetched;
    }
  }
  const std::lock_guard lock(mutex_);
  const auto changes = static_cast<std::uint32_t>(parts.size());
  if (!copies_.make_room(changes)) {
    return no_host_memory("the directory of a unified buffer", site);
  }
  // From here on, the launch may write. The room for its changes is reserved, so finish() cannot
  // fail.
  copies_.promise(changes);
  copies_.memory_of(place).touch();
  for (const LaunchPart& part : parts) {
    Slot& lease = leases_[part.claim];
    lease.set_place(place);
    lease.is_promised = true;
    lease.is_unlisted =
        part.access == Access::read && !copies_.directory().is_valid(part.begin, part.end, place);
  }
  return {};
}

void UnifiedCore::finish(std::span<const LaunchPart> parts, StreamRef stream, bool is_submitted,
                         bool was_new) noexcept {
  {
    const TransferLock mover(*this);
    StorageHandle gone;  // destroyed after mutex_ is released, and before the transfer lock is
    const std::lock_guard lock(mutex_);
    const unsigned place = copies_.find(stream.device_id());
    for (const LaunchPart& part : parts) {
      Slot& lease = leases_[part.claim];
      if (std::exchange(lease.is_promised, false)) copies_.end_promise();
      if (!is_submitted) continue;
      copies_.memory_of(place).note_stream_use(part.access);
      if (is_write(part.access))
        copies_.directory().apply(part.access, part.begin, part.end, place);
    }
    // Another launch may use the copy by now.
    bool is_used = false;
    for (const Slot& lease : leases_.all()) {
      const std::uint32_t number = leases_.number_of(lease);
      is_used |= lease.place == place &&
                 std::ranges::find(parts, number, &LaunchPart::claim) == parts.end();
    }
    if (!is_submitted && was_new && place != PlaceSet::max_places && copies_.has_copy(place) &&
        !is_used && !copies_.directory().valid_somewhere(0, bytes()).has(place)) {
      begin_transit(copies_[place].memory);
      gone = leave(place);
    }
  }
  for (const LaunchPart& part : parts) {
    if (is_submitted && is_write(part.access)) {
      const std::lock_guard lock(mutex_);
      spread(part.claim);
    }
    cancel(part.claim);
  }
}

}  // namespace tern
