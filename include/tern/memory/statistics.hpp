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

  std::uint64_t requests = 0;  // all of them, also refused ones and those for nothing
  std::uint64_t refusals = 0;
  std::uint64_t frees = 0;
  /// Frees that failed, and the bytes that stay live because of it.
  std::uint64_t failed_frees = 0;
  std::size_t failed_free_bytes = 0;
};

}  // namespace tern
