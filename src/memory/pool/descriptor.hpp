// A descriptor stands for a range of the pool's addresses: a block, or a piece of free memory.
//
// Device memory holds no headers; what the pool knows of it lies here, in host memory. Ranges that
// touch are linked in the order of their addresses, so that free ones can be joined; free ones are
// also linked into the list that offers them. A range that is held, by a user or by a stream's
// cache, keeps its offset and size; everything else of it belongs to whoever holds the lock of the
// ranges.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tern {
struct BlockPlace;
}

namespace tern::pool {

class StreamCache;
struct Lane;

enum class State : std::uint8_t {
  spare,      // the descriptor itself is free
  held,       // live, in a cache, or on the way
  in_flight,  // freed, and its stream may still use it
  quiescent,  // free for everybody
  unbacked,   // addresses without memory
  stuck,      // addresses with pages that the driver did not take away: out of use
};

/// Aligned, so that streams which write to their blocks do not share a line. All that a cache reads
/// and writes of a block it gives or gets is in the first one.
struct alignas(64) Descriptor {
  std::uint64_t offset = 0;  // in granules; the address divided by their size
  std::uint64_t size = 0;    // in granules
  // The next in the list that offers it; of a held range, in its holder's.
  Descriptor* next = nullptr;
  // Held: the block it is, guarded by the cache of the stream that has it.
  BlockPlace* place = nullptr;
  std::atomic<std::uint64_t> requested_bytes = 0;  // read by whoever wants to know the waste
  // Of the cache the block was allocated from, which guards it. Read by whoever frees it, before
  // the lock is taken.
  std::atomic<StreamCache*> home = nullptr;
  std::uint32_t slot = 0;  // of the place
  /// Live: granules behind the block's end that came with it from a cache; guarded like the place.
  std::uint32_t slack = 0;
  State state = State::spare;

  // Neighbours by address; null at the ends.
  alignas(64) Descriptor* before = nullptr;
  Descriptor* after = nullptr;
  // The other neighbour in the list that offers it.
  Descriptor* previous = nullptr;
  // In flight: neighbours in the order of freeing. Quiescent, with whole pages: others like it.
  // Held, with slack: others of the same cache, which guards the links.
  Descriptor* older = nullptr;
  Descriptor* newer = nullptr;
  Lane* lane = nullptr;        // in flight: of the stream that freed it
  std::uint64_t sequence = 0;  // in flight: of the mark behind its last use

  [[nodiscard]] std::uint64_t end() const noexcept { return offset + size; }
};

}  // namespace tern::pool
