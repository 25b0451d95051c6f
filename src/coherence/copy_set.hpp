// CopySet describes the copies of one unified buffer: which places the buffer has, which memory
// each place uses, and which bytes are up to date where.
//
// A place is the host or a device, and has a number; the host is 0. A memory is the storage of a
// copy. Memory i belongs to place i, but a device that shares the host's memory uses memory 0
// instead of its own. A place has a copy while its memory lists it (Memory::parts). Places are
// added and never removed. The directory (Validity) says where each byte is up to date, and
// InFlightBytes which of the host's bytes are still in flight.
//
// CopySet only records: it calls no device, and moves and frees no memory. Not synchronized:
// UnifiedCore::mutex_ guards it. Places and storages change only under mutex_ and the transfer
// lock, so either lock is enough to read them.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "coherence/in_flight_bytes.hpp"
#include "coherence/residents.hpp"
#include "tern/detail/buffer/storage.hpp"
#include "tern/detail/coherence/raw_unified.hpp"
#include "tern/detail/coherence/validity.hpp"

namespace tern {

class CopySet {
 public:
  static constexpr unsigned host = 0;
  /// The result of find() for a device that is not a place of the buffer.
  static constexpr unsigned no_place = PlaceSet::max_places;

  /// A place: the host, or a device that has used the buffer.
  struct PlaceEntry {
    DeviceId id = {};  // empty for the host
    /// Its own number, or that of the host if the device shares the host's memory.
    unsigned memory = 0;
    Device device = {};
    Place place = {};
  };
  /// The storage of a copy, and what the fast path needs to know about it.
  struct Memory {
    StorageHandle storage;
    PlaceSet parts = {};  // the places that use this storage as their copy
    // The next three members do not change while there is a storage.
    std::byte* address = nullptr;
    DeviceId device = {};
    bool wants_notes = false;
    bool deferred_use_writes = false;  // see `deferred_use`
    /// Whether the host may read, and write, without waiting for a stream.
    bool is_read_clear = true, is_write_clear = true;
    /// The number of uses by streams so far. It tells a thread that has waited whether another use
    /// began meanwhile.
    std::uint64_t stream_uses = 0;
    /// The stream of the deferred use, if there is one. When a device lease closes and no other use
    /// of the memory began meanwhile, its use is recorded without a mark: it covers whatever the
    /// stream submits later, so further leases of that stream need no record at all. Any code that
    /// inspects the UseRecord clears this member first (see FastPathBlocker), because inspecting
    /// resolves the deferred use to a mark. A lease that is open at that moment records its use
    /// when it closes (UnifiedCore::try_end_late).
    StreamId deferred_use = {};
    /// The clock of the place, and its value at the last use of this memory. See Residents.
    const std::atomic<std::uint64_t>* clock = nullptr;
    std::uint64_t last_use = 0;
    /// The entry in the list of the place. It is null if the place shares the memory of another
    /// place.
    std::unique_ptr<Resident> resident = {};

    /// Sets a new storage. The host has to wait before it uses the memory, because a pool may
    /// return memory that is in flight.
    void set(StorageHandle made) noexcept;
    void set_resident(std::unique_ptr<Resident> made) noexcept {
      resident = std::move(made);
      clock = resident ? &resident->where().now() : nullptr;
    }
    /// Records that the memory is in use now.
    [[gnu::always_inline]] void touch() noexcept {
      if (last_use == clock->load(std::memory_order_relaxed)) return;
      resident->touch();
      last_use = resident->last_use();
    }
    /// Counts a use by a stream, after which the host has to wait again.
    void note_stream_use(Access access) noexcept;
  };

  /// Has one place, the host, which has no copy. Throws std::bad_alloc.
  explicit CopySet(std::size_t bytes);

  // --- Places

  [[nodiscard]] unsigned count() const noexcept { return static_cast<unsigned>(places_.size()); }
  [[nodiscard]] const PlaceEntry& operator[](unsigned place) const noexcept {
    return places_[place];
  }
  /// Returns the place of a device, or no_place.
  [[nodiscard]] unsigned find(DeviceId device) const noexcept;
  [[nodiscard]] std::optional<unsigned> find(Place place) const noexcept;
  /// Adds a place without a copy. A device without a resident shares the host's memory. Returns
  /// false, and leaves the resident to the caller, if the host has no memory.
  [[nodiscard]] bool try_add(const Device& device, std::unique_ptr<Resident>& resident) noexcept;
  /// Returns the name of a place for messages.
  [[nodiscard]] std::string_view name_of(unsigned place) const noexcept;

  // --- Memories

  [[nodiscard]] std::span<Memory> memories() noexcept { return memories_; }
  [[nodiscard]] std::span<const Memory> memories() const noexcept { return memories_; }
  [[nodiscard]] Memory& memory(std::size_t number) noexcept { return memories_[number]; }
  [[nodiscard]] const Memory& memory(std::size_t number) const noexcept {
    return memories_[number];
  }
  [[nodiscard]] Memory& memory_of(unsigned place) noexcept {
    return memories_[places_[place].memory];
  }
  [[nodiscard]] const Memory& memory_of(unsigned place) const noexcept {
    return memories_[places_[place].memory];
  }
  /// Returns whether the place has a copy.
  [[nodiscard]] bool has_copy(unsigned place) const noexcept {
    return memory_of(place).parts.has(place);
  }
  /// Returns the places that share the memory of this one, also those without a copy.
  [[nodiscard]] PlaceSet sharing(unsigned place) const noexcept;
  /// Takes a copy from its place. Returns the storage if no other place uses it; the caller
  /// releases the storage without the lock.
  [[nodiscard]] StorageHandle leave(unsigned place) noexcept;
  /// Clears Memory::deferred_use of all memories.
  void clear_deferred_uses() noexcept;

