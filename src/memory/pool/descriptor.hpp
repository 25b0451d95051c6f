// A Descriptor describes one range of the pool's addresses: a block or a piece of free memory.
//
// Descriptors are in host memory; device memory holds no headers. Adjacent ranges are linked in
// address order, so that free neighbours can be joined. Free ranges are also linked into the list
// that offers them. While a range is held, by the program or by a stream's cache, its offset and
// size do not change. All other fields belong to the thread that holds the lock of the ranges.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tern {
struct BlockPlace;
}

namespace tern::pool {

class StreamCache;
struct Alias;
struct Lane;

/// The state of a range.
enum class State : std::uint8_t {
  spare,      // the descriptor describes no range
  held,       // live, in a cache, or in transit
  in_flight,  // freed, but the stream may still use it
  available,  // free; every stream may get it
  unbacked,   // addresses without memory
  stuck,      // the driver failed to unmap the pages, which is tried again later
};

/// Aligned, so that streams that write to their own blocks share no cache line. Everything that a
/// cache reads or writes when it takes or keeps a block is in the first line.
struct alignas(64) Descriptor {
  std::uint64_t offset = 0;  // in granules: the address divided by 256
  std::uint64_t size = 0;    // in granules
  // Next in the list that offers the range; for a held range, next in the holder's list.
  Descriptor* next = nullptr;
  // Held: row of the block in the block table, guarded by the cache that has the block.
  BlockPlace* place = nullptr;
  std::atomic<std::uint64_t> requested_bytes = 0;  // read without a lock, to compute the waste
  // The cache from which the block was allocated and whose lock guards it. A thread that frees the
  // block reads this before it takes the lock.
  std::atomic<StreamCache*> home = nullptr;
  std::uint32_t slot = 0;  // slot of the place
  /// Live: unused granules at the end of a cached block that was larger than the request. Guarded
  /// like the place.
  std::uint32_t slack = 0;
  State state = State::spare;
  /// Available: pages of the whole handles in the range.
  std::uint32_t whole_pages = 0;

  // Neighbours by address; null at both ends of a mapping.
  alignas(64) Descriptor* before = nullptr;
  Descriptor* after = nullptr;
  // Previous in the list that offers the range.
  Descriptor* previous = nullptr;
  // In flight: neighbours in the order of the frees. Quiescent, with whole pages: other ranges with
  // whole pages. Held, with slack: other blocks with slack of the same cache, which guards the
  // links.
  Descriptor* older = nullptr;
  Descriptor* newer = nullptr;
  Lane* lane = nullptr;        // in flight: lane of the stream that freed it
  std::uint64_t sequence = 0;  // in flight: mark that covers its last use
  // A block of an alias, or a range whose memory the block of an alias uses (see Alias).
  Alias* alias = nullptr;

  [[nodiscard]] std::uint64_t end() const noexcept { return offset + size; }
};

}  // namespace tern::pool
