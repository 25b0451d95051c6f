// Statements and expressions: what C++ computes is what the translation of the same text computes.

#include "language/body_writer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "language/host_kernel.hpp"

namespace tern::language {
namespace {

using test::HostKernel;

TEST(BodyWriter, WritesStatementsOfC) {
  const HostKernel nested(R"(
    kernel nested(out<int> to, int n) {
      const size_t i = index.x;
      if (i >= size(to)) return;
      int sum = 0, x = static_cast<int>(i);
      for (int k = 0, step = 1; k < n; k += step) {
        if (k == 3) continue;
        int x = k * 2;                      // hides the outer x
        while (true) {
          if (x > 9) break; else if (x == 4) { sum += 100; break; }
          ++x;
        }
        do { int x = 1; sum -= x; } while (false);
        sum += x;
        for (;;) { if (sum >= 0) break; sum++; }
      }
      { int x = 1000; sum += x; }
      ;
      if (x % 2 == 0) if (x % 4 == 0) sum = -sum; else sum = sum * 2;
      to[i] = sum + x;
    })");
  constexpr int n = 7;
  std::vector<int> to(100, -1);
  nested.run({4, 1, 1}, {32, 1, 1}, to, n);
  for (int i = 0; i < 100; ++i) {
    int sum = 0, x = i;
    for (int k = 0; k < n; ++k) {
      if (k == 3) continue;
      int inner = k * 2;
      while (true) {
        if (inner > 9) break;
        if (inner == 4) {
          sum += 100;
          break;
        }
        ++inner;
      }
      sum += inner - 1;
      sum = std::max(sum, 0);
    }
    sum += 1000;
    if (x % 2 == 0) sum = x % 4 == 0 ? -sum : sum * 2;
    ASSERT_EQ(to[static_cast<std::size_t>(i)], sum + x) << i;
  }
}

TEST(BodyWriter, AcceptsNamesThatOtherLanguagesHaveForFunctions) {
  constexpr std::string_view text =
      "element dot(inout<float> exp_, in<float> length) { float step = length; float select = 2; "
      "{ float step = 1; select += step; } exp_ = step * select; }";
  const HostKernel kernel(text);
  std::vector<float> to(10, 1), length(10, 4);
  kernel.run({1, 1, 1}, {32, 1, 1}, to, length);
  EXPECT_EQ(std::count(to.begin(), to.end(), 12.0f), 10);
}

/// Values with which no operation of the tables is undefined.
template <class T>
std::vector<T> values_of() {
  using Limits = std::numeric_limits<T>;
  if constexpr (std::is_floating_point_v<T>) {
    return {T(0),    T(1),   T(-1),         T(0.1),      T(-2.75),          T(3.5),
            T(1e-3), T(100), Limits::min(), T(16777217), Limits::epsilon(), T(-0.0)};
  } else {
    std::vector<T> values = {T(0), T(1), T(2), T(3), T(5), T(7), T(11), T(100), Limits::max()};
    if constexpr (std::is_signed_v<T>) {
      for (const int value : {-1, -2, -7, -100}) values.push_back(T(value));
      values.push_back(T(Limits::min() + 1));
    }
    return values;
  }
}

/// One operation: its text, and the same text as C++.
template <class T>
struct Operation {
  std::string_view text;
  std::int64_t (*integer)(T a, T b, T c);
  double (*real)(T a, T b, T c);
};

/// Computes all operations for all triples of values, in one kernel.
template <class T, class Result>
void expect_equal(const char* type, const char* result,
                  const std::vector<Operation<T>>& operations) {
  std::string text = std::string("kernel all(in<") + type + "> va, in<" + type + "> vb, in<" +
                     type + "> vc, part<" + result +
                     "> to) {\n  const size_t i = index.x;\n  if (i >= "
                     "size(va)) return;\n  const " +
                     type + " a = va[i], b = vb[i], c = vc[i];\n";
  for (std::size_t k = 0; k < operations.size(); ++k) {
    text += "  to[i * " + std::to_string(operations.size()) + " + " + std::to_string(k) + "] = (" +
            result + ")(" + std::string(operations[k].text) + ");\n";
  }
  text += "}\n";
  std::vector<T> a, b, c;
  for (const T x : values_of<T>()) {
    for (const T y : values_of<T>()) {
      for (const T z : {T(0), T(3), T(1)}) {
        a.push_back(x);
        b.push_back(y);
        c.push_back(z);
      }
    }
  }
  std::vector<Result> to(a.size() * operations.size());
  const HostKernel kernel(text);
  kernel.run({a.size(), 1, 1}, {1, 1, 1}, a, b, c, to);
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t k = 0; k < operations.size(); ++k) {
      const Operation<T>& operation = operations[k];
      const Result expected = operation.integer != nullptr
                                  ? static_cast<Result>(operation.integer(a[i], b[i], c[i]))
                                  : static_cast<Result>(operation.real(a[i], b[i], c[i]));
      const Result actual = to[i * operations.size() + k];
      const bool are_nan = expected != expected && actual != actual;
      ASSERT_TRUE(expected == actual || are_nan)
          << operation.text << " of " << +a[i] << ", " << +b[i] << ", " << +c[i] << " as " << type
          << " is " << +actual << " and not " << +expected;
    }
  }
}

