// Closes the free blocks of a pool to the host, where AddressSanitizer or Valgrind is there to
// report whoever touches one.
//
// Only of memory that the host can touch, and only blocks that no queued work can still use: the
// tool would report that work too. A block is opened before it is allocated, and everything before
// it goes back to the driver. Without a tool it does nothing.

#pragma once

#include <atomic>
#include <cstddef>

#include "core/memory_tool.hpp"
#include "memory/pool/descriptor.hpp"
#include "memory/pool/size_class.hpp"

namespace tern::pool {

/// Pools that are made while one of these lives close nothing. For tests that look at the short way
/// of a pool and at what it asks of the driver.
class ScopedOpenPools {
 public:
  ScopedOpenPools() noexcept { count.fetch_add(1, std::memory_order_relaxed); }
  ~ScopedOpenPools() { count.fetch_sub(1, std::memory_order_relaxed); }
  ScopedOpenPools(const ScopedOpenPools&) = delete;
  ScopedOpenPools& operator=(const ScopedOpenPools&) = delete;

  static inline constinit std::atomic<int> count = 0;
};

class ClosedBlocks {
 public:
  ClosedBlocks() = default;
  explicit ClosedBlocks(bool is_host_accessible) noexcept
      : is_on_(is_host_accessible && memory_tool() != nullptr &&
               ScopedOpenPools::count.load(std::memory_order_relaxed) == 0) {}

  [[nodiscard]] bool is_on() const noexcept { return is_on_; }
  void close(const Descriptor& range) const noexcept {
    if (MemoryTool* const tool = is_on_ ? memory_tool() : nullptr) {
      tool->close(address_of(range), range.size * granule_bytes);
    }
  }
  void open(const Descriptor& range) const noexcept {
    if (is_on_) open(address_of(range), range.size * granule_bytes);
  }
  void open(const void* address, std::size_t bytes) const noexcept {
    if (MemoryTool* const tool = is_on_ ? memory_tool() : nullptr) tool->open(address, bytes);
  }

 private:
  [[nodiscard]] static const void* address_of(const Descriptor& range) noexcept {
    return reinterpret_cast<const void*>(range.offset * granule_bytes);
  }

  bool is_on_ = false;
};

}  // namespace tern::pool
