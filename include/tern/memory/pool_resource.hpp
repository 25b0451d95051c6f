// A PoolResource keeps memory from the driver and reuses it, so most allocations cost nanoseconds.
//
//   auto pool = std::make_shared<PoolResource>(device, PoolOptions{.limit_bytes = 4 * gib});
//
// A block that a stream has freed can be reused by the same stream immediately, because the work of
// a stream runs in order. Another stream gets the block only after the pool has seen that the free
// has completed, or after it has made the new stream wait for the free. So memory is never reused
// before its last user is done. The host waits for the device in two cases only: memory has run out
// and the request allows waiting, or a block is freed on a stream that no longer exists.
//
// If the device has virtual memory, the pool holds device memory as handles of the driver in one
// address range, and can map whole free handles from anywhere to new contiguous addresses. Under a
// limit a handle is one 2 MiB page, so a request fails only if there are too few free whole pages.
// Without a limit handles have up to 256 MiB, because the driver charges per handle. On other
// devices the pool holds segments. Pinned and managed memory is also used by the host, so the pool
// reuses it only after its last use has completed. All metadata is in host memory; device memory
// contains no headers.
//
// Sizes are rounded up: to a multiple of 256 bytes up to 2 KiB, and above that by at most an
// eighth. Contents are not cleared. Streams share no lock as long as they reuse their own blocks.
// The pool keeps its device open. A block must not outlive its pool; OwnedBlock ensures that.
// Thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "tern/device/device_info.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

namespace pool {
class Pool;
}
class Budget;
class BudgetResource;
class PendingFrees;

/// How a pool holds its memory.
enum class PoolBacking : std::uint8_t {
  automatic,  // pages for device memory with virtual memory, else segments
  pages,      // handles of 2 MiB pages that can be remapped
  segments,   // contiguous allocations of the driver
};

/// What the pool does first if the request's stream has no free memory of its own.
enum class PoolPreference : std::uint8_t {
  automatic,     // independence; reuse once the pool holds three quarters of its limit or, without
                 // a limit, 1.06 times the peak of the live bytes (at least 256 MiB)
  independence,  // get more memory from the driver, so that streams never wait for each other
  reuse,         // use memory that another stream freed, after a wait on the device
};

/// Options of a PoolResource.
struct PoolOptions {
  /// The memory of all blocks: device, pinned or managed.
  MemoryKind kind = MemoryKind::device;
  /// Upper bound on the memory held from the driver, in whole pages if the pool uses pages. 0 means
  /// no limit but the device's memory.
  std::size_t limit_bytes = 0;
  /// Memory that the constructor allocates from the driver.
  std::size_t initial_bytes = 0;
  PoolBacking backing = PoolBacking::automatic;
  PoolPreference preference = PoolPreference::automatic;
  /// Return idle memory to the driver automatically, if more than a quarter of the held memory, and
  /// more than 256 MiB, was idle for idle_ms without interruption. initial_bytes are never returned
  /// this way.
  bool auto_trim = true;
  std::uint32_t idle_ms = 10'000;
  /// Let each stream cache blocks of up to 16 MiB, so that threads rarely wait for each other. This
  /// costs memory. If false, the pool begins to do so when it observes that threads wait for each
  /// other.
  bool thread_caches = false;
};

/// Counters of a pool, in addition to the Statistics of every resource. Event counts are totals
/// since the pool was made.
struct PoolStatistics {
  // Bytes by state. live, cached, in flight, available and unmapped bytes add up to held_bytes, or
  // to slightly less while calls are in progress.
  std::size_t live_bytes = 0;
  std::size_t cached_bytes = 0;     // cached by one stream, slack of its live blocks included
  std::size_t in_flight_bytes = 0;  // freed, but the stream may not have passed the free
  std::size_t available_bytes = 0;  // free and available to every stream
  std::size_t unmapped_bytes = 0;   // handles without a usable address
  std::size_t held_bytes = 0;       // allocated from the driver
  std::size_t limit_bytes = 0;      // of the pool or of its budgets, whichever is smaller; 0: none
  std::size_t peak_held_bytes = 0;
  /// Requested bytes of the live blocks. live_bytes minus requested_bytes is the cost of rounding.
  std::size_t requested_bytes = 0;

  // How requests were served.
  std::uint64_t cache_hits = 0;          // by the stream's own cache
  std::uint64_t own_in_flight_hits = 0;  // by memory that the same stream freed
  std::uint64_t available_hits = 0;      // by memory available to every stream
  std::uint64_t steals = 0;      // by memory that another stream freed, after a wait on the device
  std::uint64_t grown_hits = 0;  // by new memory from the driver
  std::uint64_t remapped_hits = 0;  // by free pages mapped to new addresses

