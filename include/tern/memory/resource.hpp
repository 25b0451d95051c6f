// A Resource allocates and frees memory: drivers, pools, and the wrappers around them.
//
//   Block block = resource->allocate({.bytes = 4096, .stream = stream, .tag = "scratch"});
//   resource->deallocate(block, stream);
//
// All resources have this interface, so a budget, a log or a guard can wrap any resource. Wrappers
// own their upstream. A failed request has changed nothing, and reporting it uses no heap memory.
// Freeing is stream-ordered: work submitted to the stream before the free may still use the block,
// work submitted later must not. All resources are thread-safe.
//
// A free that fails leaves its block live and charged. try_deallocate() returns the failure.
// deallocate() cannot return it: the resource counts the failure, calls the failure callback
// (default_resource.hpp), and retries the free later: in trim(), before allocations (a pool: before
// allocations that miss its caches), in Budget::drain() and in shutdown().

#pragma once

#include <atomic>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "tern/core/call_site.hpp"
#include "tern/core/error.hpp"
#include "tern/core/place.hpp"
#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"
#include "tern/detail/core/mutex.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/device/device.hpp"
#include "tern/device/device_info.hpp"
#include "tern/device/stream.hpp"

namespace tern {

// A Request describes one allocation: size, alignment, stream, and labels for reports.
//
//   resource->allocate({.bytes = 1 * mib, .stream = stream, .tag = Tag("weights")});

class Reservation;

/// Whether the host may wait for streams in order to serve the request.
enum class Wait : std::uint8_t { forever, never };

/// The arguments of Resource::try_allocate().
struct Request {
  /// The size in bytes. A request for 0 bytes succeeds with an empty block and is not charged.
  std::size_t bytes = 0;
  /// The alignment in bytes, a power of two. 0 means the default alignment of the resource.
  std::size_t alignment = 0;
  /// The stream that uses the block first. Without a stream the host uses the block first, and the
  /// block is ready when the call returns.
  StreamRef stream = {};
  Tag tag = {};
  CallSite site = CallSite::here();
  /// Only memory that the request's stream freed itself, which needs no wait, may serve the
  /// request.
  bool only_recycled : 4 = false;
  /// The bytes are charged to a budget. A BudgetResource sets this in the requests that it passes
  /// to its upstream. A pool uses it to tell whether its budgets count all that it holds. Shares a
  /// byte with only_recycled, so that it costs no instruction to make a request.
  bool is_charged : 4 = false;
  Wait wait = Wait::forever;
  /// Bytes reserved earlier with Budget::try_reserve(). The request draws its charge from them
  /// instead of claiming new bytes. Null means no reservation.
  Reservation* reservation = nullptr;
};

// A Block describes memory that a resource has allocated: address, granted size, device and
// generation.
//
//   Block block = resource->allocate({.bytes = 4096, .stream = stream});
//   resource->deallocate(block, stream);
//
// A Block is a plain 32-byte value. It does not own the memory; OwnedBlock does. The generation
// identifies the block for the life of the process. The library uses the generation to look up the
// block's stream, tag and state (owned_block.hpp). It also uses the generation to reject a bad
// free: freeing a block twice, or on a resource that did not allocate it, returns an error and is
// never undefined behaviour.

/// Identifies one block among all blocks of the process. A generation is a slot in the process-wide
/// block table plus the number of times that slot has been used.
class Generation {
 public:
  /// Widths of the two parts of value(), in bits: slot_bits and count_bits.
  static constexpr unsigned slot_bits = 28, count_bits = 36;

  /// Constructs the null generation, which identifies no block and converts to false.
  constexpr Generation() noexcept = default;
  /// Combines a slot (28 bits) and a use count (36 bits) into one 64-bit value.
  constexpr Generation(std::uint32_t slot, std::uint64_t count) noexcept
      : value_(count << slot_bits | slot) {}

  /// The slot in the block table. Slots are reused, each time with a larger count.
  [[nodiscard]] constexpr std::uint32_t slot() const noexcept {
    return static_cast<std::uint32_t>(value_ & ((std::uint64_t{1} << slot_bits) - 1));
  }
  /// The number of times the slot has been used, including this time. Starts at 1.
  [[nodiscard]] constexpr std::uint64_t count() const noexcept { return value_ >> slot_bits; }
  /// Slot and count packed into one value. 0 for the null generation.
  [[nodiscard]] constexpr std::uint64_t value() const noexcept { return value_; }
  [[nodiscard]] explicit constexpr operator bool() const noexcept { return value_ != 0; }

  friend constexpr bool operator==(const Generation&, const Generation&) noexcept = default;
  friend constexpr auto operator<=>(const Generation&, const Generation&) noexcept = default;

