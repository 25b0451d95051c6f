// ChunkSums holds one checksum for each chunk of a range of bytes. Each chunk is added once, in any
// order. Different threads may add different chunks.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/checksum.hpp"
#include "tern/core/bytes.hpp"

namespace tern {

class ChunkSums {
 public:
  static constexpr std::size_t chunk_bytes = 1 * mib;

  /// Throws std::bad_alloc.
  explicit ChunkSums(std::size_t bytes)
      : sums_((bytes + chunk_bytes - 1) / chunk_bytes), missing_(sums_.size()) {}

  /// Sets the checksums of chunks. `offset` is the beginning of a chunk, and `bytes` end at the end
  /// of a chunk or of the range.
  void add(std::size_t offset, std::span<const std::byte> bytes) noexcept {
    for (std::size_t done = 0; done < bytes.size(); done += chunk_bytes) {
      sums_[(offset + done) / chunk_bytes] = sum_at(bytes, done);
      missing_.fetch_sub(1, std::memory_order_release);
    }
  }
  /// Returns whether all chunks were added.
  [[nodiscard]] bool is_complete() const noexcept {
    return missing_.load(std::memory_order_acquire) == 0;
  }
  /// Returns the offset of the first chunk that does not have the checksum that was added for it,
  /// or the end of the bytes.
  [[nodiscard]] std::size_t find_change(std::size_t offset,
                                        std::span<const std::byte> bytes) const noexcept {
    for (std::size_t done = 0; done < bytes.size(); done += chunk_bytes) {
      if (sums_[(offset + done) / chunk_bytes] != sum_at(bytes, done)) return offset + done;
    }
    return offset + bytes.size();
  }

 private:
  [[nodiscard]] static std::uint64_t sum_at(std::span<const std::byte> bytes,
                                            std::size_t at) noexcept {
    return checksum_of_parts(bytes.subspan(at, std::min(chunk_bytes, bytes.size() - at)));
  }

  std::vector<std::uint64_t> sums_;
  std::atomic<std::size_t> missing_;
};

}  // namespace tern
