// Hands out ranges of an address space, and takes them back: the simulated driver's allocator.
//
// Hostile, it hands out the most recently freed range that fits, so that a reuse too early happens
// at the first opportunity. Friendly, it hands out no byte twice until nothing fits behind
// those it has handed out.
// Computes with offsets and touches no memory. Confined.

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

  /// An aligned range; nothing if none of that size is free. Bytes are rounded up to the
  /// alignment's smaller cousin, 512, as drivers do.
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
  std::uint64_t fresh_ = 0;  // nothing at or above it was ever handed out
  Free free_;
  struct Range {
    std::uint64_t begin, end;
  };
  std::vector<Range> recent_;  // what is left of freed ranges, the newest last
};

}  // namespace tern::sim