 private:
  std::uint64_t value_ = 0;
};

/// Memory that a resource has allocated. A default-constructed Block is empty and converts to
/// false; deallocating an empty block succeeds and does nothing.
struct Block {
  /// The address in the memory of the device. Null for a block of 0 bytes, which need not be freed.
  void* address = nullptr;
  /// The granted size, which may be larger than the requested size.
  std::size_t bytes = 0;
  DeviceId device = {};
  Generation generation = {};

  [[nodiscard]] explicit constexpr operator bool() const noexcept { return bool(generation); }
  friend constexpr bool operator==(const Block&, const Block&) noexcept = default;
};

static_assert(sizeof(Block) == 32 && std::is_trivially_copyable_v<Block>);

/// The state of a block, as seen through its generation.
enum class BlockState : std::uint8_t {
  freed,        // the block is freed, or the generation was never issued
  live,         // allocated and not freed
  retired,      // freed, but the stream may still use the memory
  quarantined,  // freed, but kept by a GuardResource to catch late writes
};

// Statistics are the allocation counters that every resource has.

/// The counters of a resource at one moment. All byte counts are granted sizes. While other threads
/// allocate or free, sums may be off by the calls in progress.
struct Statistics {
  /// Allocated and not freed.
  std::size_t live_bytes = 0;
  std::size_t live_blocks = 0;
  /// Freed, but the stream has not passed the free yet.
  std::size_t pending_bytes = 0;
  /// Held from the upstream or the driver, in use or not. 0 if the resource holds no memory itself.
  std::size_t reserved_bytes = 0;
  /// The high-water mark of live_bytes.
  std::size_t peak_live_bytes = 0;

  /// Requests that were served without new memory from the upstream or the driver.
  std::uint64_t reuses = 0;
  /// Bytes that are held but not live, and the largest contiguous free block. 0 if the resource
  /// holds no memory itself.
  std::size_t free_bytes = 0;
  std::size_t largest_free_bytes = 0;

  std::uint64_t requests = 0;  // all requests, including failed ones and those for 0 bytes
  std::uint64_t refusals = 0;  // requests that failed
  std::uint64_t frees = 0;
  /// Frees that failed, and the bytes that stay live because of them.
  std::uint64_t failed_frees = 0;
  std::size_t failed_free_bytes = 0;

  /// The share of successful requests that were served from memory that the resource already held,
  /// from 0 to 1. Returns 0 if no request succeeded.
  [[nodiscard]] double hit_rate() const noexcept {
    const std::uint64_t served = requests - refusals;
    return served == 0 ? 0 : static_cast<double>(reuses) / static_cast<double>(served);
  }
  /// How fragmented the free memory is: 0 if all free memory is one block, close to 1 if it is in
  /// many small pieces.
  [[nodiscard]] double fragmentation() const noexcept {
    return free_bytes == 0
               ? 0
               : 1 - static_cast<double>(largest_free_bytes) / static_cast<double>(free_bytes);
  }
};

/// All live blocks that share a device, a tag and an allocating source line.
struct Holder {
  std::string device;  // the spec
  Tag tag = {};
  CallSite site = {};
  std::size_t bytes = 0;
  std::size_t blocks = 0;
  /// LiveBlock::order of the oldest of these blocks. 0 if a TrackingResource did not record it.
  std::uint64_t oldest = 0;
};

/// The properties of a resource. They are constant for its life. Wrappers usually return the traits
/// of their upstream.
struct ResourceTraits {
  /// The kind of memory: device, pinned, managed, or host.
  MemoryKind kind = MemoryKind::device;
  /// Kernels can use the blocks.
  bool is_device_accessible = false;
  /// The host can use the blocks by their address.
  bool is_host_accessible = false;
  /// A block is ready in the order of its stream. If false, a block is ready when the call returns.
  bool is_stream_ordered = false;
  /// Frees return without waiting for the device.
  bool frees_without_waiting = false;
  /// A block that is freed without a stream can be reused immediately; no stream's work has to
  /// complete.
  bool frees_for_host_at_once = false;
  /// The generations of blocks are valid. The resource detects double and stale frees by them, and
  /// a LaunchRecorder can track uses of the blocks.
  bool tracks_use = true;
  /// The alignment of every block, and the largest alignment that a request may ask for.
  std::size_t alignment = 256;
  std::size_t max_alignment = 256;
};

/// The interface of all resources.
class TERN_EXPORT Resource {
 public:
  Resource() noexcept;
  Resource(const Resource&) = delete;
  Resource& operator=(const Resource&) = delete;
  virtual ~Resource();

  /// The name of the resource, such as "pool" or "budget(pool)". For errors and reports.
  [[nodiscard]] virtual const char* name() const noexcept = 0;
  /// The device whose memory the resource allocates.
  [[nodiscard]] virtual const Device& device() const noexcept = 0;
  /// What callers may rely on: alignment, order of frees, who may access the memory.
  [[nodiscard]] virtual ResourceTraits traits() const noexcept = 0;
  /// Returns the counters at one moment. With calls in progress, they may differ from each other.
  [[nodiscard]] virtual Statistics statistics() const noexcept = 0;

