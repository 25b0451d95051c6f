// Strides that make an import read-only: a write through one element could change another one.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tern/core/shape.hpp"

namespace tern {

/// Returns whether elements may overlap or run backwards.
/// The numbers were checked before, so products do not overflow.
[[nodiscard]] inline bool is_for_reading(const Shape& shape,
                                         std::span<const std::int64_t> strides) noexcept {
  if (shape.is_empty()) return false;
  const std::span<const std::size_t> extents = shape.extents();
  std::array<std::size_t, Shape::max_rank> axes;
  std::size_t count = 0;
  for (std::size_t i = extents.size(); i-- > 0;) {
    if (extents[i] < 2) continue;
    if (strides[i] <= 0) return true;
    // Sort by stride, smallest first. Most tensors are already sorted.
    std::size_t at = count++;
    for (; at > 0 && strides[axes[at - 1]] > strides[i]; --at) axes[at] = axes[at - 1];
    axes[at] = i;
  }
  // Every stride must be larger than the extent of all inner dimensions.
  std::size_t inside = 1;
  for (std::size_t k = 0; k < count; ++k) {
    const std::size_t stride = static_cast<std::size_t>(strides[axes[k]]);
    if (stride < inside) return true;
    inside += (extents[axes[k]] - 1) * stride;
  }
  return false;
}

}  // namespace tern
