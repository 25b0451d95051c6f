#include "tern/detail/core/inline_vector.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <vector>

#include "support/allocation_counter.hpp"

namespace tern {
namespace {

using Numbers = InlineVector<int, 4>;
using Owners = InlineVector<std::shared_ptr<int>, 2>;

template <class Vector>
void fill(Vector& vector, int count) {
  for (int i = 0; i < count; ++i) {
    ASSERT_TRUE(vector.try_reserve(vector.size() + 1));
    vector.emplace_back(i);
  }
}

void fill(Owners& owners, const std::shared_ptr<int>& shared, int count) {
  for (int i = 0; i < count; ++i) {
    ASSERT_TRUE(owners.try_reserve(owners.size() + 1));
    owners.emplace_back(shared);
  }
}

std::vector<int> elements_of(const Numbers& numbers) { return {numbers.begin(), numbers.end()}; }

TEST(InlineVector, AllocatesOnlyAboveItsInlineCapacity) {
  const test::AllocationCounter counter;
  Numbers numbers;
  fill(numbers, 4);
  EXPECT_EQ(counter.count(), 0u);
  fill(numbers, 1);
  EXPECT_EQ(counter.count(), 1u);
  fill(numbers, 3);
  EXPECT_EQ(counter.count(), 1u) << "the capacity has doubled";
  EXPECT_EQ(elements_of(numbers), (std::vector{0, 1, 2, 3, 0, 0, 1, 2}));
}

TEST(InlineVector, StaysAsItIsIfTheHostHasNoMemory) {
  if (!test::HeapExhausted::is_possible()) GTEST_SKIP() << "the allocator cannot be replaced";
  Numbers numbers;
  fill(numbers, 4);
  {
    const test::HeapExhausted exhausted;
    EXPECT_FALSE(numbers.try_reserve(5));
  }
  EXPECT_EQ(elements_of(numbers), (std::vector{0, 1, 2, 3}));
  EXPECT_TRUE(numbers.try_reserve(5));
}

TEST(InlineVector, RefusesACapacityThatItCannotCount) {
  Numbers numbers;
  EXPECT_FALSE(numbers.try_reserve(std::size_t{1} << 32));
  EXPECT_TRUE(numbers.empty());
}

TEST(InlineVector, DestroysEveryElementOnce) {
  const auto shared = std::make_shared<int>(7);
  for (const int count : {0, 1, 2, 3, 9}) {
    {
      Owners owners;
      fill(owners, shared, count);
      EXPECT_EQ(shared.use_count(), 1 + count);
    }
    EXPECT_EQ(shared.use_count(), 1);
  }
}

TEST(InlineVector, TruncatesFromTheEnd) {
  const auto shared = std::make_shared<int>(7);
  Owners owners;
  fill(owners, shared, 5);
  owners.truncate(1);
  EXPECT_EQ(owners.size(), 1u);
  EXPECT_EQ(shared.use_count(), 2);
  owners.truncate(0);
  EXPECT_TRUE(owners.empty());
  EXPECT_EQ(shared.use_count(), 1);
}

TEST(InlineVector, MovesItsElementsAndIsEmptyAfterwards) {
  const auto shared = std::make_shared<int>(7);
  for (const int count : {0, 2, 5}) {
    Owners from;
    fill(from, shared, count);
    Owners to;
    fill(to, shared, 3);
    to = std::move(from);
    EXPECT_EQ(to.size(), static_cast<std::size_t>(count));
    EXPECT_EQ(shared.use_count(), 1 + count);
    EXPECT_TRUE(from.empty());
    // The moved-from vector has its inline capacity again.
    fill(from, shared, 3);
    EXPECT_EQ(shared.use_count(), 4 + count);
    const Owners made(std::move(to));
    EXPECT_EQ(made.size(), static_cast<std::size_t>(count));
  }
  EXPECT_EQ(shared.use_count(), 1);
}

TEST(InlineVector, IsASpan) {
  Numbers numbers;
  fill(numbers, 6);
  const std::span<const int> all = numbers;
  EXPECT_EQ(all.data(), numbers.data());
  EXPECT_EQ(all.size(), 6u);
  EXPECT_EQ(numbers[5], 5);
}

TEST(InlineStorage, HasNoMembersBesidesItsElementsAndAPointer) {
  EXPECT_EQ(sizeof(InlineStorage<std::uint64_t, 3>), 4 * sizeof(std::uint64_t));
  EXPECT_EQ(sizeof(InlineVector<std::uint64_t, 3>), 5 * sizeof(std::uint64_t));
}

}  // namespace
}  // namespace tern
