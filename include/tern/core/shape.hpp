// A Shape holds the extent of a buffer in each dimension.
//
//   const Shape shape{2, 3};
//   shape.element_count();          // 6
//   shape.byte_count(DType::f32);   // 24
//
// A shape of rank 0 has one element. A shape with an extent of 0 is empty. Extents are unsigned;
// try_from() rejects negative extents from files and foreign structures. element_count() and
// byte_count() detect overflow. Strides are those of a dense row-major array, counted in elements.
//
// Shapes up to rank 4 (inline_rank) need no heap memory. Larger shapes, up to max_rank, use the
// heap. A regular value type. Thread-compatible.

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
#include "tern/core/result.hpp"
#include "tern/detail/core/visibility.hpp"

namespace tern {

class TERN_EXPORT Shape {
 public:
  static constexpr std::size_t inline_rank = 4;
  static constexpr std::size_t max_rank = 64;

  /// A shape of rank 0, which has one element.
  Shape() noexcept = default;
  /// Creates a shape with these extents. Throws InvalidArgument above max_rank, and OutOfMemory if
  /// a rank above inline_rank finds no host memory. The constructors do not check whether the
  /// product of the extents fits: a shape is only a description, and element_count() checks the
  /// size.
  Shape(std::initializer_list<std::size_t> extents);
  explicit Shape(std::span<const std::size_t> extents) {
    if (extents.size() > inline_rank) {
      copy_heap(extents);
      return;
    }
    rank_ = extents.size();
    // Not a loop, which would become a call of memcpy().
    static_assert(inline_rank == 4);
    if (rank_ > 0) inline_[0] = extents[0];
    if (rank_ > 1) inline_[1] = extents[1];
    if (rank_ > 2) inline_[2] = extents[2];
    if (rank_ > 3) inline_[3] = extents[3];
  }

  /// Returns a shape with one dimension.
  [[nodiscard]] static Shape flat(std::size_t extent) noexcept {
    Shape shape;
    shape.inline_[0] = extent;
    shape.rank_ = 1;
    return shape;
  }

  /// Creates a shape from signed extents of a file or a foreign structure. Fails with
  /// invalid_argument for a negative extent, naming its dimension, and for more than max_rank
  /// extents. Fails with out_of_memory above inline_rank if there is no host memory.
  [[nodiscard]] static Result<Shape> try_from(std::span<const std::int64_t> extents) noexcept;

  // Copying throws OutOfMemory above inline_rank if there is no host memory. The code is in the
  // header because views and handles copy shapes often. A shape that was moved from has rank 0.
  Shape(const Shape& other) : rank_(other.rank_) {
    if (other.heap_) {
      copy_heap(other.extents());
    } else {
      copy_inline(other);
    }
  }
  Shape(Shape&& other) noexcept
      : heap_(std::move(other.heap_)), rank_(std::exchange(other.rank_, 0)) {
    copy_inline(other);
  }
  Shape& operator=(const Shape& other);
  Shape& operator=(Shape&& other) noexcept {
    copy_inline(other);
    heap_ = std::move(other.heap_);
    rank_ = std::exchange(other.rank_, 0);
    return *this;
  }
  ~Shape() = default;

  /// The number of dimensions, at most max_rank; and their extents, the slowest first: extents().
  [[nodiscard]] std::size_t rank() const noexcept { return rank_; }
  [[nodiscard]] std::span<const std::size_t> extents() const noexcept { return {data(), rank_}; }
  /// Returns the extent of a dimension, counted from 0. Throws InvalidArgument if the shape does
  /// not have the dimension.
  [[nodiscard]] std::size_t extent(std::size_t dimension) const;

  /// Returns the number of elements: 0 if any extent is 0, else the product of all extents. Fails
  /// with size_overflow if the product does not fit in 64 bits.
  [[nodiscard]] Result<std::size_t> try_element_count() const noexcept;
  [[nodiscard]] std::size_t element_count(CallSite site = CallSite::here()) const {
    return try_element_count().value(site);
  }
  /// Returns the number of elements times the size of `dtype`. Fails with size_overflow if the
  /// product does not fit in 64 bits.
  [[nodiscard]] Result<std::size_t> try_byte_count(DType dtype) const noexcept;
  [[nodiscard]] std::size_t byte_count(DType dtype, CallSite site = CallSite::here()) const {
    return try_byte_count(dtype).value(site);
  }
  /// Returns true if any extent is 0.
  [[nodiscard]] bool is_empty() const noexcept;

  /// Returns, for each dimension, the distance in elements between neighbours in that dimension, as
  /// a shape of the same rank. For strides, an extent of 0 counts as 1, so an empty shape has
  /// strides too. Fails with size_overflow, and with out_of_memory above inline_rank if there is no
  /// host memory.
  [[nodiscard]] Result<Shape> try_strides() const noexcept;

  /// Returns the extents as text: "{}", "{3}", "{2, 0, 4}".
  [[nodiscard]] std::string text() const;

  friend TERN_EXPORT bool operator==(const Shape& a, const Shape& b) noexcept;

 private:
  static Result<Shape> try_make(std::size_t rank) noexcept;
  void copy_inline(const Shape& other) noexcept {
    for (std::size_t i = 0; i < inline_rank; ++i) inline_[i] = other.inline_[i];
  }
  void copy_heap(std::span<const std::size_t> extents);
  [[nodiscard]] const std::size_t* data() const noexcept { return heap_ ? heap_.get() : inline_; }
  [[nodiscard]] std::size_t* data() noexcept { return heap_ ? heap_.get() : inline_; }

  std::size_t inline_[inline_rank] = {};
  std::unique_ptr<std::size_t[]> heap_;
  std::size_t rank_ = 0;
};

}  // namespace tern
