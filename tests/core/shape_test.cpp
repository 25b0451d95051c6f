#include "tern/core/shape.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "support/allocation_counter.hpp"

namespace tern {
namespace {

constexpr std::size_t large = std::size_t{1} << 40;

/// 1, 2, 3, ... up to the rank.
Shape counting(std::size_t rank) {
  std::vector<std::size_t> extents;
  for (std::size_t i = 1; i <= rank; ++i) extents.push_back(i);
  return Shape(extents);
}

Result<Shape> from(const std::vector<std::int64_t>& extents) { return Shape::try_from(extents); }

TEST(Shape, IsOneElementAtRankZero) {
  const Shape scalar;
  EXPECT_EQ(scalar.rank(), 0u);
  EXPECT_EQ(scalar.element_count(), 1u);
  EXPECT_EQ(scalar.byte_count(DType::f32), 4u);
  EXPECT_FALSE(scalar.is_empty());
  EXPECT_EQ(scalar.try_strides()->rank(), 0u);
  EXPECT_EQ(scalar, Shape(std::span<const std::size_t>()));
}

TEST(Shape, CountsElementsAndBytes) {
  const Shape shape = {2, 3, 4};
  EXPECT_EQ(shape.rank(), 3u);
  EXPECT_EQ(shape.extent(0), 2u);
  EXPECT_EQ(shape.extent(2), 4u);
  EXPECT_EQ(shape.element_count(), 24u);
  EXPECT_EQ(shape.byte_count(DType::f64), 192u);
  EXPECT_EQ(shape.byte_count(DType::void_), 0u);
}

TEST(Shape, IsEmptyWithAZeroAnywhereAndThenNeverOverflows) {
  for (const Shape& shape : {Shape{0}, Shape{3, 0}, Shape{0, 3}, Shape{large, large, 0},
                             Shape{0, large, large}, Shape{1, 2, 3, 4, 0, 6}}) {
    EXPECT_TRUE(shape.is_empty()) << shape.text();
    EXPECT_EQ(shape.element_count(), 0u) << shape.text();
    EXPECT_EQ(shape.byte_count(DType::complex128), 0u) << shape.text();
  }
}

TEST(Shape, RefusesACountThatDoesNotFit) {
  const Shape elements = {std::size_t{1} << 62, 8};
  EXPECT_EQ(elements.try_element_count().failure().code(), ErrorCode::size_overflow);
  EXPECT_EQ(elements.try_byte_count(DType::f32).failure().code(), ErrorCode::size_overflow);
  EXPECT_THROW(static_cast<void>(elements.byte_count(DType::f32)), SizeOverflow);
  EXPECT_EQ(elements.try_element_count().failure().text(),
            "the element count of a shape overflows 64 bits. Use smaller extents.");

  const Shape bytes = {std::size_t{1} << 62};
  EXPECT_EQ(bytes.element_count(), std::size_t{1} << 62);
  EXPECT_EQ(bytes.byte_count(DType::f16), std::size_t{1} << 63);
  EXPECT_EQ(bytes.try_byte_count(DType::f32).failure().string("what"), "byte count");
  EXPECT_EQ(bytes.byte_count(DType::void_), 0u);
}

TEST(Shape, CountsUpToTheLargestSize) {
  const std::size_t largest = std::numeric_limits<std::size_t>::max();
  EXPECT_EQ(Shape{largest}.element_count(), largest);
  EXPECT_EQ((Shape{largest / 3, 3}.element_count()), largest);  // 2^64 - 1 is a multiple of 3
  EXPECT_FALSE((Shape{largest / 3 + 1, 3}.try_element_count()));
}

TEST(Shape, LiesInsideTheObjectUpToRankFour) {
  const test::AllocationCounter counter;
  const Shape shape = {1, 2, 3, 4};
  Shape copy = shape;
  const Shape moved = std::move(copy);
  const Result<Shape> strides = moved.try_strides();
  EXPECT_EQ(counter.count(), 0u);
  EXPECT_EQ(moved, shape);
  EXPECT_TRUE(strides);
}

TEST(Shape, HoldsEveryRankUpToTheLargest) {
  for (std::size_t rank = 0; rank <= Shape::max_rank; ++rank) {
    const Shape shape = counting(rank);
    ASSERT_EQ(shape.rank(), rank);
    for (std::size_t i = 0; i < rank; ++i) ASSERT_EQ(shape.extent(i), i + 1);
  }
}

TEST(Shape, RefusesARankAboveTheLargest) {
  const std::vector<std::size_t> extents(65, 1);
  EXPECT_THROW(Shape{extents}, InvalidArgument);
  const Result<Shape> shape = from(std::vector<std::int64_t>(65, 1));
  ASSERT_FALSE(shape);
  EXPECT_EQ(shape.failure().text(),
            "a shape has at most 64 dimensions, and 65 were given. Combine some of them.");
  EXPECT_EQ(shape.failure().number("value"), 65u);
  EXPECT_EQ(shape.failure().number("max"), 64u);
}

TEST(Shape, IsMadeOfSignedExtents) {
  EXPECT_EQ(*from({}), Shape());
  EXPECT_EQ(*from({2, 0, 4}), (Shape{2, 0, 4}));
  EXPECT_EQ(*from({1, 2, 3, 4, 5}), counting(5));
  EXPECT_EQ(from({std::numeric_limits<std::int64_t>::max()})->extent(0), ~std::size_t{0} / 2);
}

TEST(Shape, RefusesANegativeExtentAndNamesItsDimension) {
  const Result<Shape> shape = from({2, -3, 4});
  ASSERT_FALSE(shape);
  EXPECT_EQ(shape.failure().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(shape.failure().text(),
            "extent -3 of dimension 1 is negative. Extents count elements.");
  EXPECT_EQ(shape.failure().number("dimension"), 1u);
  EXPECT_EQ(shape.failure().number("value"), static_cast<std::uint64_t>(-3));
  EXPECT_FALSE(from({1, 1, 1, 1, std::numeric_limits<std::int64_t>::min()}));
  EXPECT_FALSE(from({0, -1})) << "an empty shape has no negative extent either";
}

TEST(Shape, RefusesADimensionItDoesNotHave) {
  EXPECT_THROW(static_cast<void>(Shape().extent(0)), InvalidArgument);
  try {
    static_cast<void>(Shape{2, 3}.extent(2));
    FAIL() << "there is no dimension 2";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "a shape of rank 2 has no dimension 2. Dimensions count from 0.");
  }
}

TEST(Shape, CopiesToAndFromEveryKindOfRank) {
  for (const std::size_t from_rank : {0u, 1u, 4u, 5u, 64u}) {
    for (const std::size_t to_rank : {0u, 1u, 4u, 5u, 64u}) {
      const Shape source = counting(from_rank);
      Shape copied = counting(to_rank);
      copied = source;
      EXPECT_EQ(copied, source);
      EXPECT_EQ(source, counting(from_rank)) << "the source stays";

      Shape moved = counting(to_rank);
      moved = std::move(copied);
      EXPECT_EQ(moved, source);
      const Shape constructed = std::move(moved);
      EXPECT_EQ(constructed, source);
    }
  }
}

TEST(Shape, IsRankZeroWhenItWasMovedFromAndCanBeUsedAgain) {
  for (const std::size_t rank : {3u, 7u}) {
    Shape source = counting(rank);
    const Shape taken = std::move(source);
    EXPECT_EQ(source, Shape());
    Shape target;
    source = counting(rank);
    target = std::move(source);
    EXPECT_EQ(source, Shape());
    source = Shape{9};
    EXPECT_EQ(source.extent(0), 9u);
    EXPECT_EQ(target, taken);
  }
}

TEST(Shape, SurvivesBeingAssignedToItself) {
  for (const std::size_t rank : {3u, 7u}) {
    Shape shape = counting(rank);
    Shape& same = shape;
    shape = same;
    EXPECT_EQ(shape, counting(rank));
    shape = std::move(same);
    EXPECT_EQ(shape, counting(rank));
  }
}

TEST(Shape, ComparesRankAndExtents) {
  EXPECT_EQ((Shape{2, 3}), (Shape{2, 3}));
  EXPECT_NE((Shape{2, 3}), (Shape{3, 2}));
  EXPECT_NE((Shape{2}), (Shape{2, 1}));
  EXPECT_NE(Shape{0}, Shape());
  EXPECT_NE(counting(5), counting(6));
}

TEST(Shape, HasTheStridesOfADenseRowMajorArray) {
  EXPECT_EQ(*(Shape{5}.try_strides()), (Shape{1}));
  EXPECT_EQ(*(Shape{2, 3, 4}.try_strides()), (Shape{12, 4, 1}));
  EXPECT_EQ(*(Shape{1, 2, 3, 4, 5}.try_strides()), (Shape{120, 60, 20, 5, 1}));
}

TEST(Shape, HasStridesWhenItIsEmptyToo) {
  EXPECT_EQ(*(Shape{2, 0, 4}.try_strides()), (Shape{4, 4, 1}));
  EXPECT_EQ(*(Shape{large, large, 0}.try_strides()), (Shape{large, 1, 1}));
}

TEST(Shape, RefusesAStrideThatDoesNotFitAndOnlyThat) {
  const Result<Shape> refused = Shape{2, large, large}.try_strides();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::size_overflow);
  EXPECT_EQ(refused.failure().string("what"), "stride");
  // The outermost extent is in no stride, so that it may be as large as it likes.
  EXPECT_EQ(*(Shape{large, large}.try_strides()), (Shape{large, 1}));
}

TEST(Shape, PrintsItsExtentsInBraces) {
  EXPECT_EQ(Shape().text(), "{}");
  EXPECT_EQ(Shape{3}.text(), "{3}");
  EXPECT_EQ((Shape{2, 0, 4}.text()), "{2, 0, 4}");
  EXPECT_EQ(counting(6).text(), "{1, 2, 3, 4, 5, 6}");
}

TEST(Shape, RefusesAHighRankWhenTheHeapIsExhaustedAndChangesNothing) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP();
  const Shape high = counting(5);
  const std::vector<std::int64_t> extents(5, 1);
  Shape target = {1, 2};
  bool thrown = false;
  const auto [made, strides] = [&] {
    const test::HeapExhausted nothing_left;
    try {
      target = high;
    } catch (const OutOfMemory&) {
      thrown = true;
    }
    return std::pair(Shape::try_from(extents), high.try_strides());
  }();
  EXPECT_TRUE(thrown);
  EXPECT_EQ(target, (Shape{1, 2}));
  EXPECT_EQ(made.failure().code(), ErrorCode::out_of_memory);
  EXPECT_EQ(made.failure().number("requested"), 5 * sizeof(std::size_t));
  EXPECT_EQ(strides.failure().code(), ErrorCode::out_of_memory);
}

}  // namespace
}  // namespace tern
