// Statistics are the allocation counters that every resource has.

#pragma once

#include <cstddef>
#include <cstdint>

namespace tern {

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

}  // namespace tern