  /// Allocates a block. Returns an empty block for 0 bytes. Fails with size_overflow, misaligned,
  /// device_mismatch, out_of_memory, and further codes of the derived class. May wait for a stream,
  /// unless the request says Wait::never.
  [[nodiscard]] virtual Result<Block> try_allocate(const Request& request) noexcept = 0;
  /// Like try_allocate(), but throws the failure.
  [[nodiscard]] Block allocate(const Request& request) { return try_allocate(request).value(); }

  /// Returns exactly the size that would be granted for the request. Allocates nothing. A
  /// BudgetResource charges this size before it allocates.
  [[nodiscard]] virtual std::size_t good_size(const Request& request) const noexcept = 0;

  /// Frees a block in stream order: the stream's earlier work may still use the block. Without a
  /// stream, the host used the block last. Fails with use_after_free (already freed, or of another
  /// resource), device_mismatch, out_of_bounds (an address inside the block), stream_misuse, or the
  /// driver's error; a failed free changes nothing. Freeing an empty block succeeds and does
  /// nothing.
  [[nodiscard]] virtual Result<void> try_deallocate(
      const Block& block, StreamRef stream, const CallSite& site = CallSite::here()) noexcept = 0;
  /// Like try_deallocate(), for callers that cannot handle a failure, such as destructors. A
  /// failure is counted, reported to the failure callback and, unless the caller made a mistake,
  /// retried later.
  void deallocate(const Block& block, StreamRef stream,
                  const CallSite& site = CallSite::here()) noexcept;

  /// Returns unused memory to the upstream or the driver until at most `keep_bytes` are held.
  /// Returns the number of bytes. Never waits. Also retries failed frees.
  virtual std::size_t trim(std::size_t keep_bytes) noexcept;

  /// Returns the latest failure of deallocate() and clears it. Returns nothing if there was none
  /// since the last call.
  [[nodiscard]] std::optional<Failure> take_free_failure() noexcept;
  /// failed_frees() counts the deallocate() calls that failed. failed_free_bytes() is the size of
  /// the blocks that are still live because of that.
  [[nodiscard]] std::uint64_t failed_frees() const noexcept;
  [[nodiscard]] std::size_t failed_free_bytes() const noexcept;
  /// Returns whether there are failed frees to retry.
  [[nodiscard]] bool has_failed_frees() const noexcept {
    return has_failed_.load(std::memory_order_relaxed);
  }
  /// Retries the frees that failed because of the driver. Returns how many succeeded.
  std::size_t retry_failed_frees() noexcept;
  /// Returns whether the memory comes from a PausableResource (buffer/pausable_resource.hpp).
  [[nodiscard]] bool is_pausable() const noexcept { return is_pausable_; }

 protected:
  /// For constructors of resources whose blocks are in memory of a PausableResource.
  void set_pausable(bool is_pausable) noexcept { is_pausable_ = is_pausable; }
  /// Call before an allocation. Retries failed frees: at first before every allocation, then less
  /// and less often while the retries keep failing, at least once in about a thousand allocations.
  /// Costs one load if there are none.
  void retry_before_allocation() noexcept {
    if (has_failed_.load(std::memory_order_relaxed)) retry_with_backoff();
  }
  /// Checks a request of more than 0 bytes. Fails with size_overflow if the size is above
  /// max_request_bytes, misaligned if the alignment is not a power of two up to
  /// traits().max_alignment, and device_mismatch if the stream belongs to another device.
  [[nodiscard]] Result<void> check(const Request& request) const noexcept;

 private:
  friend class BudgetResource;

  /// If memory that the request's stream has freed serves the request immediately, writes its block
  /// and returns true.
  [[nodiscard]] virtual bool recycle(const Request& /*request*/, Block& /*into*/) noexcept {
    return false;
  }
  void retry_with_backoff() noexcept;

  struct FailedFree {
    Block block = {};
    StreamRef stream = {};
    CallSite site = {};
  };
  mutable Mutex failed_mutex_;
  std::optional<Failure> free_failure_;  // guarded by failed_mutex_, as are the members below
  std::vector<FailedFree> failed_;       // frees that are worth a retry
  std::uint64_t failed_frees_ = 0;
  std::size_t failed_free_bytes_ = 0;
  std::uint32_t allocations_to_skip_ = 0, skipped_allocations_ = 0;
  std::atomic<bool> has_failed_ = false;  // failed_ is not empty; written with the lock held
  bool is_pausable_ = false;              // constant after the construction
};

/// Shared ownership of a resource. Wrappers and memory keep their resource alive through it.
using ResourceHandle = std::shared_ptr<Resource>;

}  // namespace tern
