// The functions that translations define, run on the host, and the words of all dialects.

#include "language/dialect.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "language/host_kernel.hpp"

namespace tern::language {
namespace {

using test::HostKernel;

TEST(Dialect, CallsMathematicalFunctions) {
  const HostKernel kernel(R"(
    kernel all(in<double> x, out<double> d, out<float> f) {
      const double v = x[0];
      const float w = (float)v;
      d[0] = exp(v); d[1] = exp2(v); d[2] = log(v); d[3] = log2(v); d[4] = sin(v); d[5] = cos(v);
      d[6] = tan(v); d[7] = tanh(v); d[8] = pow(v, 1.5); d[9] = rsqrt(v);
      f[0] = exp(w); f[1] = exp2(w); f[2] = log(w); f[3] = log2(w); f[4] = sin(w); f[5] = cos(w);
      f[6] = tan(w); f[7] = tanh(w); f[8] = pow(w, 1.5f); f[9] = rsqrt(w);
    })");
  std::vector<double> x = {0.7}, d(10, -9);
  std::vector<float> f(10, -9);
  kernel.run({1, 1, 1}, {1, 1, 1}, x, d, f);
  const double v = 0.7;
  const double expected[] = {std::exp(v),      std::exp2(v),    std::log(v), std::log2(v),
                             std::sin(v),      std::cos(v),     std::tan(v), std::tanh(v),
                             std::pow(v, 1.5), 1 / std::sqrt(v)};
  for (std::size_t k = 0; k < 10; ++k) {
    EXPECT_NEAR(d[k], expected[k], 1e-14) << k;
    EXPECT_NEAR(f[k], expected[k], 1e-6) << k;
  }
}

template <class T>
void expect_atomics(const std::string& type) {
  // All threads of a block use one element of memory, and one of the block.
  const std::string use = R"(
      atomic_add(sum, 0, (T)(thread.x + 1));
      atomic_min(least, 0, (T)(100 - thread.x));
      atomic_max(most, 0, (T)(thread.x * 2));
      if (thread.x == 5) old[0] = atomic_exchange(swapped, 0, (T)7);
      if (thread.x == 6) old[1] = atomic_compare_exchange(swapped, 0, (T)8, (T)9);
      if (thread.x == 7) old[2] = atomic_compare_exchange(swapped, 0, (T)7, (T)9);
  )";
  std::string global =
      "kernel all(inout<T> sum, inout<T> least, inout<T> most, inout<T> swapped, "
      "part<T> old) {" +
      use + "}";
  std::string shared =
      "block all(inout<T> sum_, inout<T> least_, inout<T> most_, inout<T> swapped_, part<T> old) {"
      "shared<T, 1> sum; shared<T, 1> least; shared<T, 1> most; shared<T, 1> swapped;"
      "for (auto thread : threads) if (thread.x == 0) { sum[0] = sum_[0]; least[0] = least_[0];"
      "  most[0] = most_[0]; swapped[0] = swapped_[0]; }"
      "for (auto thread : threads) {" +
      use +
      "}"
      "for (auto thread : threads) if (thread.x == 0) { sum_[0] = sum[0]; least_[0] = least[0];"
      "  most_[0] = most[0]; swapped_[0] = swapped[0]; } }";
  for (std::string* text : {&global, &shared}) {
    const auto replace = [&](const std::string& from, const std::string& to) {
      for (std::size_t at = text->find(from); at != text->npos; at = text->find(from)) {
        text->replace(at, from.size(), to);
      }
    };
    replace("<T", "<" + type);
    replace("(T)", "(" + type + ")");
    const HostKernel kernel(*text);
    std::vector<T> sum = {1000}, least = {50}, most = {3}, swapped = {40}, old(3, 99);
    kernel.run({1, 1, 1}, {32, 1, 1}, sum, least, most, swapped, old);
    EXPECT_EQ(sum[0], T(1000 + 32 * 33 / 2)) << *text;
    EXPECT_EQ(least[0], T(50)) << *text;
    EXPECT_EQ(most[0], T(62)) << *text;
    EXPECT_EQ(old, (std::vector<T>{40, 7, 7})) << *text;
    EXPECT_EQ(swapped[0], T(9)) << *text;
  }
}

TEST(Dialect, HasAtomicsThatReturnTheOldValueForEveryType) {
  expect_atomics<std::int32_t>("int");
  expect_atomics<std::uint32_t>("unsigned");
  expect_atomics<std::int64_t>("int64_t");
  expect_atomics<std::uint64_t>("uint64_t");
}

TEST(Dialect, AddsFloatsAtomically) {
  const HostKernel kernel(
      "kernel total(in<float> x, inout<float> sum) { if (index.x < size(x)) atomic_add(sum, 0, "
      "x[index.x]); }");
  std::vector<float> x(1000), sum = {0.5f};
  std::iota(x.begin(), x.end(), 0.0f);
  kernel.run({4, 1, 1}, {256, 1, 1}, x, sum);
  EXPECT_EQ(sum[0], 499500.5f);
}

TEST(Dialect, HasALiteralForEveryInteger) {
  constexpr Dialect cpp = Dialect::cpp, opencl = Dialect::opencl;
  EXPECT_EQ(integer_literal(cpp, Scalar::boolean, 1), "true");
  EXPECT_EQ(integer_literal(cpp, Scalar::i32, 5), "5");
  EXPECT_EQ(integer_literal(cpp, Scalar::i32, 0x80000000), "(-2147483647 - 1)");
  EXPECT_EQ(integer_literal(cpp, Scalar::u32, 0xffffffff), "4294967295u");
  EXPECT_EQ(integer_literal(cpp, Scalar::i64, 7), "7LL");
  EXPECT_EQ(integer_literal(opencl, Scalar::i64, 7), "7L");
  EXPECT_EQ(integer_literal(cpp, Scalar::i64, std::uint64_t{1} << 63),
            "(-9223372036854775807LL - 1)");
  EXPECT_EQ(integer_literal(opencl, Scalar::u64, ~std::uint64_t{0}), "18446744073709551615uL");
  EXPECT_EQ(integer_literal(cpp, Scalar::i8, 0xff), "((tern_i8)-1)");
  EXPECT_EQ(integer_literal(cpp, Scalar::u8, 0x1ff), "((tern_u8)255)");
}

TEST(Dialect, HasALiteralForEveryRealNumber) {
  EXPECT_EQ(real_literal(Scalar::f32, 1), "1.0f");
  EXPECT_EQ(real_literal(Scalar::f64, 1), "1.0");
  EXPECT_EQ(real_literal(Scalar::f64, -0.1), "(-0.1)");
  EXPECT_EQ(real_literal(Scalar::f64, std::numeric_limits<double>::infinity()), "(1.0 / 0.0)");
  EXPECT_EQ(real_literal(Scalar::f32, -1e300), "(-1.0f / 0.0f)");
  for (const double value : {0.1, 1.0 / 3, 1e300, 5e-324, 16777217.0, 1e22, 123456.75}) {
    EXPECT_EQ(std::strtod(real_literal(Scalar::f64, value).c_str(), nullptr), value);
    const auto single = static_cast<float>(value);
    if (std::isnormal(single)) {
      EXPECT_EQ(std::strtof(real_literal(Scalar::f32, value).c_str(), nullptr), single);
    }
  }
}

}  // namespace
}  // namespace tern::language
