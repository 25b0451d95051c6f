#include "tern/detail/core/any_function.hpp"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <utility>

namespace tern {
namespace {

int doubled(int x) { return 2 * x; }

TEST(AnyFunction, IsEmptyUntilItGetsAFunction) {
  AnyFunction<int(int)> function;
  EXPECT_FALSE(function);
  EXPECT_TRUE(function == nullptr);
  function = doubled;
  ASSERT_TRUE(function);
  EXPECT_EQ(function(4), 8);
  function = nullptr;
  EXPECT_FALSE(function);
}

TEST(AnyFunction, ConvertsFromAndToStdFunction) {
  const std::function<int(int)> standard = [](int x) { return x + 1; };
  const AnyFunction<int(int)> function = standard;
  EXPECT_EQ(function(1), 2);
  const std::function<int(int)> back = function;
  EXPECT_EQ(back(1), 2);
  EXPECT_FALSE(AnyFunction<int(int)>(std::function<int(int)>()));
  EXPECT_FALSE(AnyFunction<int(int)>(static_cast<int (*)(int)>(nullptr)));
}

TEST(AnyFunction, CopiesAndDestroysWhatItHolds) {
  const auto shared = std::make_shared<int>(7);
  {
    AnyFunction<int()> one = [shared, padding = std::array<int, 8>()] {
      return *shared + padding[0];
    };
    EXPECT_EQ(shared.use_count(), 2);
    AnyFunction<int()> two = one;
    EXPECT_EQ(shared.use_count(), 3);
    EXPECT_EQ(two(), 7);
    AnyFunction<int()> three = std::move(one);
    EXPECT_EQ(shared.use_count(), 3);
    two = AnyFunction<int()>(three);
    EXPECT_EQ(shared.use_count(), 3);
    three = nullptr;
    EXPECT_EQ(shared.use_count(), 2);
    EXPECT_EQ(two(), 7);
  }
  EXPECT_EQ(shared.use_count(), 1);
}

TEST(AnyFunction, ForgetsTheResultOfAVoidSignature) {
  int calls = 0;
  const AnyFunction<void(const int&)> function = [&calls](const int& x) { return calls += x; };
  function(3);
  EXPECT_EQ(calls, 3);
}

}  // namespace
}  // namespace tern
