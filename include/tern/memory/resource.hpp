// A Resource gives out memory and takes it back: drivers, pools, and the wrappers around them.
//
// All have this one interface, so that a budget, a log or a guard can be put around anything.
// Wrappers own their upstream. A refused request has changed nothing and uses no heap memory to say
// so. Freeing is stream-ordered: everything submitted to the stream before the call may still use
// the block, nothing after it may. Thread-safe, all of them.
//
// A free that fails keeps its block live and charged. deallocate() cannot tell its caller, so the
// resource counts it, calls the failure callback (failure_callback.hpp), and tries again: when it
// is trimmed, when it allocates without a block at hand, and in Budget::drain() and shutdown().
// try_deallocate() returns the failure at once.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "tern/core/call_site.hpp"
#include "tern/core/export.hpp"
#include "tern/core/result.hpp"
#include "tern/device/device.hpp"
#include "tern/device/memory_kind.hpp"
#include "tern/memory/block.hpp"
#include "tern/memory/request.hpp"
#include "tern/memory/statistics.hpp"

namespace tern {

/// What a resource is and can do; constant for its life. Wrappers hand on what is below.
struct ResourceTraits {
  /// What its blocks are made of: device, pinned or managed memory, or the host's own.
  MemoryKind kind = MemoryKind::device;
  bool is_device_accessible = false;
  bool is_host_accessible = false;
  /// Blocks are ready in the order of their stream, not of the host.
  bool is_stream_ordered = false;
  /// Frees return without waiting for the device.
  bool frees_without_waiting = false;
  /// What is freed without a stream is free at once, behind no other stream's work.
  bool frees_for_host_at_once = false;
  /// Blocks that are freed twice, or late, are told apart by their generation.
  bool tracks_use = true;
  /// What every block has, and the most that may be asked for.
  std::size_t alignment = 256;
  std::size_t max_alignment = 256;
};

class TERN_EXPORT Resource {
 public:
  Resource() noexcept;
  Resource(const Resource&) = delete;
  Resource& operator=(const Resource&) = delete;
  virtual ~Resource();

  /// "pool", "budget(pool)": for errors and reports.
  [[nodiscard]] virtual const char* name() const noexcept = 0;
  [[nodiscard]] virtual const Device& device() const noexcept = 0;
  [[nodiscard]] virtual ResourceTraits traits() const noexcept = 0;
  [[nodiscard]] virtual Statistics statistics() const noexcept = 0;

  [[nodiscard]] virtual Result<Block> try_allocate(const Request& request) noexcept = 0;
  [[nodiscard]] Block allocate(const Request& request) { return try_allocate(request).value(); }

  /// Exactly what would be granted for the request; pure. A budget charges it beforehand.
  [[nodiscard]] virtual std::size_t good_size(const Request& request) const noexcept = 0;

  /// Refused with use_after_free (freed before, or not from here), device_mismatch, out_of_bounds
  /// (an address inside the block), stream_misuse; then nothing has changed. An empty block is
  /// taken back without a word.
  [[nodiscard]] virtual Result<void> try_deallocate(
      const Block& block, StreamRef stream, const CallSite& site = CallSite::here()) noexcept = 0;
  void deallocate(const Block& block, StreamRef stream,
                  const CallSite& site = CallSite::here()) noexcept;

  /// Gives back to upstream or the driver what is not in use, down to `keep_bytes` held. Gives how
  /// much that was. Never waits.
  virtual std::size_t trim(std::size_t keep_bytes) noexcept;

  /// The last free that failed silently, if there was one since this was last asked.
  [[nodiscard]] std::optional<Failure> take_free_failure() noexcept;
  /// How often a silent free failed, and the bytes of the blocks concerned.
  [[nodiscard]] std::uint64_t failed_frees() const noexcept;
  [[nodiscard]] std::size_t failed_free_bytes() const noexcept;
  /// Are there frees to try again?
  [[nodiscard]] bool has_failed_frees() const noexcept {
    return has_failed_.load(std::memory_order_relaxed);
  }
  /// Tries the frees again that failed because of the driver. Returns how many succeeded.
  std::size_t retry_failed_frees() noexcept;

 protected:
  /// Before an allocation: tries failed frees again, at first every time, and less and less often
  /// while they go on failing. Costs one load where there are none.
  void retry_before_allocation() noexcept {
    if (has_failed_.load(std::memory_order_relaxed)) retry_now_and_then();
  }
  /// Where a request is checked that has bytes: its stream is of the device or none, its alignment
  /// a power of two up to the traits' largest, its size one that memory can have.
  [[nodiscard]] Result<void> check(const Request& request) const noexcept;

 private:
  void retry_now_and_then() noexcept;

  struct FailedFree {
    Block block = {};
    StreamRef stream = {};
    CallSite site = {};
  };
  mutable std::mutex failed_mutex_;
  std::optional<Failure> free_failure_;  // guarded by failed_mutex_, as all of these
  std::vector<FailedFree> failed_;       // those worth another try
  std::uint64_t failed_frees_ = 0;
  std::size_t failed_free_bytes_ = 0;
  std::uint32_t allocations_to_skip_ = 0, skipped_allocations_ = 0;
  std::atomic<bool> has_failed_ = false;  // is failed_ not empty? Written with the lock held
};

using ResourceHandle = std::shared_ptr<Resource>;

}  // namespace tern
