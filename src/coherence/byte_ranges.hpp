// Arithmetic on byte ranges and on lists of them. Pure functions.

#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "tern/detail/buffer/storage.hpp"

namespace tern {

[[nodiscard]] constexpr bool is_empty(ByteRange range) noexcept { return range.begin == range.end; }

/// Returns whether the ranges have a byte in common.
[[nodiscard]] constexpr bool overlap(ByteRange a, ByteRange b) noexcept {
  return a.begin < b.end && b.begin < a.end;
}

/// Returns the smallest range around both ranges.
[[nodiscard]] constexpr ByteRange hull(ByteRange a, ByteRange b) noexcept {
  return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
}

/// Returns the parts of `ranges` that are in none of the ranges of `removed`, which is in ascending
/// order. Throws std::bad_alloc.
[[nodiscard]] std::vector<ByteRange> subtract(std::span<const ByteRange> ranges,
                                              std::span<const ByteRange> removed);

}  // namespace tern
