// The memory of a host device. Every allocation is recorded by its address.
//
// The record turns a double free, or a free of a foreign or interior address, into an error instead
// of heap corruption. Large blocks have their own pages, huge pages if the system provides them,
// and are bound to a NUMA node if the device was opened with one. Pinned blocks are page-locked.
// All instances share one lock, which is held across a fork, so a forked child can allocate and
// free. Thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "tern/core/result.hpp"
#include "tern/device/device_info.hpp"

namespace tern::host {

/// Whether large blocks request huge pages.
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
  /// The two steps of a stream-ordered free. begin_release() makes the address invalid for callers,
  /// finish_release() frees the memory. cancel_release() undoes begin_release().
  [[nodiscard]] Result<void> begin_release(void* address) noexcept;
  void finish_release(void* address) noexcept;
  void cancel_release(void* address) noexcept;

  /// Returns the allocation that contains the address, if there is one.
  [[nodiscard]] std::optional<PointerInfo> find(const void* address) const noexcept;
  [[nodiscard]] std::size_t live_blocks() const noexcept;

 private:
  struct Block {
    std::size_t bytes;         // requested size
    std::size_t mapped_bytes;  // 0: allocated on the heap
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
  std::map<std::uintptr_t, Block> blocks_;  // guarded by the lock that all instances share
};

}  // namespace tern::host
