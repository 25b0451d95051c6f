// The bytes that the elements of a strided array need.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/result.hpp"
#include "tern/core/shape.hpp"

namespace tern {

/// The bytes that elements of a shape need in front of the element with all indices 0, and from
/// that element on. Both are 0 if there are no elements.
struct StridedSpan {
  std::size_t before = 0, behind = 0;
};
/// Returns the bytes that a shape needs. Fails with size_overflow, shape_mismatch.
[[nodiscard]] Result<StridedSpan> try_strided_span(const Shape& shape,
                                                   std::span<const std::int64_t> strides,
                                                   DType dtype, CallSite site) noexcept;

}  // namespace tern
