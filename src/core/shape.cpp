#include "tern/core/shape.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

#include "core/no_host_memory.hpp"
#include "tern/core/bytes.hpp"

namespace tern {
namespace {

Failure rank_too_high(std::size_t rank) noexcept {
  return Failure(
             ErrorCode::invalid_argument,
             "a shape has at most {max} dimensions, and {value} were given. Combine some of them.")
      .with("name", "rank")
      .with("value", rank)
      .with("max", Shape::max_rank);
}

Failure does_not_fit(const char* what) noexcept {
  return Failure(ErrorCode::size_overflow,
                 "the {what} of a shape overflows 64 bits. Use smaller extents.")
      .with("what", what);
}

}  // namespace

Result<Shape> Shape::try_make(std::size_t rank) noexcept {
  if (rank > max_rank) return rank_too_high(rank);
  Shape shape;
  if (rank > inline_rank) {
    shape.heap_.reset(new (std::nothrow) std::size_t[rank]);
    if (!shape.heap_) return no_host_memory(rank * sizeof(std::size_t), "a shape");
  }
  shape.rank_ = rank;
  return shape;
}

Shape::Shape(std::initializer_list<std::size_t> extents)
    : Shape(std::span<const std::size_t>(extents.begin(), extents.size())) {}

Result<Shape> Shape::try_from(std::span<const std::int64_t> extents) noexcept {
  Shape shape;
  if (extents.size() <= inline_rank) {
    shape.rank_ = extents.size();
  } else {
    Result<Shape> made = try_make(extents.size());
    if (!made) return made;
    shape = *std::move(made);
  }
  for (std::size_t i = 0; i < extents.size(); ++i) {
    const std::optional<std::size_t> extent = checked_size(extents[i]);
    if (!extent) {
      return Failure(ErrorCode::invalid_argument,
                     "extent {value} of dimension {dimension} is negative. Extents count elements.")
          .with("name", "extent")
          .with_signed("value", extents[i])
          .with("dimension", i);
    }
    shape.data()[i] = *extent;
  }
  return shape;
}

void Shape::copy_heap(std::span<const std::size_t> extents) {
  *this = try_make(extents.size()).value();
  std::copy(extents.begin(), extents.end(), data());
}

Shape& Shape::operator=(const Shape& other) { return *this = Shape(other); }

std::size_t Shape::extent(std::size_t dimension) const {
  if (dimension < rank_) return data()[dimension];
  raise(Failure(ErrorCode::invalid_argument,
                "a shape of rank {rank} has no dimension {value}. Dimensions count from 0.")
            .with("name", "dimension")
            .with("value", dimension)
            .with("rank", rank_));
}

bool Shape::is_empty() const noexcept {
  return std::ranges::find(extents(), std::size_t{0}) != extents().end();
}

Result<std::size_t> Shape::try_element_count() const noexcept {
  std::size_t count = 1;
  bool is_too_large = false;
  for (const std::size_t extent : extents()) {
    // {2^40, 2^40, 0} has no elements and no overflow.
    if (extent == 0) return std::size_t{0};
    is_too_large |= __builtin_mul_overflow(count, extent, &count);
  }
  if (is_too_large) return does_not_fit("element count");
  return count;
}

Result<std::size_t> Shape::try_byte_count(DType dtype) const noexcept {
  const Result<std::size_t> count = try_element_count();
  if (!count) return count;
  const std::optional<std::size_t> bytes = checked_multiply(*count, size_bytes(dtype));
  if (!bytes) return does_not_fit("byte count");
  return *bytes;
}

Result<Shape> Shape::try_strides() const noexcept {
  Result<Shape> strides = try_make(rank_);
  if (!strides) return strides;
  std::size_t stride = 1;
  for (std::size_t i = rank_; i > 0; --i) {
    strides->data()[i - 1] = stride;
    // An extent of 0 counts as 1, so that the strides of the other dimensions stay meaningful.
    const std::size_t extent = std::max<std::size_t>(data()[i - 1], 1);
    const std::optional<std::size_t> next = checked_multiply(stride, extent);
    if (!next && i > 1) return does_not_fit("stride");
    stride = next.value_or(0);
  }
  return strides;
}

std::string Shape::text() const { return fmt::format("{{{}}}", fmt::join(extents(), ", ")); }

bool operator==(const Shape& a, const Shape& b) noexcept {
  return std::ranges::equal(a.extents(), b.extents());
}

}  // namespace tern
