// A StridedBuffer is elements of a buffer that are not side by side: what other libraries make by
// slicing, transposing and broadcasting, and hand over as it is.
//
// It has a shape and a stride for every dimension, in elements: any, also zero and negative ones.
// What it adds to a buffer is the arithmetic. All of its elements were found inside the buffer when
// it was made, so nothing that is done with it later can leave it. Kernels that know strides use
// hull(), the bytes from the first to the last element; everything else in Tern wants elements side
// by side, and gets them by buffer(), where they are, or by contiguous(), a copy where they are
// not.
//
// A value of shared memory, as a Buffer is: copies share it. Thread-safe as that. Each x() throws
// what try_x() returns.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tern/buffer/buffer.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/export.hpp"
#include "tern/core/result.hpp"
#include "tern/core/shape.hpp"
#include "tern/device/stream.hpp"

namespace tern {

class TERN_EXPORT StridedBuffer {
 public:
  /// No buffer: rank 0, type void.
  StridedBuffer() = default;
  /// As a buffer has them: side by side.
  explicit StridedBuffer(const Buffer& buffer);

  /// Elements of a buffer, whose type does not matter, from the one at `offset_bytes` on; a stride
  /// for each dimension, of which those of dimensions of one element are not looked at. Refused
  /// with shape_mismatch for another number of strides; with misaligned; with invalid_view, naming
  /// what the elements would need; with size_overflow; with invalid_argument for void.
  [[nodiscard]] static Result<StridedBuffer> try_over(const Buffer& buffer,
                                                      std::size_t offset_bytes, DType dtype,
                                                      Shape shape,
                                                      std::span<const std::int64_t> strides,
                                                      CallSite site = CallSite::here()) noexcept;
  /// The same with the buffer's share.
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

  /// How many bytes elements of such a shape need before and from the one with all indices 0. None
  /// for no elements. Refused with size_overflow, shape_mismatch.
  struct Reach {
    std::size_t before = 0, behind = 0;
  };
  [[nodiscard]] static Result<Reach> try_reach(const Shape& shape,
                                               std::span<const std::int64_t> strides, DType dtype,
                                               CallSite site = CallSite::here()) noexcept;

  [[nodiscard]] explicit operator bool() const noexcept { return bool(hull_); }
  [[nodiscard]] DType dtype() const noexcept { return dtype_; }
  [[nodiscard]] const Shape& shape() const noexcept { return shape_; }
  /// In elements, one for each dimension.
  [[nodiscard]] std::span<const std::int64_t> strides() const noexcept {
    const std::span<const std::size_t> bits = strides_.extents();
    return {reinterpret_cast<const std::int64_t*>(bits.data()), bits.size()};
  }
  [[nodiscard]] std::size_t element_count() const noexcept { return count_; }
  /// Are they side by side, in row-major order? Fewer than two always are.
  [[nodiscard]] bool is_contiguous() const noexcept { return is_contiguous_; }
  /// The bytes from the first element in memory to the last, as bytes: what a use declares.
  [[nodiscard]] const Buffer& hull() const noexcept { return hull_; }
  /// Where in the hull the element is that has all indices 0. Not 0 if a stride is negative.
  [[nodiscard]] std::size_t origin_bytes() const noexcept { return origin_; }

  /// The same memory as a buffer. Refused with unsupported where the elements are not side by side;
  /// contiguous() is the way then.
  [[nodiscard]] Result<Buffer> try_buffer(CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] Buffer buffer(CallSite site = CallSite::here()) const {
    return try_buffer(site).value();
  }
  /// The same memory if the elements are side by side, else new memory of the same resource (of
  /// memory that is no resource's: the device's default) in row-major order: by copies in stream
  /// order, of which there is one for each two dimensions that are left when neighbours are taken
  /// together. Refused as copies and allocations are.
  [[nodiscard]] Result<Buffer> try_contiguous(StreamRef stream,
                                              CallSite site = CallSite::here()) const noexcept;
  [[nodiscard]] Buffer contiguous(StreamRef stream, CallSite site = CallSite::here()) const {
    return try_contiguous(stream, site).value();
  }

 private:
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
  Shape strides_;  // their bits: no heap up to four dimensions
  std::size_t count_ = 0;
  DType dtype_ = DType::void_;
  bool is_contiguous_ = true;
};

}  // namespace tern
