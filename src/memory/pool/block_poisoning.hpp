// Poisons the free blocks of a pool, so that AddressSanitizer or Valgrind reports accesses to them.
//
// Only host-accessible memory is poisoned, and only blocks that no queued work can still use,
// because the tool would report that work too. A block is unpoisoned before it is allocated or
// returned to the driver. Without a tool, nothing happens.

#pragma once

#include <atomic>
#include <cstddef>

#include "core/memory_tool.hpp"
#include "memory/pool/descriptor.hpp"
#include "memory/pool/size_class.hpp"

namespace tern::pool {

/// Pools that are created during the lifetime of this object poison nothing. For tests of the
/// pool's fast path and of its driver calls, which poisoning changes.
class ScopedOpenPools {
 public:
  ScopedOpenPools() noexcept { count.fetch_add(1, std::memory_order_relaxed); }
  ~ScopedOpenPools() { count.fetch_sub(1, std::memory_order_relaxed); }
  ScopedOpenPools(const ScopedOpenPools&) = delete;
  ScopedOpenPools& operator=(const ScopedOpenPools&) = delete;

  static inline constinit std::atomic<int> count = 0;
};

class BlockPoisoning {
 public:
  BlockPoisoning() = default;
  explicit BlockPoisoning(bool is_host_accessible) noexcept
      : is_on_(is_host_accessible && memory_tool() != nullptr &&
               ScopedOpenPools::count.load(std::memory_order_relaxed) == 0) {}

  [[nodiscard]] bool is_on() const noexcept { return is_on_; }
  void poison(const Descriptor& range) const noexcept {
    if (MemoryTool* const tool = is_on_ ? memory_tool() : nullptr) {
      tool->poison(address_of(range), range.size * granule_bytes);
    }
  }
  void unpoison(const Descriptor& range) const noexcept {
    if (is_on_) unpoison(address_of(range), range.size * granule_bytes);
  }
  void unpoison(const void* address, std::size_t bytes) const noexcept {
    if (MemoryTool* const tool = is_on_ ? memory_tool() : nullptr) tool->unpoison(address, bytes);
  }

 private:
  [[nodiscard]] static const void* address_of(const Descriptor& range) noexcept {
    return reinterpret_cast<const void*>(range.offset * granule_bytes);
  }

  bool is_on_ = false;
};

}  // namespace tern::pool
