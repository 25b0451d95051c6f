// Stride arithmetic, and the copy to contiguous memory.

#include "tern/buffer/strided_buffer.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "buffer/strided_span.hpp"
#include "core/no_host_memory.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/core/bytes.hpp"

namespace tern {
namespace {

Failure overflow(CallSite site) noexcept {
  return Failure(ErrorCode::size_overflow, "the strides of a strided buffer overflow 64 bits.",
                 site)
      .with("what", "a strided buffer");
}

bool are_dense(const Shape& shape, std::span<const std::int64_t> strides) noexcept {
  std::size_t expected = 1;
  for (std::size_t i = shape.rank(); i-- > 0;) {
    const std::size_t extent = shape.extents()[i];
    if (extent == 1) continue;
    if (strides[i] < 0 || static_cast<std::size_t>(strides[i]) != expected) return false;
    expected *= extent;  // cannot overflow: at most the number of elements
  }
  return true;
}

/// Returns row-major strides. Strides of an empty shape may overflow; nobody reads them, but there
/// must be one per dimension.
Shape dense_strides(const Shape& shape) {
  if (const std::size_t rank = shape.rank(); rank <= Shape::inline_rank) {
    std::array<std::size_t, Shape::inline_rank> dense;
    std::size_t stride = 1;
    bool is_too_large = false;
    for (std::size_t i = rank; i-- > 0;) {
      dense[i] = stride;
      is_too_large |=
          __builtin_mul_overflow(stride, std::max<std::size_t>(shape.extents()[i], 1), &stride);
    }
    if (!is_too_large) return Shape(std::span<const std::size_t>(dense.data(), rank));
  }
  Result<Shape> strides = shape.try_strides();
  if (strides) return *std::move(strides);
  if (strides.failure().code() == ErrorCode::out_of_memory) raise(strides.failure());
  std::array<std::size_t, Shape::max_rank> ones;
  ones.fill(1);
  return Shape(std::span<const std::size_t>(ones.data(), shape.rank()));
}

/// A dimension that the copy iterates over.
struct Axis {
  std::size_t extent = 1;
  std::int64_t stride_bytes = 0;
};

/// Returns the dimensions, outermost first. Neighbours that form one dense dimension are merged.
std::vector<Axis> axes_of(const Shape& shape, std::span<const std::int64_t> strides,
                          std::size_t width) {
  std::vector<Axis> axes;
  for (std::size_t i = 0; i < shape.rank(); ++i) {
    const std::size_t extent = shape.extents()[i];
    if (extent == 1) continue;
    const Axis axis = {extent, strides[i] * static_cast<std::int64_t>(width)};
    if (!axes.empty() &&
        axes.back().stride_bytes == axis.stride_bytes * static_cast<std::int64_t>(extent)) {
      axes.back() = {axes.back().extent * extent, axis.stride_bytes};
    } else {
      axes.push_back(axis);
    }
  }
  return axes;
}

}  // namespace

StridedBuffer::StridedBuffer(const Buffer& buffer)
    : hull_(buffer && buffer.dtype() != DType::void_ ? buffer.byte_view(0, buffer.size_bytes())
                                                     : Buffer()),
      shape_(buffer.shape()),
      strides_(dense_strides(buffer.shape())),
      count_(buffer.size()),
      dtype_(buffer.dtype()) {}

Result<StridedSpan> try_strided_span(const Shape& shape, std::span<const std::int64_t> strides,
                                     DType dtype, CallSite site) noexcept {
  if (strides.size() != shape.rank()) {
    return Failure(ErrorCode::shape_mismatch,
                   "{actual} strides were given for {expected} dimensions. Pass one stride per "
                   "dimension.",
                   site)
        .with("expected", shape.rank())
        .with("actual", strides.size());
  }
  if (shape.is_empty()) return StridedSpan{};
  const std::size_t width = size_bytes(dtype);
  StridedSpan all;
  for (std::size_t i = 0; i < shape.rank(); ++i) {
    const std::size_t extent = shape.extents()[i];
    if (extent < 2) continue;
    // Works for the smallest integer, too, whose magnitude does not fit a signed type.
    const std::size_t magnitude = strides[i] < 0 ? ~static_cast<std::size_t>(strides[i]) + 1
                                                 : static_cast<std::size_t>(strides[i]);
    const std::optional<std::size_t> elements = checked_multiply(extent - 1, magnitude);
    const std::optional<std::size_t> bytes =
        elements ? checked_multiply(*elements, width) : std::nullopt;
    std::size_t& side = strides[i] < 0 ? all.before : all.behind;
    const std::optional<std::size_t> sum = bytes ? checked_add(side, *bytes) : std::nullopt;
    if (!sum) return overflow(site);
    side = *sum;
  }
  const std::optional<std::size_t> last = checked_add(all.behind, width);
  if (!last || !checked_add(*last, all.before)) return overflow(site);
  all.behind = *last;
  return all;
}

Result<StridedBuffer> StridedBuffer::try_over(const Buffer& buffer, std::size_t offset_bytes,
                                              DType dtype, Shape shape,
                                              std::span<const std::int64_t> strides,
                                              CallSite site) noexcept try {
  return try_over(Buffer(buffer), offset_bytes, dtype, std::move(shape), strides, site);
} catch (const std::bad_alloc&) {
  return no_host_memory("a strided buffer", site);
}

Result<StridedBuffer> StridedBuffer::try_over(Buffer&& buffer, std::size_t offset_bytes,
                                              DType dtype, Shape shape,
                                              std::span<const std::int64_t> strides,
                                              CallSite site) noexcept try {
  const std::size_t width = size_bytes(dtype);
  if (width == 0) {
    return Failure(ErrorCode::invalid_argument,
                   "elements of type {value} have no size and cannot form a strided buffer. Use "
                   "another type.",
                   site)
        .with("name", "dtype")
        .with("value", name(dtype));
  }
  const Result<StridedSpan> reach = try_strided_span(shape, strides, dtype, site);
  if (!reach) return reach.failure();
  const Result<std::size_t> count = shape.try_element_count();
  if (!count) return Failure(count.failure()).at(site);
  Shape bits(std::span(reinterpret_cast<const std::size_t*>(strides.data()), strides.size()));
  if (*count == 0) {
    const std::size_t first = std::min(offset_bytes, buffer.size_bytes());
    Result<Buffer> none = std::move(buffer).try_byte_view(first, 0, site);
    if (!none) return none.failure();
    return StridedBuffer(*std::move(none), 0, std::move(shape), std::move(bits), 0, dtype, true);
  }
  if (offset_bytes < reach->before ||
      !is_within(offset_bytes, reach->behind, buffer.size_bytes())) {
    return Failure(ErrorCode::invalid_view,
                   "elements at byte {offset} need {before} bytes before it and {size} bytes after "
                   "it, which exceeds their buffer of {extent} bytes.",
                   site)
        .with("offset", offset_bytes)
        .with("before", reach->before)
        .with("size", reach->behind)
        .with("extent", buffer.size_bytes());
  }
  if ((buffer.offset_bytes() + offset_bytes) % alignment_bytes(dtype) != 0) {
    return Failure(ErrorCode::misaligned,
                   "elements with an alignment of {required} bytes cannot be placed at byte "
                   "{address} of a storage. Copy the bytes to an aligned address.",
                   site)
        .with("address", buffer.offset_bytes() + offset_bytes)
        .with("required", alignment_bytes(dtype));
  }
  // Cannot overflow: both parts are inside the buffer.
  Result<Buffer> hull = std::move(buffer).try_byte_view(offset_bytes - reach->before,
                                                        reach->before + reach->behind, site);
  if (!hull) return hull.failure();
  const bool is_dense = are_dense(shape, strides);
  return StridedBuffer(*std::move(hull), reach->before, std::move(shape), std::move(bits), *count,
                       dtype, is_dense);
} catch (const std::bad_alloc&) {
  return no_host_memory("a strided buffer", site);
}

Result<Buffer> StridedBuffer::try_buffer(CallSite site) const noexcept {
  if (!hull_) return Buffer();
  if (!is_contiguous_) {
    return Failure(ErrorCode::unsupported,
                   "{what} of {count} elements of buffer {id} are not contiguous. Call "
                   "contiguous(stream) for a contiguous copy.",
                   site)
        .with("what", "the strides")
        .with("count", count_)
        .with("id", hull_.id().value);
  }
  const Result<Buffer> typed = hull_.try_as(dtype_, site);
  if (!typed) return typed.failure();
  try {
    return typed->try_reshape(shape_, site);
  } catch (const std::bad_alloc&) {
    return no_host_memory("a strided buffer", site);
  }
}

Result<Buffer> StridedBuffer::try_contiguous(StreamRef stream, CallSite site) const noexcept try {
  if (is_contiguous_ || !hull_) return try_buffer(site);
  const Storage& storage = *hull_.storage();
  const std::size_t width = size_bytes(dtype_);
  const Result<Buffer> made = Buffer::try_make(
      storage.device(), shape_, dtype_,
      {.resource = storage.resource(), .stream = stream, .tag = storage.tag(), .site = site});
  if (!made) return made.failure();
  const Buffer bytes = made->byte_view(0, made->size_bytes());

  // One pitched copy handles the innermost contiguous run and one more dimension as rows. The loop
  // below iterates over the remaining dimensions.
  std::vector<Axis> axes = axes_of(shape_, strides(), width);
  std::size_t run = width;
  if (axes.back().stride_bytes == static_cast<std::int64_t>(width)) {
    run *= axes.back().extent;
    axes.pop_back();
  }
  std::size_t rows = 1, row_bytes = run;
  if (!axes.empty() && axes.back().stride_bytes >= 0 &&
      static_cast<std::size_t>(axes.back().stride_bytes) >= run) {
    rows = axes.back().extent;
    row_bytes = static_cast<std::size_t>(axes.back().stride_bytes);
    axes.pop_back();
  }
  std::vector<std::size_t> index(axes.size(), 0);
  std::size_t to = 0;
  for (;;) {
    std::size_t from = origin_;
    for (std::size_t i = 0; i < axes.size(); ++i) {
      // May wrap in between; the final value is inside the hull.
      from += index[i] * static_cast<std::size_t>(axes[i].stride_bytes);
    }
    const Result<Mark> copied =
        try_copy_pitched(bytes, {.offset_bytes = to, .row_bytes = run}, hull_,
                         {.offset_bytes = from, .row_bytes = row_bytes},
                         {.width_bytes = run, .height = rows}, stream, site);
    if (!copied) return copied.failure();
    to += run * rows;
    std::size_t axis = axes.size();
    while (axis > 0 && ++index[axis - 1] == axes[axis - 1].extent) index[--axis] = 0;
    if (axis == 0) return *made;
  }
} catch (const std::bad_alloc&) {
  return no_host_memory("a strided buffer", site);
}

}  // namespace tern
