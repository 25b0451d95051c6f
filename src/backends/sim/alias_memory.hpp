// Memory with two mappings: the addresses that users hold, which cannot be accessed, and the alias
// through which the simulated device accesses the memory.
//
// One sparse memory file is mapped twice, so a device of 141 GiB can be opened on a small machine,
// and a stray host access faults at an address that identifies the device and the offset. Bytes
// that were never written, or were freed, read as a pattern from the seed. The pattern is written
// only when the bytes are read, so a large allocation costs nothing. After the memory follows a
// window of addresses without memory, where pages can be mapped. Not thread-safe, except for the
// constants.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "core/interval_map.hpp"
#include "tern/core/result.hpp"

namespace tern::sim {

/// Reserves addresses without memory. The base has the largest alignment of a device. Returns
/// MAP_FAILED if there are not enough addresses.
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

  /// Offsets count through the memory and then through the window.
  [[nodiscard]] std::optional<std::uint64_t> offset_of(const void* address) const noexcept;
  [[nodiscard]] void* address_of(std::uint64_t offset) const noexcept { return users_ + offset; }
  /// Returns the alias of a byte. Offsets in the window must be mapped.
  [[nodiscard]] std::byte* alias_of(std::uint64_t offset) const noexcept { return alias_ + offset; }

  /// Declares the range as fresh bytes of this generation, or as freed.
  void set_fresh(std::uint64_t offset, std::uint64_t bytes, std::uint64_t generation);
  void set_freed(std::uint64_t offset, std::uint64_t bytes, std::uint64_t generation);
  /// Call before the device reads the range or writes a part of it: writes the pattern.
  void prepare(std::uint64_t offset, std::uint64_t bytes);
  /// Call before the device overwrites the whole range.
  void forget(std::uint64_t offset, std::uint64_t bytes);

  /// Allow and forbid access to whole pages at users' addresses, for strict kernels. Opening pages
  /// that are not mapped has no effect.
  void open_pages(std::uint64_t offset, std::uint64_t bytes, bool for_writing) noexcept;
  void close_pages(std::uint64_t offset, std::uint64_t bytes) noexcept;
  [[nodiscard]] static std::size_t page_bytes() noexcept;

  /// Maps memory at an offset of the window. The bytes do not move.
  [[nodiscard]] Result<void> map(std::uint64_t window_offset, std::uint64_t memory_offset,
                                 std::size_t bytes) noexcept;
  /// Maps a shareable file instead of memory of this device. Its bytes never have a pattern,
  /// because other processes write them too. The caller may close the file.
  [[nodiscard]] Result<void> map_file(std::uint64_t window_offset, int file,
                                      std::size_t bytes) noexcept;
  [[nodiscard]] Result<void> unmap(std::uint64_t window_offset, std::size_t bytes) noexcept;

 private:
  struct Pattern {
    std::uint64_t key;
    bool is_freed;
    std::uint64_t base;  // the offset from which the pattern counts
  };
  AliasMemory(int file, std::byte* users, std::byte* alias, std::size_t bytes,
              std::size_t window_bytes, std::uint64_t seed) noexcept;
  [[nodiscard]] std::uint64_t key_of(std::uint64_t generation) const noexcept;
  /// Maps a file at an offset of the window, for users and for the device.
  [[nodiscard]] Result<void> map_at(std::uint64_t window_offset, int file,
                                    std::uint64_t file_offset, std::size_t bytes) noexcept;
  void write_pattern(std::uint64_t begin, std::uint64_t end, const Pattern& pattern);
  /// Calls body(memory offset, bytes) for the memory behind a range of either part.
  template <class Body>
  void for_each_piece(std::uint64_t offset, std::uint64_t bytes, Body body) const;

  const int file_;
  std::byte* const users_;
  std::byte* const alias_;
  const std::size_t bytes_;
  const std::size_t window_bytes_;
  const std::uint64_t seed_;  // of the patterns: adjacent seeds share none
  IntervalMap<Pattern> pending_;
  std::map<std::uint64_t, std::pair<std::uint64_t, std::uint64_t>>
      mapped_;  // window: memory, bytes
};

}  // namespace tern::sim
