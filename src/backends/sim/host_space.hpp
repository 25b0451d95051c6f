// Host memory for the checker: offsets instead of addresses.
//
// Pinned and managed memory is in one arena, so its offsets are stable. Foreign memory, such as a
// vector of the program, gets offsets in the order of its first use, so that reports and hashes do
// not depend on addresses of the heap. Not thread-safe.

#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "backends/sim/range_allocator.hpp"
#include "core/interval_map.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/detail/trace/record.hpp"
#include "tern/device/device_info.hpp"

namespace tern::sim {

class HostSpace {
 public:
  struct Block {
    std::size_t bytes = 0;
    MemoryKind kind = MemoryKind::pinned;
    std::uint64_t generation = 0;
  };

  explicit HostSpace(Reuse reuse);
  ~HostSpace();
  HostSpace(const HostSpace&) = delete;
  HostSpace& operator=(const HostSpace&) = delete;

  [[nodiscard]] Result<void*> allocate(std::size_t bytes, std::size_t alignment, MemoryKind kind,
                                       std::uint64_t generation);
  [[nodiscard]] TERN_EXPORT const Block* find(const void* address, void** base) const noexcept;
  void release(void* address);
  /// Returns the arena offset of a byte of managed memory, or nothing for other memory.
  [[nodiscard]] std::optional<std::uint64_t> managed_offset(const void* address) const noexcept;
  [[nodiscard]] bool is_pageable(const void* address) const noexcept {
    return find(address, nullptr) == nullptr;
  }

  /// Foreign memory that was page-locked in place. Devices may use it without declaring it.
  void begin_registration(const void* address, std::size_t bytes) {
    registered_[reinterpret_cast<std::uintptr_t>(address)] = bytes;
  }
  void end_registration(const void* address) {
    registered_.erase(reinterpret_cast<std::uintptr_t>(address));
  }
  [[nodiscard]] bool is_registered(const void* address) const noexcept {
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    const auto next = registered_.upper_bound(at);
    return next != registered_.begin() && at - std::prev(next)->first < std::prev(next)->second;
  }

  /// Forgets foreign memory that overlaps the range if is_settled(range) returns that no work uses
  /// it: it may be another object by now, and reuse of the address would be a coincidence.
  template <class IsSettled>
  void forget_settled(const void* address, std::size_t bytes, IsSettled is_settled) {
    const auto begin = reinterpret_cast<std::uintptr_t>(address);
    for (auto it = foreign_.first_behind(begin);
         it != foreign_.end() && it->first < begin + bytes;) {
      const std::uint64_t from = it->first, to = it->second.end;
      const bool is_over = is_settled(SpaceRange{0, it->second.value, to - from});
      ++it;
      if (is_over) foreign_.erase(from, to);
    }
  }
  /// Appends the range as one or more ranges of space 0.
  void translate(const void* address, std::size_t bytes, std::vector<SpaceRange>& ranges);

 private:
  static constexpr std::uint64_t foreign_offset = std::uint64_t{1} << 44;

  const std::size_t arena_bytes_;
  std::byte* arena_ = nullptr;  // mapped on first use
  RangeAllocator allocator_;
  std::map<std::uintptr_t, Block> blocks_;
  std::map<std::uintptr_t, std::size_t> registered_;
  IntervalMap<std::uint64_t> foreign_;  // address to the offset of the interval's first byte
  std::uint64_t next_foreign_ = foreign_offset;
};

}  // namespace tern::sim
