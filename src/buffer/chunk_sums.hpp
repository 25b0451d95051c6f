// ChunkSums holds one checksum for each chunk of a range of bytes. Chunks can be added in any
// order. Different threads may add different chunks.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/checksum.hpp"
#include "tern/core/bytes.hpp"

namespace tern {

class ChunkSums {
 public:
  static constexpr std::size_t chunk_bytes = 8 * mib;

  /// Throws std::bad_alloc.
  explicit ChunkSums(std::size_t bytes) : sums_((bytes + chunk_bytes - 1) / chunk_bytes) {}

  /// Sets the checksums of chunks. `offset` is the beginning of a chunk, and `bytes` end at the end
  /// of a chunk or of the range.
  void add(std::size_t offset, std::span<const std::byte> bytes) noexcept {
    for_each_chunk(offset, bytes, [](std::uint64_t& sum, std::uint64_t now) {
      sum = now;
      return true;
    });
  }
  /// Returns whether the bytes have the checksums that were added for them.
  [[nodiscard]] bool matches(std::size_t offset, std::span<const std::byte> bytes) noexcept {
    return for_each_chunk(offset, bytes,
                          [](std::uint64_t sum, std::uint64_t now) { return sum == now; });
  }

 private:
  template <class Visit>
  bool for_each_chunk(std::size_t offset, std::span<const std::byte> bytes, Visit visit) noexcept {
    for (std::size_t done = 0; done < bytes.size(); done += chunk_bytes) {
      Checksum sum;
      sum.add(bytes.subspan(done, std::min(chunk_bytes, bytes.size() - done)));
      if (!visit(sums_[(offset + done) / chunk_bytes], sum.get())) return false;
    }
    return true;
  }

  std::vector<std::uint64_t> sums_;
};

}  // namespace tern