  std::uint64_t polls = 0;       // queries whether a stream has passed a free
  std::uint64_t seals = 0;       // events recorded after freed blocks
  std::uint64_t host_waits = 0;  // waits of the host for a stream
  std::uint64_t grows = 0;
  std::uint64_t pages_created = 0;
  std::uint64_t pages_moved = 0;
  std::uint64_t pages_released = 0;
  std::uint64_t aliases = 0;  // second mappings of handles that exist now
  std::uint64_t trims = 0;
  std::uint64_t known_refusals = 0;  // failed at once: nothing was freed since the last failure

  /// The number of calls that reached the driver.
  [[nodiscard]] std::uint64_t driver_calls() const noexcept {
    return polls + seals + steals + host_waits + page_calls;
  }
  std::uint64_t page_calls = 0;  // create, map, unmap, set access or release of handles or segments
};

/// How much of the free memory can be allocated. Memory that streams cache, or whose free has not
/// completed, counts as free_bytes but in no other field. Call trim(SIZE_MAX) beforehand to empty
/// the caches.
struct Fragmentation {
  std::size_t free_bytes = 0;       // held and not live
  std::size_t free_page_bytes = 0;  // the part in whole handles that any request can use
  /// The largest block that is free as it is, and the largest block that can be made from free
  /// handles and from memory that the limit still allows.
  std::size_t largest_now = 0;
  std::size_t largest_satisfiable = 0;
  /// Bytes lost to rounding in live blocks.
  std::size_t waste_bytes = 0;

  /// How fragmented the free memory is: 0 if it is one block, close to 1 if it is in many small
  /// pieces.
  [[nodiscard]] double by_block() const noexcept {
    return free_bytes == 0 ? 0
                           : 1 - static_cast<double>(largest_now) / static_cast<double>(free_bytes);
  }
};

/// Stream-ordered pool over the memory of one device.
class TERN_EXPORT PoolResource final : public Resource {
 public:
  /// Throws InvalidArgument for a closed device or invalid options, Unsupported if the device lacks
  /// this kind of memory or pages, OutOfMemory if initial_bytes cannot be allocated.
  explicit PoolResource(Device device, const PoolOptions& options = {});
  ~PoolResource() override;

  [[nodiscard]] const char* name() const noexcept override { return "pool"; }
  [[nodiscard]] const Device& device() const noexcept override;
  [[nodiscard]] ResourceTraits traits() const noexcept override;
  /// peak_live_bytes is exact while only one stream is used. With several streams it may be too
  /// high, never too low.
  [[nodiscard]] Statistics statistics() const noexcept override;
  /// Returns the pool's own counters. Visits every range of the pool.
  [[nodiscard]] PoolStatistics pool_statistics() const noexcept;
  /// Returns how much can be allocated. Visits every range of the pool.
  [[nodiscard]] Fragmentation fragmentation() const noexcept;

  /// Allocates a block. If memory has run out, the call waits for pending frees, unless the request
  /// says Wait::never. Fails with out_of_memory once nothing else can be done; the error has the
  /// numbers.
  [[nodiscard]] Result<Block> try_allocate(const Request& request) noexcept override;
  [[nodiscard]] std::size_t good_size(const Request& request) const noexcept override;
  /// Frees the block in stream order. Waits only if the stream no longer exists.
  [[nodiscard]] Result<void> try_deallocate(
      const Block& block, StreamRef stream,
      const CallSite& site = CallSite::here()) noexcept override;

  /// Returns whole free handles, or free segments, to the driver until at most `keep_bytes` are
  /// held. Returns the number of bytes. Never waits.
  std::size_t trim(std::size_t keep_bytes) noexcept override;
  /// Checks which pending frees have completed. Returns the number of bytes that became available
  /// to every stream.
  std::size_t poll() noexcept;
  /// Sets the limit of the pool itself. If the pool already holds more, it returns what is free,
  /// and the rest as blocks are freed. 0 removes the limit; budgets may still bound the pool.
  void set_limit(std::size_t limit_bytes) noexcept;
  /// Checks the internal invariants against a visit of every range. For tests; no other call may be
  /// in progress.
  [[nodiscard]] bool check_invariants() const noexcept;

 private:
  friend class BudgetResource;
  friend class PendingFrees;

  /// The budget of a BudgetResource over this pool. add_budget() throws std::bad_alloc. The budget
  /// may be added several times and must live until it is removed as often.
  void add_budget(const Budget& budget);
  void remove_budget(const Budget& budget) noexcept;
  /// A limit of the budgets, or of a budget above them, has changed.
  void update_bound() noexcept;
  [[nodiscard]] bool recycle(const Request& request, Block& into) noexcept override;
  [[nodiscard]] Result<Block> allocate_slow(const Request& request, bool is_miss) noexcept;

  const std::unique_ptr<pool::Pool> pool_;
};

}  // namespace tern
