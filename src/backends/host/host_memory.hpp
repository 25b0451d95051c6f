// The memory of a host device: every allocation is known by its address.
//
// Knowing them is what makes a double free, a free of a foreign address or of an interior one an
// error with a name instead of a corrupted heap. Large blocks lie on their own pages, huge ones
// where the system gives them, bound to a NUMA node if the device was opened with one; pinned
// blocks are page-locked. All instances share one lock, which is held across a fork, so that a
// forked child can go on allocating and freeing. Thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "tern/core/result.hpp"
#include "tern/device/device_info.hpp"

namespace tern::host {

/// Whether large blocks ask for huge pages.
enum class Pages : std::uint8_t { normal, huge };

struct HostMemoryOptions {
  Pages pages = Pages::huge;
  std::optional<std::uint32_t> numa_node;
};

class HostMemory {
 public:
  HostMemory(HostMemoryOptions options, std::size_t total_bytes);
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  [[nodiscard]] Result<void*> allocate(MemoryKind kind, std::size_t bytes,
                                       std::size_t alignment) noexcept;
  [[nodiscard]] Result<void> release(void* address) noexcept;
  /// The two halves of a stream-ordered release: from the first on the address is dead to callers,
  /// with the second its memory goes. Cancelling takes the first half back.
  [[nodiscard]] Result<void> begin_release(void* address) noexcept;
  void finish_release(void* address) noexcept;
  void cancel_release(void* address) noexcept;

  /// The allocation that holds the address, if one does.
  [[nodiscard]] std::optional<PointerInfo> find(const void* address) const noexcept;
  [[nodiscard]] std::size_t live_blocks() const noexcept;

 private:
  struct Block {
    std::size_t bytes;         // as asked for
    std::size_t mapped_bytes;  // 0: from the heap
    MemoryKind kind;
    bool is_releasing;
  };

  [[nodiscard]] Result<void*> take(MemoryKind kind, std::size_t bytes, std::size_t alignment,
                                   std::size_t& mapped_bytes) noexcept;
  void give(void* address, const Block& block) noexcept;
  [[nodiscard]] Failure out_of_memory(std::size_t bytes) const noexcept;
  [[nodiscard]] Failure not_live(const void* address) const noexcept;

  const HostMemoryOptions options_;
  const std::size_t total_bytes_;
  std::map<std::uintptr_t, Block> blocks_;  // guarded by the lock all instances share
};

}  // namespace tern::host
