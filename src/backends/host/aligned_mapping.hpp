// Maps anonymous pages at an aligned address.

#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "backends/host/machine.hpp"
#include "tern/core/bytes.hpp"

namespace tern::host {

inline constexpr std::size_t huge_page_bytes = 2 * mib;

/// Maps `bytes`, a multiple of the system's page size. `alignment` is at least the page size.
/// Returns null if the system refuses. munmap(address, bytes) frees the memory.
[[nodiscard]] inline void* map_aligned(std::size_t bytes, std::size_t alignment) noexcept {
  const std::optional<std::size_t> padded = checked_add(bytes, alignment - system_page_bytes());
  if (!padded) return nullptr;
  void* raw = mmap(nullptr, *padded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<std::uintptr_t>(raw);
  const std::uintptr_t aligned = (start + alignment - 1) / alignment * alignment;
  const std::uintptr_t end = start + *padded;
  if (aligned > start) munmap(raw, aligned - start);
  if (end > aligned + bytes) {
    munmap(reinterpret_cast<void*>(aligned + bytes), end - aligned - bytes);
  }
  return reinterpret_cast<void*>(aligned);
}

}  // namespace tern::host
