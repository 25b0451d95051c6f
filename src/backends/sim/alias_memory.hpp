// Memory with two faces: the addresses users hold, which nobody can touch, and the alias through
// which the simulated device does.
//
// One sparse memory file is mapped twice, so that a device of 141 GiB opens on a small machine and
// a stray host access faults at an address that tells which device and offset it hit. Bytes that
// were never written, or were freed, read as a pattern from the seed; it is written only when
// somebody looks, so a large allocation costs nothing. Behind it lies a window of addresses without
// memory, where pages can be mapped. Confined, except for the constants.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "core/interval_map.hpp"
#include "tern/core/result.hpp"

namespace tern::sim {

/// Addresses without memory, from a base that has the largest alignment a device gives. MAP_FAILED
/// if there are not enough.
[[nodiscard]] void* reserve_aligned(std::size_t bytes) noexcept;

class AliasMemory {
 public:
  [[nodiscard]] static Result<std::unique_ptr<AliasMemory>> try_make(std::size_t bytes,
                                                                     std::size_t window_bytes,
                                                                     std::uint64_t seed) noexcept;
  ~AliasMemory();
  AliasMemory(const AliasMemory&) = delete;
  AliasMemory& operator=(const AliasMemory&) = delete;

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::size_t window_bytes() const noexcept { return window_bytes_; }

  /// Offsets run over the memory, then over the window.
  [[nodiscard]] std::optional<std::uint64_t> offset_of(const void* address) const noexcept;
  [[nodiscard]] void* address_of(std::uint64_t offset) const noexcept { return users_ + offset; }
  /// Where the device finds the byte. Offsets in the window must be mapped.
  [[nodiscard]] std::byte* alias_of(std::uint64_t offset) const noexcept { return alias_ + offset; }

  /// The range holds fresh bytes of this generation from now on, or freed ones.
  void set_fresh(std::uint64_t offset, std::uint64_t bytes, std::uint64_t generation);
  void set_freed(std::uint64_t offset, std::uint64_t bytes, std::uint64_t generation);
  /// Before the device reads, or writes a part of it: makes the pattern real.
  void prepare(std::uint64_t offset, std::uint64_t bytes);
  /// Before the device overwrites all of it.
  void forget(std::uint64_t offset, std::uint64_t bytes);

  /// Lets the host touch whole pages at users' addresses, and takes that back. For a kernel that is
  /// to be watched; opening what is not mapped has no effect.
  void open_pages(std::uint64_t offset, std::uint64_t bytes, bool for_writing) noexcept;
  void close_pages(std::uint64_t offset, std::uint64_t bytes) noexcept;
  [[nodiscard]] static std::size_t page_bytes() noexcept;

  /// Maps memory at an offset of the window. The bytes stay where they are.
  [[nodiscard]] Result<void> map(std::uint64_t window_offset, std::uint64_t memory_offset,
                                 std::size_t bytes) noexcept;
  [[nodiscard]] Result<void> unmap(std::uint64_t window_offset, std::size_t bytes) noexcept;

 private:
  struct Pattern {
    std::uint64_t key;
    bool is_freed;
    std::uint64_t base;  // the offset the pattern counts from
  };
  AliasMemory(int file, std::byte* users, std::byte* alias, std::size_t bytes,
              std::size_t window_bytes, std::uint64_t seed) noexcept;
  [[nodiscard]] std::uint64_t key_of(std::uint64_t generation) const noexcept;
  void write_pattern(std::uint64_t begin, std::uint64_t end, const Pattern& pattern);
  /// Calls body(memory offset, bytes) for the memory behind a range of either part.
  template <class Body>
  void for_each_piece(std::uint64_t offset, std::uint64_t bytes, Body body) const;

  const int file_;
  std::byte* const users_;
  std::byte* const alias_;
  const std::size_t bytes_;
  const std::size_t window_bytes_;
  const std::uint64_t seed_;  // of the patterns: the neighbours of a seed share none
  IntervalMap<Pattern> pending_;
  std::map<std::uint64_t, std::pair<std::uint64_t, std::uint64_t>>
      mapped_;  // window: memory, bytes
};

}  // namespace tern::sim
