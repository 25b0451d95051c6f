// A Shape is the extent of a buffer in each dimension.
//
// Rank 0 is one element; a dimension of 0 makes it empty. Up to rank 4 it lies inside the object
// and never touches the heap, up to max_rank on it. Extents are unsigned: a negative or overflowing
// one is refused where it enters (try_from). element_count() and byte_count() are checked; strides
// are those of a dense row-major array, in elements. A regular value type: thread-compatible.

#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "tern/core/call_site.hpp"
#include "tern/core/dtype.hpp"
#include "tern/core/export.hpp"
#include "tern/core/result.hpp"

namespace tern {

class TERN_EXPORT Shape {
 public:
  static constexpr std::size_t inline_rank = 4;
  static constexpr std::size_t max_rank = 64;

  /// Rank 0: one element.
  Shape() noexcept = default;
  /// Throws InvalidArgument above max_rank. The product of the extents is not checked here: a shape
  /// is only a description, and element_count() is where a size comes from.
  Shape(std::initializer_list<std::size_t> extents);
  explicit Shape(std::span<const std::size_t> extents);

  /// One dimension.
  [[nodiscard]] static Shape flat(std::size_t extent) noexcept {
    Shape shape;
    shape.inline_[0] = extent;
    shape.rank_ = 1;
    return shape;
  }

  /// From signed extents of a file or a foreign structure. Refused with invalid_argument, naming
  /// the dimension: a negative extent, more than max_rank of them.
  [[nodiscard]] static Result<Shape> try_from(std::span<const std::int64_t> extents) noexcept;

  // In the header, because views and handles copy shapes all the time. Throws OutOfMemory above
  // inline_rank.
  Shape(const Shape& other) : rank_(other.rank_) {
    if (other.heap_) {
      copy_heap(other);
    } else {
      copy_inline(other);
    }
  }
  Shape(Shape&& other) noexcept
      : heap_(std::move(other.heap_)), rank_(std::exchange(other.rank_, 0)) {
    copy_inline(other);
  }
  Shape& operator=(const Shape& other);
  Shape& operator=(Shape&& other) noexcept;
  ~Shape() = default;

  [[nodiscard]] std::size_t rank() const noexcept { return rank_; }
  [[nodiscard]] std::span<const std::size_t> extents() const noexcept { return {data(), rank_}; }
  /// Extent of a dimension; throws InvalidArgument for one the shape does not have.
  [[nodiscard]] std::size_t extent(std::size_t dimension) const;

  /// A zero extent makes the count zero whatever the others are. Refused with size_overflow.
  [[nodiscard]] Result<std::size_t> try_element_count() const noexcept;
  [[nodiscard]] std::size_t element_count(CallSite site = CallSite::here()) const {
    return try_element_count().value(site);
  }
  [[nodiscard]] Result<std::size_t> try_byte_count(DType dtype) const noexcept;
  [[nodiscard]] std::size_t byte_count(DType dtype, CallSite site = CallSite::here()) const {
    return try_byte_count(dtype).value(site);
  }
  [[nodiscard]] bool is_empty() const noexcept;

  /// Elements between neighbours in each dimension, as a shape of the same rank; an empty shape has
  /// strides too. Refused with size_overflow.
  [[nodiscard]] Result<Shape> try_strides() const noexcept;

  /// "{}", "{3}", "{2, 0, 4}".
  [[nodiscard]] std::string text() const;

  friend TERN_EXPORT bool operator==(const Shape& a, const Shape& b) noexcept;

 private:
  static Result<Shape> try_make(std::size_t rank) noexcept;
  void copy_inline(const Shape& other) noexcept {
    for (std::size_t i = 0; i < inline_rank; ++i) inline_[i] = other.inline_[i];
  }
  void copy_heap(const Shape& other);
  [[nodiscard]] const std::size_t* data() const noexcept { return heap_ ? heap_.get() : inline_; }
  [[nodiscard]] std::size_t* data() noexcept { return heap_ ? heap_.get() : inline_; }

  std::size_t inline_[inline_rank] = {};
  std::unique_ptr<std::size_t[]> heap_;
  std::size_t rank_ = 0;
};

}  // namespace tern