// The texts are those of users, who may write what style guides forbid.
#pragma GCC diagnostic ignored "-Wold-style-cast"
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wdouble-promotion"
#pragma GCC diagnostic ignored "-Wparentheses"
// clang-format off: one operation per line
// Kernels are compiled so that integers wrap, and so must these functions under a sanitizer.
#define TERN_OPERATION(type, expression)                                 \
  []([[maybe_unused]] T a, [[maybe_unused]] T b, [[maybe_unused]] T c)   \
      __attribute__((no_sanitize("signed-integer-overflow"))) {          \
    return static_cast<type>(expression);                                \
  }
#define TERN_INTEGER(expression) \
  { #expression, TERN_OPERATION(std::int64_t, expression), nullptr }
#define TERN_REAL(expression) \
  { #expression, nullptr, TERN_OPERATION(double, expression) }

/// Unsigned, where a signed result could overflow.
template <class T>
std::vector<Operation<T>> integer_operations() {
  return {
      TERN_INTEGER((uint64_t)a + (uint64_t)b * (uint64_t)c),
      TERN_INTEGER((uint32_t)a - (uint32_t)b),
      TERN_INTEGER((uint64_t)a * (uint64_t)b - (uint64_t)c),
      TERN_INTEGER(a / (b == 0 ? (b + 1) : b)),
      TERN_INTEGER(a % (c + 1)),
      TERN_INTEGER(a / 3 * 3 + a % 3),
      TERN_INTEGER((a & b) | (c ^ a)),
      TERN_INTEGER(a & b ^ c | b),
      TERN_INTEGER(~a & ~b),
      TERN_INTEGER((uint64_t)a << c),
      TERN_INTEGER(a >> c),
      TERN_INTEGER((uint32_t)a >> (c + 1)),
      TERN_INTEGER(a < b),
      TERN_INTEGER(a <= b),
      TERN_INTEGER(a > b),
      TERN_INTEGER(a >= b),
      TERN_INTEGER(a == b),
      TERN_INTEGER(a != b),
      TERN_INTEGER(a<b == b> c),
      TERN_INTEGER(a < b && b < c || !(a == c)),
      TERN_INTEGER(!a + !!b),
      TERN_INTEGER(a > b   ? a
                   : b > c ? b
                           : c),
      TERN_INTEGER((a ? b : c) == a),
      TERN_INTEGER(- -(a >> 1)),
      TERN_INTEGER(-(a >> 1) - -(b >> 1)),
      TERN_INTEGER((a >> 1) - ((b >> 1) - (c >> 1))),
      TERN_INTEGER((a >> 2) - (b >> 2) - (c >> 2)),
      TERN_INTEGER((a >> 2) * (2 + c) / 2 % 5),
      TERN_INTEGER(bool(a) + bool(b)),
      TERN_INTEGER((int8_t)a),
      TERN_INTEGER((uint8_t)a),
      TERN_INTEGER((int16_t)a),
      TERN_INTEGER((uint16_t)a),
      TERN_INTEGER((int)a),
      TERN_INTEGER((unsigned)a),
      TERN_INTEGER(static_cast<int64_t>(a)),
      TERN_INTEGER((uint64_t)(a >> 3) == uint64_t(b >> 3)),
      TERN_INTEGER((int64_t)((double)(a >> 1) * 0.5)),
      TERN_INTEGER((int)(float)(a % 1000)),
      TERN_INTEGER(0x7f + 010 + 1u),
      TERN_INTEGER(true + false),
      TERN_INTEGER(a + 1.5 > b),
      TERN_INTEGER(1000 * (c + 1) - 1),
  };
}

template <class T>
std::vector<Operation<T>> real_operations() {
  using std::fabs, std::floor, std::ceil, std::sqrt, std::round, std::fmod, std::fma, std::min,
      std::max, std::abs;
  return {
      TERN_REAL(a + b * c),       TERN_REAL(a * b - c),
      TERN_REAL(a * b + a * c),   TERN_REAL(a / b),
      TERN_REAL(a - (b - c)),     TERN_REAL(a / (b / c)),
      TERN_REAL(-a * -b),         TERN_REAL(- -a - -b),
      TERN_REAL(a < b),           TERN_REAL(a <= b),
      TERN_REAL(a > b),           TERN_REAL(a >= b),
      TERN_REAL(a == b),          TERN_REAL(a != b),
      TERN_REAL(a > b ? a : b),   TERN_REAL(!a),
      TERN_REAL(a && b || c),     TERN_REAL((float)a + 1),
      TERN_REAL((double)a * 3),   TERN_REAL((int)(a * 100)),
      TERN_REAL(a * 2.0f + 0.1f), TERN_REAL(a * 0.1 + 1e-3),
      TERN_REAL(a + 1),           TERN_REAL(a / 3u),
      TERN_REAL(1e30f * 1e-30f),  TERN_REAL(16777215 * a),
      TERN_REAL(int64_t(a) / 2),  TERN_REAL(fabs(a)),
      TERN_REAL(abs(a)),          TERN_REAL(floor(a)),
      TERN_REAL(ceil(a)),         TERN_REAL(round(a)),
      TERN_REAL(sqrt(fabs(b))),   TERN_REAL(fmod(a, b)),
      TERN_REAL(fma(a, b, c)),    TERN_REAL(min(a, b)),
      TERN_REAL(max(a, b)),       TERN_REAL(max(min(a, c), b)),
  };
}
// clang-format on

TEST(BodyWriter, WritesOperationsOfIntegersOfC) {
  expect_equal<std::int8_t, std::int64_t>("int8_t", "int64_t", integer_operations<std::int8_t>());
  expect_equal<std::uint8_t, std::int64_t>("uint8_t", "int64_t",
                                           integer_operations<std::uint8_t>());
  expect_equal<std::int16_t, std::int64_t>("int16_t", "int64_t",
                                           integer_operations<std::int16_t>());
  expect_equal<std::uint16_t, std::int64_t>("uint16_t", "int64_t",
                                            integer_operations<std::uint16_t>());
  expect_equal<std::int32_t, std::int64_t>("int", "int64_t", integer_operations<std::int32_t>());
  expect_equal<std::uint32_t, std::int64_t>("unsigned", "int64_t",
                                            integer_operations<std::uint32_t>());
  expect_equal<std::int64_t, std::int64_t>("int64_t", "int64_t",
                                           integer_operations<std::int64_t>());
  expect_equal<std::uint64_t, std::int64_t>("size_t", "int64_t",
                                            integer_operations<std::uint64_t>());
}

TEST(BodyWriter, WritesOperationsOfRealNumbersOfC) {
  expect_equal<float, double>("float", "double", real_operations<float>());
  expect_equal<double, double>("double", "double", real_operations<double>());
}

TEST(BodyWriter, AssignsAndCounts) {
  const HostKernel kernel(R"(
    kernel all(inout<int8_t> x, inout<float> f, inout<unsigned> u, out<int> to) {
      int i = 5;
      to[0] = i++;
      to[0] += 10 * i;
      to[1] = --i;
      to[1] -= i--;
      to[2] = i;
      x[0] += 300;             // wraps in eight bits
      to[3] = x[0];
      x[1]--;
      ++x[1];
      x[1] -= 2.9f;            // computed as float
      to[4] = x[1];
      f[0]++;
      to[5] = (int)(f[0]++ * 10);
      to[6] = (int)(--f[0] * 10);
      u[0] <<= 3; u[0] |= 1; u[0] ^= 2; u[0] &= 0xffu; u[0] %= 100; u[0] >>= 1;
      to[7] = (int)u[0];
      int a = 1, b = 2;
      a = b = 7;
      to[8] = a + b;
      to[9] = (a += 3) * 2;
      f[1] /= 4; f[1] *= 3;
      to[10] = (int)(f[1] * 100);
    })");
  std::vector<std::int8_t> x = {10, 20};
  std::vector<float> f = {1.5f, 10};
  std::vector<std::uint32_t> u = {25};
  std::vector<int> to(11, -1);
  kernel.run({1, 1, 1}, {1, 1, 1}, x, f, u, to);
  // 25 << 3 is 200; | 1, ^ 2: 203; % 100: 3; >> 1: 1.
  EXPECT_EQ(to, (std::vector<int>{65, 0, 4, 54, 17, 25, 25, 1, 14, 20, 750}));
}

TEST(BodyWriter, KeepsBooleansZeroOrOne) {
  const HostKernel kernel(R"(
    element flags(in<bool> x, out<bool> y, inout<uint8_t> n, bool on) {
      const bool both = (x == true) && on;
      y = n;
      if (y == true) n = n + both;
    })");
  std::vector<std::uint8_t> x = {0, 1, 2}, y(3, 9), n = {0, 4, 250};
  const bool on = true;
  kernel.run({1, 1, 1}, {32, 1, 1}, x, y, n, on);
  EXPECT_EQ(y, (std::vector<std::uint8_t>{0, 1, 1}));
  EXPECT_EQ(n, (std::vector<std::uint8_t>{0, 5, 251}));
}

TEST(BodyWriter, FusesOnlyOnRequest) {
  const HostKernel kernel(
      "element both(in<float> x, out<float> separate, out<float> fused) { separate = x * x - 1; "
      "fused = fma(x, x, -1.0f); }");
  std::vector<float> x(100, 1 + std::ldexp(1.0f, -13)), separate(100), fused(100);
  kernel.run({1, 1, 1}, {100, 1, 1}, x, separate, fused);
  // The square is 1 + 2^-12 + 2^-26, and the last bit is lost in a float.
  EXPECT_EQ(std::count(separate.begin(), separate.end(), std::ldexp(1.0f, -12)), 100);
  EXPECT_EQ(std::count(fused.begin(), fused.end(), std::ldexp(1.0f, -12) + std::ldexp(1.0f, -26)),
            100);
}

TEST(BodyWriter, MakesNoNegativeZeroOfAnInteger) {
  const HostKernel kernel("element f(in<float> x, out<float> y) { y = 1.0f / float(int(x)); }");
  std::vector<float> x(100, -0.5f), y(100, 0);
  kernel.run({1, 1, 1}, {100, 1, 1}, x, y);
  EXPECT_EQ(std::count(y.begin(), y.end(), std::numeric_limits<float>::infinity()), 100);
}

TEST(BodyWriter, WrapsSignedNumbersAndAmountsOfShifts) {
  const HostKernel kernel(
      "kernel wrap(out<int> to, int largest, int amount) { to[0] = largest + 1; to[1] = 1 << "
      "amount; to[2] = abs(-largest - 1); }");
  std::vector<int> to(3, 0);
  const int largest = std::numeric_limits<int>::max(), amount = 33;
  kernel.run({1, 1, 1}, {1, 1, 1}, to, largest, amount);
  EXPECT_EQ(
      to, (std::vector<int>{std::numeric_limits<int>::min(), 2, std::numeric_limits<int>::min()}));
}

}  // namespace
}  // namespace tern::language
