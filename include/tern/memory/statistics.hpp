// What a resource has given out and taken back, as numbers.

#pragma once

#include <cstddef>
#include <cstdint>

namespace tern {

/// Bytes are those granted. A plain value: a picture of one moment, in which sums may be off by
/// calls that are under way.
struct Statistics {
  std::size_t live_bytes = 0;
  std::size_t live_blocks = 0;
  /// Freed, but not yet passed by the stream that used it last.
  std::size_t pending_bytes = 0;
  /// Held from upstream or the driver, in use or not; 0 where the resource holds nothing itself.
  std::size_t reserved_bytes = 0;
  /// The most that was live at a time.
  std::size_t peak_live_bytes = 0;

  /// Requests that were served without asking upstream or the driver for memory.
  std::uint64_t reuses = 0;
  /// Held and not live, and the largest block that is there in one piece. 0 where the resource
  /// holds nothing itself.
  std::size_t free_bytes = 0;
  std::size_t largest_free_bytes = 0;

  std::uint64_t requests = 0;  // all of them, also refused ones and those for nothing
  std::uint64_t refusals = 0;
  std::uint64_t frees = 0;
  /// Frees that failed, and the bytes that stay live because of it.
  std::uint64_t failed_frees = 0;
  std::size_t failed_free_bytes = 0;

  /// Of the requests that got memory, the part that was served from memory at hand; 0 without any.
  [[nodiscard]] double hit_rate() const noexcept {
    const std::uint64_t served = requests - refusals;
    return served == 0 ? 0 : static_cast<double>(reuses) / static_cast<double>(served);
  }
  /// 0: all free memory is one block; towards 1: it is in pieces.
  [[nodiscard]] double fragmentation() const noexcept {
    return free_bytes == 0
               ? 0
               : 1 - static_cast<double>(largest_free_bytes) / static_cast<double>(free_bytes);
  }
};

}  // namespace tern
