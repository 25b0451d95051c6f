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
// (failure_callback.hpp), and retries the free later: in trim(), before allocations (a pool: before
// allocations that miss its caches), in Budget::drain() and in shutdown().

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/core/visibility.hpp"
#include "tern/device/device.hpp"
#include "tern/device/memory_kind.hpp"
#include "tern/memory/block.hpp"
#include "tern/memory/request.hpp"
#include "tern/memory/statistics.hpp"

namespace tern {

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
  /// Double and stale frees are detected by the block's generation.
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
  [[nodiscard]] virtual ResourceTraits traits() const noexcept = 0;
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
  /// The number of deallocate() calls that failed, and the bytes of blocks that are still live
  /// because of that.
  [[nodiscard]] std::uint64_t failed_frees() const noexcept;
  [[nodiscard]] std::size_t failed_free_bytes() const noexcept;
  /// Returns whether there are failed frees to retry.
  [[nodiscard]] bool has_failed_frees() const noexcept {
    return has_failed_.load(std::memory_order_relaxed);
  }
  /// Retries the frees that failed because of the driver. Returns how many succeeded.
  std::size_t retry_failed_frees() noexcept;

 protected:
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
  void retry_with_backoff() noexcept;

  struct FailedFree {
    Block block = {};
    StreamRef stream = {};
    CallSite site = {};
  };
  mutable std::mutex failed_mutex_;
  std::optional<Failure> free_failure_;  // guarded by failed_mutex_, as are the members below
  std::vector<FailedFree> failed_;       // frees that are worth a retry
  std::uint64_t failed_frees_ = 0;
  std::size_t failed_free_bytes_ = 0;
  std::uint32_t allocations_to_skip_ = 0, skipped_allocations_ = 0;
  std::atomic<bool> has_failed_ = false;  // failed_ is not empty; written with the lock held
};

/// Shared ownership of a resource. Wrappers and memory keep their resource alive through it.
using ResourceHandle = std::shared_ptr<Resource>;

}  // namespace tern
