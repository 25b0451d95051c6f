// A StridedBuffer describes elements of a buffer that need not be adjacent, as other libraries
// produce by slicing, transposing and broadcasting.
//
//   StridedBuffer t = StridedBuffer::over(buffer, 0, DType::f32, {3, 2}, strides);
//   Buffer dense = t.contiguous(stream);
//
// It has a shape and one stride per dimension, in elements. Strides may be zero or negative. All
// elements were checked to be inside the buffer when the object was made, so later operations
// cannot leave the buffer. Kernels that understand strides use hull(), the bytes from the first to
// the last element. Everything else in Tern needs adjacent elements: buffer() returns them without
// a copy if they are adjacent, contiguous() copies them if they are not.
//
// Like a Buffer, a StridedBuffer is a handle: copies share the memory, and the same thread rules
// apply. x() throws what try_x() returns.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tern/buffer/buffer.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/result.hpp"
#include "tern/core/shape.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/device/stream.hpp"

namespace tern {

/// The handle. See the top of this file.
class TERN_EXPORT StridedBuffer {
 public:
  /// Constructs an empty handle: rank 0, dtype void.
  StridedBuffer() = default;
  /// Describes the elements of `buffer`, which are adjacent.
  explicit StridedBuffer(const Buffer& buffer);

  /// Describes elements of type `dtype` in a buffer of any dtype. The element with all indices 0 is
  /// at `offset_bytes`. There is one stride per dimension; strides of dimensions with one element
  /// are ignored. Fails with shape_mismatch if the number of strides is wrong, misaligned,
  /// invalid_view if an element is outside the buffer (the error has the bytes that would be
  /// needed), size_overflow, or invalid_argument for void.
  [[nodiscard]] static Result<StridedBuffer> try_over(const Buffer& buffer,
                                                      std::size_t offset_bytes, DType dtype,
                                                      Shape shape,
                                                      std::span<const std::int64_t> strides,
                                                      CallSite site = CallSite::here()) noexcept;
  /// Like the overload above, but reuses the storage handle of the temporary.
  [[nodiscard]] static Result<StridedBuffer> try_over(Buffer&& buffer, std::size_t offset_bytes,
                                                      DType dtype, Shape shape,
                                                      std::span<const std::int64_t> strides,
                                                      CallSite site = CallSite::here()) noexcept;
  [[nodiscard]] static StridedBuffer over(const Buffer& buffer, std::size_t offset_bytes,
                                          DType dtype, Shape shape,
                                          std::span<const std::int64_t> strides,
                                          CallSite site = CallSite::here()) {
    return try_over(buffer, offset_bytes, dtype, std::move(shape), strides, site).value();
  }

  [[nodiscard]] explicit operator bool() const noexcept { return bool(hull_); }
  /// The type of the elements; void for an empty handle.
  [[nodiscard]] DType dtype() const noexcept { return dtype_; }
  /// The extents, one per dimension.
  [[nodiscard]] const Shape& shape() const noexcept { return shape_; }
  /// The strides in elements, one per dimension.
  [[nodiscard]] std::span<const std::int64_t> strides() const noexcept {
    const std::span<const std::size_t> bits = strides_.extents();
    return {reinterpret_cast<const std::int64_t*>(bits.data()), bits.size()};
  }
  /// The product of the extents.
  [[nodiscard]] std::size_t element_count() const noexcept { return count_; }
  /// Returns true if the elements are adjacent and in row-major order. Fewer than two elements
  /// always are.
  [[nodiscard]] bool is_contiguous() const noexcept { return is_contiguous_; }
  /// The bytes from the first to the last element in memory, as a buffer of bytes. A use of the
  /// elements declares this range.
  [[nodiscard]] const Buffer& hull() const noexcept { return hull_; }
  /// Offset in hull() of the element with all indices 0. Greater than 0 only if a stride is
  /// negative.
  [[nodiscard]] std::size_t origin_bytes() const noexcept { return origin_; }

  /// Returns the elements as a buffer without a copy. Fails with unsupported if they are not
  /// adjacent; use contiguous() then.
  [[nodiscard]] Result<Buffer> try_buffer(CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] Buffer buffer(CallSite site = CallSite::here()) const {
    return try_buffer(site).value();
  }
  /// Returns the elements as a buffer without a copy if they are adjacent. Otherwise allocates
  /// memory from the same resource (or from the device's default resource if the memory belongs to
  /// no resource) and copies the elements in row-major order, in stream order. Dimensions that form
  /// one dense dimension are merged first. Each copy covers up to two of the remaining dimensions,
  /// the innermost ones, so the number of copies is the product of the other extents. Fails as
  /// copies and allocations do.
  [[nodiscard]] Result<Buffer> try_contiguous(StreamRef stream,
                                              CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] Buffer contiguous(StreamRef stream, CallSite site = CallSite::here()) const {
    return try_contiguous(stream, site).value();
  }

 private:
  friend class ForeignParts;
  StridedBuffer(Buffer&& hull, std::size_t origin, Shape&& shape, Shape&& strides,
                std::size_t count, DType dtype, bool is_contiguous) noexcept
      : hull_(std::move(hull)),
        origin_(origin),
        shape_(std::move(shape)),
        strides_(std::move(strides)),
        count_(count),
        dtype_(dtype),
        is_contiguous_(is_contiguous) {}

  Buffer hull_;
  std::size_t origin_ = 0;
  Shape shape_;
  Shape strides_;  // holds the bits of the strides; no heap up to four dimensions
  std::size_t count_ = 0;
  DType dtype_ = DType::void_;
  bool is_contiguous_ = true;
};

}  // namespace tern