  // --- The directory

  [[nodiscard]] Validity& directory() noexcept { return directory_; }
  [[nodiscard]] const Validity& directory() const noexcept { return directory_; }
  /// Reserves room in the directory for changes to that many ranges, and for the changes promised
  /// to launches. Returns false if the host has no memory.
  [[nodiscard]] bool make_room(std::size_t ranges = 1) noexcept {
    return directory_.make_room(ranges + promised_);
  }
  /// Keeps the room of make_room() for changes that a launch will make, until end_promise().
  void promise(std::uint32_t changes) noexcept { promised_ += changes; }
  void end_promise() noexcept { --promised_; }
  /// Records a write for which room was reserved only if it changes something.
  void note_write(unsigned place, ByteRange range, Access access) noexcept;
  /// Returns the parts of the range whose set of up-to-date places satisfies `fits`. Throws
  /// std::bad_alloc.
  template <class Fits>
  [[nodiscard]] std::vector<ByteRange> ranges_where(ByteRange range, Fits fits) const;
  /// Returns the smallest range around all bytes of `range` that are up to date in these places and
  /// nowhere else.
  [[nodiscard]] ByteRange only_in(PlaceSet places, ByteRange range) const noexcept;
  /// Replaces the directory and the bytes in flight, for a buffer of another size.
  void reset(Validity directory, InFlightBytes in_flight) noexcept;

  // --- Bytes in flight to the host copy

  [[nodiscard]] InFlightBytes& in_flight() noexcept { return in_flight_; }
  [[nodiscard]] const InFlightBytes& in_flight() const noexcept { return in_flight_; }
  /// Records the bytes in flight that only the host will have once these places are gone. Throws
  /// std::bad_alloc.
  void keep_sole_copies(PlaceSet removed) {
    in_flight_.add_sole_copies_without(removed, memories_[host].parts, directory_);
  }
  /// The host has waited for that many uses of its memory.
  void note_arrived(std::uint64_t stream_uses) noexcept {
    in_flight_.note_arrived(stream_uses, directory_);
  }
  /// Bytes that are lost.
  struct Loss {
    ByteRange range = {};
    std::size_t bytes = 0;  // in `range`
    unsigned source = InFlightBytes::several_sources;
  };
  /// Handles bytes that were in flight to the host and cannot arrive. If another place has them,
  /// they become stale on the host; otherwise they are lost and count as never written. Calls
  /// visit(range) for all of them.
  template <class Visit>
  [[nodiscard]] Loss drop_not_arrived(const InFlightBytes::Outage& outage, Visit visit) noexcept;

  // --- Queries

  /// Returns the state of bytes that are up to date in these places.
  [[nodiscard]] BufferState state_of(PlaceSet valid) const noexcept;
  [[nodiscard]] BufferState state(ByteRange range) const noexcept;
  /// Returns the places that have every byte of the range. Throws std::bad_alloc.
  [[nodiscard]] std::vector<Place> valid_places(ByteRange range) const;
  [[nodiscard]] bool is_stale_on(ByteRange range, Place place) const noexcept;
  /// Throws std::bad_alloc.
  [[nodiscard]] std::vector<RawUnified::Interval> intervals(ByteRange range) const;
  /// Returns the cost of copying to the place from each other place.
  [[nodiscard]] CopyCosts costs_at(unsigned place) const noexcept;

 private:
  void forget_lost(const InFlightBytes::Entry& one, Loss& loss) noexcept;
  [[nodiscard]] std::vector<Place> places_in(PlaceSet set) const;

  std::vector<Memory> memories_;
  std::vector<PlaceEntry> places_;
  Validity directory_;
  std::uint32_t promised_ = 0;  // directory changes that launches in progress will make
  InFlightBytes in_flight_;
};

[[gnu::always_inline]] inline unsigned CopySet::find(DeviceId device) const noexcept {
  for (unsigned place = 1; place < places_.size(); ++place) {
    if (places_[place].id == device) return place;
  }
  return no_place;
}

template <class Fits>
std::vector<ByteRange> CopySet::ranges_where(ByteRange range, Fits fits) const {
  std::vector<ByteRange> found;
  directory_.visit(range.begin, range.end, [&](std::size_t begin, std::size_t end, PlaceSet valid) {
    if (!fits(valid)) return;
    if (!found.empty() && found.back().end == begin) {
      found.back().end = end;
    } else {
      found.push_back({begin, end});
    }
  });
  return found;
}

template <class Visit>
CopySet::Loss CopySet::drop_not_arrived(const InFlightBytes::Outage& outage, Visit visit) noexcept {
  const PlaceSet own = memories_[host].parts;  // the host, and devices that share its memory
  in_flight_.drop_failed(outage, [&](ByteRange one) {
    for (PlaceSet rest = own; !rest.empty(); rest = rest.without(rest.first())) {
      if (make_room()) directory_.remove_copy(one.begin, one.end, rest.first());
    }
    visit(one);
  });
  Loss loss;
  // After another failure, bytes that nobody else has may still arrive. The next access waits for
  // them again.
  if (!outage.is_device_lost) return loss;
  in_flight_.mark_lost(outage, [&](const InFlightBytes::Entry& one) {
    visit(one.range);
    forget_lost(one, loss);
  });
  return loss;
}

}  // namespace tern
