// A PoolResource keeps memory it has from the driver, and hands it out again in nanoseconds.
//
// A block that a stream frees is given to the same stream again without asking anybody: work on one
// stream is in order. What another stream may have is first waited for, by that stream or by a look
// at what is done. So nothing is used before its last user is through, and neither allocating nor
// freeing waits for the device, unless memory has run out and the request allows it.
//
// Device memory is held as pages of 2 MiB behind one range of addresses (virtual memory), where a
// device has that: free pages from anywhere are put together behind new addresses, so that a
// request fails only if there is not enough free memory in whole pages. Elsewhere it is held in
// segments. Pinned and managed memory, which the host writes too, is given out again only when its
// last use is done. What the pool knows lies in host memory; the device's holds no headers.
//
// Sizes are rounded up: to 256 bytes up to 2 KiB, then by at most an eighth. Thread-safe: streams
// do not share a lock as long as they reuse their own blocks. Keeps its device open; a block must
// not outlive its pool (OwnedBlock sees to that). Contents are not cleared.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "tern/device/memory_kind.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

namespace pool {
class Pool;
}

/// Where a pool's memory comes from.
enum class PoolBacking : std::uint8_t {
  automatic,  // pages where the device has virtual memory and the kind is device, else segments
  pages,
  segments,
};

/// What a request gets whose stream has no memory of its own free.
enum class PoolPreference : std::uint8_t {
  automatic,     // independence, and reuse once three quarters of the limit are held
  independence,  // more memory from the driver: streams never wait for each other
  reuse,         // what another stream has freed, behind a wait on the device
};

struct PoolOptions {
  MemoryKind kind = MemoryKind::device;
  /// The most that is held from the driver, in whole pages where it is pages; 0: whatever the
  /// device gives.
  std::size_t limit_bytes = 0;
  /// Held from the beginning.
  std::size_t initial_bytes = 0;
  PoolBacking backing = PoolBacking::automatic;
  PoolPreference preference = PoolPreference::automatic;
  /// Idle memory goes back to the driver by itself, from a quarter of what is held on.
  bool trims_itself = true;
  /// Streams keep blocks of up to 16 MiB for themselves, so that threads need not wait for each
  /// other, at the price of more memory. Otherwise once threads have been seen to wait.
  bool expects_threads = false;
};

/// What a pool did, beside the Statistics that every resource has. All of it since it was made.
struct PoolStatistics {
  // Bytes, by where they are. Together: held, or a little less while calls are under way.
  std::size_t live_bytes = 0;
  std::size_t cached_bytes = 0;     // kept by a stream for itself, or behind its larger blocks
  std::size_t in_flight_bytes = 0;  // freed, and their stream may not have passed that
  std::size_t quiescent_bytes = 0;  // free for everybody
  std::size_t loose_bytes = 0;      // pages without an address
  std::size_t held_bytes = 0;
  std::size_t limit_bytes = 0;
  std::size_t peak_held_bytes = 0;
  /// Asked for, of the live bytes; the rest is what rounding costs.
  std::size_t requested_bytes = 0;

  // Where blocks came from.
  std::uint64_t cache_hits = 0;
  std::uint64_t own_in_flight_hits = 0;
  std::uint64_t quiescent_hits = 0;
  std::uint64_t steals = 0;  // from another stream, behind a wait
  std::uint64_t grown_hits = 0;
  std::uint64_t remapped_hits = 0;

  std::uint64_t polls = 0;  // questions whether a stream has passed a free
  std::uint64_t seals = 0;  // events recorded behind freed blocks
  std::uint64_t host_waits = 0;
  std::uint64_t grows = 0;
  std::uint64_t pages_created = 0;
  std::uint64_t pages_moved = 0;
  std::uint64_t pages_released = 0;
  std::uint64_t trims = 0;
  std::uint64_t known_refusals = 0;  // the same was refused before, and nothing was freed since

  /// Calls that reach the driver: all of the above that do.
  [[nodiscard]] std::uint64_t driver_calls() const noexcept {
    return polls + seals + steals + host_waits + page_calls;
  }
  std::uint64_t page_calls = 0;  // create, map, unmap, set access, release, or a segment's
};

/// What could be allocated, and why not more. What streams keep for themselves, or have yet to
/// pass, is free but in none of the rest: trim(SIZE_MAX) empties the caches first.
struct Fragmentation {
  std::size_t free_bytes = 0;       // held, and not live
  std::size_t free_page_bytes = 0;  // of these, in whole pages that any request can have
  /// The largest block that is there as it is, and the largest that can be made of free pages and
  /// of what the limit still allows.
  std::size_t largest_now = 0;
  std::size_t largest_satisfiable = 0;
  /// What rounding costs in live blocks.
  std::size_t waste_bytes = 0;

  /// 0: all free memory is one block; towards 1: it is in pieces.
  [[nodiscard]] double by_block() const noexcept {
    return free_bytes == 0 ? 0
                           : 1 - static_cast<double>(largest_now) / static_cast<double>(free_bytes);
  }
};

class TERN_EXPORT PoolResource final : public Resource {
 public:
  /// Throws InvalidArgument; Unsupported if the device has no such memory or no pages; OutOfMemory
  /// if the initial bytes are not to be had.
  explicit PoolResource(Device device, const PoolOptions& options = {});
  ~PoolResource() override;

  [[nodiscard]] const char* name() const noexcept override { return "pool"; }
  [[nodiscard]] const Device& device() const noexcept override;
  [[nodiscard]] ResourceTraits traits() const noexcept override;
  /// peak_live_bytes is exact while one stream is in use, and never too low.
  [[nodiscard]] Statistics statistics() const noexcept override;
  [[nodiscard]] PoolStatistics pool_statistics() const noexcept;
  [[nodiscard]] Fragmentation fragmentation() const noexcept;

  /// Refused with out_of_memory, with numbers that say why, once nothing else can be done.
  [[nodiscard]] Result<Block> try_allocate(const Request& request) noexcept override;
  [[nodiscard]] std::size_t good_size(const Request& request) const noexcept override;
  [[nodiscard]] Result<void> try_deallocate(
      const Block& block, StreamRef stream,
      const CallSite& site = CallSite::here()) noexcept override;

  /// Gives whole free pages, or free segments, back to the driver.
  std::size_t trim(std::size_t keep_bytes) noexcept override;
  /// Looks which streams have passed what they freed; gives how many bytes that made free for all.
  std::size_t poll() noexcept;
  /// From now on; below what is held it takes effect as memory comes back. 0: none.
  void set_limit(std::size_t limit_bytes) noexcept;
  /// Asserts that the books agree with a look at every range; for tests, when nobody is inside.
  [[nodiscard]] bool is_well() const noexcept;

 private:
  [[nodiscard]] Result<Block> allocate_the_long_way(const Request& request) noexcept;

  const std::unique_ptr<pool::Pool> pool_;
};

}  // namespace tern
