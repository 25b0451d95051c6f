// Not part of the interface.
//
// LiveCounters counts the requests, frees and live bytes of a resource.
//
// For resources that keep no statistics of their own, such as wrappers. All functions are lock-free
// and thread-safe. The figures are exact when no call is in progress.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tern/memory/resource.hpp"

namespace tern {

/// Atomic counters behind Resource::statistics().
class LiveCounters {
 public:
  /// Counts an allocation request, whether or not it succeeds.
  void note_request() noexcept { requests_.fetch_add(1, std::memory_order_relaxed); }
  /// Counts a request that failed.
  void note_refusal() noexcept { refusals_.fetch_add(1, std::memory_order_relaxed); }
  /// Counts a block that was allocated, and updates the peak of live bytes.
  void note_allocation(std::size_t bytes) noexcept {
    blocks_.fetch_add(1, std::memory_order_relaxed);
    const std::size_t live = bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    std::size_t peak = peak_.load(std::memory_order_relaxed);
    while (peak < live && !peak_.compare_exchange_weak(peak, live, std::memory_order_relaxed)) {
    }
  }
  /// Counts a block that was freed.
  void note_free(std::size_t bytes) noexcept {
    frees_.fetch_add(1, std::memory_order_relaxed);
    blocks_.fetch_sub(1, std::memory_order_relaxed);
    bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  }

  /// Returns the current figures. Fields that the counters do not know are 0.
  [[nodiscard]] Statistics read() const noexcept {
    Statistics now;
    now.live_bytes = bytes_.load(std::memory_order_relaxed);
    now.live_blocks = blocks_.load(std::memory_order_relaxed);
    now.peak_live_bytes = peak_.load(std::memory_order_relaxed);
    now.requests = requests_.load(std::memory_order_relaxed);
    now.refusals = refusals_.load(std::memory_order_relaxed);
    now.frees = frees_.load(std::memory_order_relaxed);
    return now;
  }

 private:
  std::atomic<std::size_t> bytes_ = 0;
  std::atomic<std::size_t> blocks_ = 0;
  std::atomic<std::size_t> peak_ = 0;
  std::atomic<std::uint64_t> requests_ = 0;
  std::atomic<std::uint64_t> refusals_ = 0;
  std::atomic<std::uint64_t> frees_ = 0;
};

}  // namespace tern
