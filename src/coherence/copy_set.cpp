#include "coherence/copy_set.hpp"

#include <algorithm>
#include <new>

#include "coherence/byte_ranges.hpp"

namespace tern {

CopySet::CopySet(std::size_t bytes) : directory_(bytes) {
  places_.reserve(2);
  memories_.reserve(2);
  places_.push_back({});
  memories_.emplace_back();
}

// --- Places

std::optional<unsigned> CopySet::find(Place place) const noexcept {
  if (place.is_host()) return host;
  const unsigned found = find(place.device_id());
  if (found == no_place) return std::nullopt;
  return found;
}

bool CopySet::try_add(const Device& device, std::unique_ptr<Resident>& resident) noexcept {
  const unsigned place = count();
  try {
    // Reserves both lists first, so that nothing has changed if one of them cannot grow.
    memories_.reserve(place + std::size_t{1});
    places_.reserve(place + std::size_t{1});
  } catch (const std::bad_alloc&) {
    return false;
  }
  places_.push_back({device.id(), resident ? place : host, device, device.place()});
  memories_.emplace_back().set_resident(std::move(resident));
  return true;
}

std::string_view CopySet::name_of(unsigned place) const noexcept {
  if (place == host) return "host";
  return place < places_.size() ? places_[place].device.spec() : std::string_view("device");
}

// --- Memories

void CopySet::Memory::set(StorageHandle made) noexcept {
  storage = std::move(made);
  address = storage->first_byte();
  device = storage->device().id();
  wants_notes = storage->device().info().wants_notes;
  is_read_clear = is_write_clear = false;
  ++stream_uses;
  deferred_use = {};
}

void CopySet::Memory::note_stream_use(Access access) noexcept {
  ++stream_uses;
  is_write_clear = false;
  if (is_write(access)) is_read_clear = false;
}

PlaceSet CopySet::sharing(unsigned place) const noexcept {
  PlaceSet found;
  for (unsigned other = 0; other < places_.size(); ++other) {
    if (places_[other].memory == places_[place].memory) found = found.with(other);
  }
  return found;
}

StorageHandle CopySet::leave(unsigned place) noexcept {
  Memory& memory = memory_of(place);
  memory.parts = memory.parts.without(place);
  return memory.parts.empty() ? std::exchange(memory.storage, {}) : StorageHandle();
}

void CopySet::clear_deferred_uses() noexcept {
  for (Memory& memory : memories_) memory.deferred_use = {};
}

// --- The directory

void CopySet::note_write(unsigned place, ByteRange range, Access access) noexcept {
  if (is_write(access) && !directory_.is_only(range.begin, range.end, place)) {
    directory_.apply(access, range.begin, range.end, place);
  }
}

ByteRange CopySet::only_in(PlaceSet places, ByteRange range) const noexcept {
  ByteRange found;
  directory_.visit(range.begin, range.end, [&](std::size_t begin, std::size_t end, PlaceSet valid) {
    if (valid.empty() || (valid & places) != valid) return;
    found = {found.end == 0 ? begin : found.begin, end};
  });
  return found;
}

void CopySet::reset(Validity directory, InFlightBytes in_flight) noexcept {
  directory_ = std::move(directory);
  in_flight_ = std::move(in_flight);
}

void CopySet::forget_lost(const InFlightBytes::Entry& one, Loss& loss) noexcept {
  const PlaceSet own = memories_[host].parts;
  const std::size_t first = one.range.begin, last = one.range.end;
  // A visit must not change the directory, so each pass finds the next lost range and then forgets
  // it.
  for (std::size_t at = first; at < last && make_room();) {
    ByteRange next{last, last};
    directory_.visit(at, last, [&](std::size_t begin, std::size_t end, PlaceSet valid) {
      if (valid.empty() || (valid & own) != valid) return;
      if (next.begin == next.end) next = {begin, end};
    });
    at = next.end;
    if (is_empty(next)) continue;
    directory_.forget(next.begin, next.end);
    const bool is_first = loss.bytes == 0;
    loss.range = is_first ? next : hull(loss.range, next);
    loss.source =
        is_first || loss.source == one.source ? one.source : InFlightBytes::several_sources;
    loss.bytes += next.end - next.begin;
  }
}

// --- Queries

BufferState CopySet::state_of(PlaceSet valid) const noexcept {
  if (valid.empty()) return BufferState::uninitialized;
  PlaceSet devices;
  for (unsigned place = 1; place < places_.size(); ++place) {
    if (has_copy(place)) devices = devices.with(place);
  }
  const bool on_host = valid.has(host);
  const PlaceSet on_devices = valid & devices;
  if (on_host) {
    if (devices.empty()) return BufferState::host_only;
    if (on_devices.empty()) return BufferState::host_dirty;
    return on_devices == devices ? BufferState::synchronized : BufferState::mixed;
  }
  return has_copy(host) ? BufferState::device_dirty : BufferState::device_only;
}

BufferState CopySet::state(ByteRange range) const noexcept {
  std::optional<BufferState> all;
  directory_.visit(range.begin, range.end, [&](std::size_t, std::size_t, PlaceSet valid) {
    const BufferState one = state_of(valid);
    all = !all || *all == one ? one : BufferState::mixed;
  });
  return all.value_or(BufferState::uninitialized);
}

std::vector<Place> CopySet::places_in(PlaceSet set) const {
  std::vector<Place> found;
  for (unsigned place = 0; place < places_.size(); ++place) {
    if (set.has(place)) found.push_back(places_[place].place);
  }
  return found;
}

std::vector<Place> CopySet::valid_places(ByteRange range) const {
  if (range.begin >= range.end) return {};
  return places_in(directory_.valid_everywhere(range.begin, range.end));
}

bool CopySet::is_stale_on(ByteRange range, Place place) const noexcept {
  const std::optional<unsigned> found = find(place);
  bool is_stale = false;
  directory_.visit(range.begin, range.end, [&](std::size_t, std::size_t, PlaceSet valid) {
    is_stale |= !valid.empty() && (!found || !valid.has(*found));
  });
  return is_stale;
}

std::vector<RawUnified::Interval> CopySet::intervals(ByteRange range) const {
  std::vector<RawUnified::Interval> all;
  directory_.visit(range.begin, range.end, [&](std::size_t begin, std::size_t end, PlaceSet valid) {
    all.push_back({begin, end, places_in(valid)});
  });
  return all;
}

CopyCosts CopySet::costs_at(unsigned place) const noexcept {
  CopyCosts costs;
  const PlaceEntry& to = places_[place];
  for (unsigned source = 0; source < places_.size(); ++source) {
    const PlaceEntry& from = places_[source];
    std::uint8_t cost = 3;  // through the host
    if (from.memory == to.memory) {
      cost = 0;
    } else if (source == host || place == host) {
      cost = 2;
    } else if (from.device.info().backend == to.device.info().backend &&
               from.device.can(Capability::peer_copies) && to.device.can(Capability::peer_copies)) {
      cost = 1;
    }
    costs.of_source[source] = cost;
  }
  return costs;
}

}  // namespace tern
