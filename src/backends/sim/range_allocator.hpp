// The simulated driver's allocator: allocates and frees ranges of an address space.
//
// In hostile mode it returns the most recently freed range that fits, so that premature reuse shows
// at the first opportunity. In friendly mode it reuses no byte until there is no fresh range left
// that fits. Computes with offsets and accesses no memory. Not thread-safe.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "tern/backends/sim.hpp"

namespace tern::sim {

class RangeAllocator {
 public:
  RangeAllocator(std::uint64_t bytes, Reuse reuse) : reuse_(reuse), total_(bytes) {
    free_.emplace(0, bytes);
  }

  [[nodiscard]] std::uint64_t free_bytes() const noexcept { return total_ - used_; }
  [[nodiscard]] std::uint64_t total_bytes() const noexcept { return total_; }

  /// Returns an aligned range, or nothing if no range of this size is free. Sizes are rounded up to
  /// 512 bytes, as drivers do.
  [[nodiscard]] std::optional<std::uint64_t> take(std::uint64_t bytes, std::uint64_t alignment);
  void give(std::uint64_t offset, std::uint64_t bytes);

  static constexpr std::uint64_t granule = 512;
  [[nodiscard]] static std::uint64_t rounded(std::uint64_t bytes) noexcept {
    return (bytes + granule - 1) / granule * granule;
  }

 private:
  using Free = std::map<std::uint64_t, std::uint64_t>;
  [[nodiscard]] std::optional<std::uint64_t> cut(Free::iterator range, std::uint64_t bytes,
                                                 std::uint64_t alignment, std::uint64_t least);

  const Reuse reuse_;
  const std::uint64_t total_;
  std::uint64_t used_ = 0;
  std::uint64_t fresh_ = 0;  // nothing at or above it was ever allocated
  Free free_;
  struct Range {
    std::uint64_t begin, end;
  };
  std::vector<Range> recent_;  // the rests of freed ranges, newest last
};

}  // namespace tern::sim
