// InFlightBytes lists the bytes of a buffer's host copy that are in flight: the directory already
// lists them as up to date on the host, but nobody has waited for their copy, which may still fail.
//
// If such bytes do not arrive, two cases differ. If the source still has them, they become stale on
// the host. If the source has been freed (sole copies), they are lost. Lost bytes stay listed until
// they are written again, so that a read of them fails.
//
// Time is the count of uses of the host memory by streams: an entry has arrived when the host has
// waited for that many uses. Not synchronized: UnifiedCore::mutex_ guards it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tern/detail/coherence/validity.hpp"

namespace tern {

class InFlightBytes {
 public:
  /// Beyond this number of ranges, limit() merges them into one.
  static constexpr std::size_t max_ranges = 64;
  /// The source of bytes that come from several places, or from a place of another buffer.
  static constexpr unsigned several_sources = PlaceSet::max_places;

  struct Entry {
    ByteRange range = {};
    unsigned source = several_sources;
    /// The number of uses of the host memory that the host has to wait for.
    std::uint64_t stream_uses = 0;
    bool is_lost = false;  // the bytes did not arrive, and no other place has them
  };
  /// Says which bytes in flight cannot arrive any more. If a device was lost, bytes from the
  /// devices in `alive` still can. After any other failure, none can.
  struct Outage {
    bool is_device_lost = false;
    PlaceSet alive = {};

    [[nodiscard]] bool may_arrive(const Entry& one) const noexcept {
      return is_device_lost && one.source != several_sources && alive.has(one.source);
    }
  };

  // --- Bytes that begin to move

  /// Reserves memory for `more` calls of add(). Throws std::bad_alloc.
  void reserve(std::size_t more) { copies_.reserve(copies_.size() + more); }
  /// Adds bytes that their source keeps. Requires reserve().
  void add(const Entry& one) noexcept { copies_.push_back(one); }
  /// Bounds the list that add() extends, after all ranges of a transfer were added.
  void limit() noexcept;
  /// Adds bytes whose source is being freed, or extends an entry that covers them. Throws
  /// std::bad_alloc.
  void add_sole_copy(const Entry& one);
  /// Adds the bytes in flight that only the places of the host's memory will have once the places
  /// in `removed` are gone. Throws std::bad_alloc.
  void add_sole_copies_without(PlaceSet removed, PlaceSet host_memory, const Validity& directory);
  /// Adds a use of the host memory that the directory already lists as done: a device that shares
  /// the host's memory writes bytes that count as up to date on the host.
  void add_shared_use(std::uint64_t stream_uses) noexcept { shared_use_ = stream_uses; }

  // --- Bytes that have arrived

  /// The host has waited for that many uses of its memory.
  void note_arrived(std::uint64_t stream_uses, const Validity& directory) noexcept;
  /// The host has waited for all uses of its memory. Lost bytes stay lost.
  void note_all_arrived() noexcept;
  /// Forgets everything, also lost bytes, because no byte of the buffer is up to date any more.
  void clear() noexcept;

  // --- Bytes that do not arrive

  /// Removes the entries that cannot arrive and that another place has, and calls visit(range) for
  /// each.
  template <class Visit>
  void drop_failed(const Outage& outage, Visit visit) noexcept;
  /// Marks the sole copies that cannot arrive as lost, and calls visit(entry) for each.
  template <class Visit>
  void mark_lost(const Outage& outage, Visit visit) noexcept;
  /// Returns the first bytes of the range that are lost and were not written since.
  [[nodiscard]] ByteRange first_lost(ByteRange range, const Validity& directory) const noexcept;
  /// Returns a list that has only the lost bytes below `bytes`, for a buffer of that size with the
  /// same contents. Throws std::bad_alloc.
  [[nodiscard]] InFlightBytes only_lost(std::size_t bytes) const;

  // --- Queries

  /// Returns the place that the bytes in flight to this range come from, or several_sources. Bytes
  /// whose source was freed do not count.
  [[nodiscard]] unsigned source_of(ByteRange range) const noexcept;
  /// Returns whether any byte of the range is in flight.
  [[nodiscard]] bool touches(ByteRange range) const noexcept;
  /// Returns the parts of `ranges` that are not in flight. Throws std::bad_alloc.
  [[nodiscard]] std::vector<ByteRange> settled(std::vector<ByteRange> ranges) const;

 private:
  std::vector<Entry> copies_;       // the source has the bytes too
  std::vector<Entry> sole_copies_;  // the source was freed; also lost bytes
  std::uint64_t shared_use_ = 0;    // see add_shared_use(); 0: none
};

template <class Visit>
void InFlightBytes::drop_failed(const Outage& outage, Visit visit) noexcept {
  std::erase_if(copies_, [&](const Entry& one) {
    if (outage.may_arrive(one)) return false;
    visit(one.range);
    return true;
  });
}

template <class Visit>
void InFlightBytes::mark_lost(const Outage& outage, Visit visit) noexcept {
  for (Entry& one : sole_copies_) {
    if (one.is_lost || outage.may_arrive(one)) continue;
    one.is_lost = true;
    visit(one);
  }
}

}  // namespace tern
