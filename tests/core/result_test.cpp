#include "tern/core/result.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "support/allocation_counter.hpp"

namespace tern {
namespace {

const Failure full = Failure(ErrorCode::capacity).with("max", 4);

/// Counts the living, so that one destroyed twice or never shows.
struct Counted {
  static inline int living = 0;
  explicit Counted(int number) : value(number) { ++living; }
  Counted(const Counted& other) : value(other.value) { ++living; }
  Counted(Counted&& other) noexcept : value(std::exchange(other.value, -1)) { ++living; }
  Counted& operator=(const Counted&) = delete;
  ~Counted() { --living; }
  int value;
};

struct CopyThrows {
  CopyThrows() = default;
  CopyThrows(const CopyThrows&) { throw std::runtime_error("copied"); }
  CopyThrows(CopyThrows&&) noexcept = default;
  CopyThrows& operator=(const CopyThrows&) = delete;
  int value = 1;
};

TEST(Result, IsItsValueOnSuccess) {
  Result<std::string> result = std::string("bytes");
  ASSERT_TRUE(result);
  EXPECT_EQ(*result, "bytes");
  EXPECT_EQ(result.value(), "bytes");
  EXPECT_EQ(result->size(), 5u);
  result->push_back('!');
  *result += '!';
  result.value() += '!';
  const Result<std::string>& constant = result;
  EXPECT_EQ(*constant, "bytes!!!");
  EXPECT_EQ(constant.value(), "bytes!!!");
  EXPECT_EQ(constant->size(), 8u);
}

TEST(Result, IsAFailureThatThrowsWhereverItsValueIsAskedFor) {
  Result<std::string> result = full;
  const Result<std::string>& constant = result;
  ASSERT_FALSE(result);
  EXPECT_EQ(result.failure().code(), ErrorCode::capacity);
  EXPECT_EQ(result.failure().number("max"), 4u);
  EXPECT_THROW(static_cast<void>(result.value()), CapacityReached);
  EXPECT_THROW(static_cast<void>(constant.value()), CapacityReached);
  EXPECT_THROW(static_cast<void>(*result), CapacityReached);
  EXPECT_THROW(static_cast<void>(*constant), CapacityReached);
  EXPECT_THROW(static_cast<void>(result->size()), CapacityReached);
  EXPECT_THROW(static_cast<void>(constant->size()), CapacityReached);
  EXPECT_THROW(static_cast<void>(std::move(result).value()), CapacityReached);
  EXPECT_THROW(static_cast<void>(*std::move(result)), CapacityReached);
}

TEST(Result, HasNoFailureOnSuccess) {
  EXPECT_THROW(static_cast<void>(Result<int>(1).failure()), InvalidArgument);
  EXPECT_THROW(static_cast<void>(Result<void>().failure()), InvalidArgument);
}

TEST(Result, IsNoBooleanOrNumberByAccident) {
  static_assert(!std::is_convertible_v<Result<int>, bool>);
  static_assert(!std::is_convertible_v<Result<int>, int>);
  static_assert(!std::is_convertible_v<Result<void>, bool>);
}

TEST(Result, HoldsAValueThatCanOnlyBeMoved) {
  static_assert(!std::is_copy_constructible_v<Result<std::unique_ptr<int>>>);
  static_assert(std::is_nothrow_move_constructible_v<Result<std::unique_ptr<int>>>);
  Result<std::unique_ptr<int>> result = std::make_unique<int>(7);
  Result<std::unique_ptr<int>> moved = std::move(result);
  EXPECT_EQ(**moved, 7);
  moved = Result<std::unique_ptr<int>>(std::make_unique<int>(8));
  const std::unique_ptr<int> taken = *std::move(moved);
  EXPECT_EQ(*taken, 8);
  const std::unique_ptr<int> again = Result<std::unique_ptr<int>>(std::make_unique<int>(9)).value();
  EXPECT_EQ(*again, 9);
}

TEST(Result, MovesTheValueOutOfATemporary) {
  Result<Counted> result = Counted(1);
  EXPECT_EQ((*std::move(result)).value, 1);
  EXPECT_EQ(result->value, -1);
  Result<Counted> other = Counted(2);
  EXPECT_EQ(std::move(other).value().value, 2);
  EXPECT_EQ(other->value, -1);
}

TEST(Result, CopiesAndMovesWhicheverItHolds) {
  const Result<std::string> value = std::string(100, 'a');
  const Result<std::string> failed = full;
  Result<std::string> value_copy = value;
  Result<std::string> failed_copy = failed;
  EXPECT_EQ(*value_copy, *value);
  EXPECT_EQ(failed_copy.failure().number("max"), 4u);
  const Result<std::string> value_moved = std::move(value_copy);
  const Result<std::string> failed_moved = std::move(failed_copy);
  EXPECT_EQ(*value_moved, *value);
  EXPECT_EQ(failed_moved.failure().number("max"), 4u);
}

TEST(Result, IsAssignedFromEitherStateToEither) {
  Counted::living = 0;
  {
    for (const bool from_value : {false, true}) {
      for (const bool to_value : {false, true}) {
        const Result<Counted> source = from_value ? Result<Counted>(Counted(1)) : full;
        Result<Counted> target = to_value ? Result<Counted>(Counted(2)) : full;
        target = source;
        ASSERT_EQ(static_cast<bool>(target), from_value);
        if (from_value) {
          EXPECT_EQ(target->value, 1);
        } else {
          EXPECT_EQ(target.failure().number("max"), 4u);
        }
        target = Result<Counted>(Counted(3));
        EXPECT_EQ(target->value, 3);
        target = full;
        EXPECT_FALSE(target);
      }
    }
  }
  EXPECT_EQ(Counted::living, 0);
}

TEST(Result, SurvivesBeingAssignedToItself) {
  Result<std::string> result = std::string(100, 'a');
  Result<std::string>& same = result;
  result = same;
  EXPECT_EQ(*result, std::string(100, 'a'));
}

TEST(Result, KeepsWhatItHasIfACopyToAssignThrows) {
  const Result<CopyThrows> source = CopyThrows();
  Result<CopyThrows> target = full;
  EXPECT_THROW(target = source, std::runtime_error);
  EXPECT_EQ(target.failure().number("max"), 4u);
}

TEST(Result, PromisesNotToThrowWhereItCan) {
  static_assert(std::is_nothrow_move_constructible_v<Result<std::string>>);
  static_assert(std::is_nothrow_assignable_v<Result<int>&, Result<int>>);
  static_assert(std::is_nothrow_copy_constructible_v<Result<int>>);
  static_assert(!std::is_nothrow_copy_constructible_v<Result<std::string>>);
  static_assert(std::is_nothrow_constructible_v<Result<std::string>, const Failure&>);
  static_assert(std::is_nothrow_copy_constructible_v<Result<void>>);
  static_assert(std::is_nothrow_copy_assignable_v<Result<void>>);
}

TEST(Result, TakesNothingFromTheHeap) {
  const test::AllocationCounter counter;
  Result<int> result = 1;
  result = full;
  Result<int> copy = result;
  copy = Result<int>(2);
  Result<void> nothing = full;
  nothing = Result<void>();
  EXPECT_EQ(counter.count(), 0u);
  EXPECT_EQ(*copy, 2);
}

TEST(ResultOfVoid, IsSuccessOrAFailure) {
  const Result<void> done;
  EXPECT_TRUE(done);
  EXPECT_NO_THROW(done.value());
  const Result<void> failed = full;
  EXPECT_FALSE(failed);
  EXPECT_EQ(failed.failure().number("max"), 4u);
  EXPECT_THROW(failed.value(), CapacityReached);
}

TEST(ResultOfVoid, IsAssignedFromEitherStateToEither) {
  Result<void> result;
  result = Result<void>(full);
  EXPECT_EQ(result.failure().number("max"), 4u);
  const Result<void> copy = result;
  EXPECT_EQ(copy.failure().code(), ErrorCode::capacity);
  result = Result<void>();
  EXPECT_TRUE(result);
}

}  // namespace
}  // namespace tern
