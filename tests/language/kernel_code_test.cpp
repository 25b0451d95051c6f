// What a program is compiled to. interpreter_test.cpp checks what the code does.

#include "language/kernel_code.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "language/parser.hpp"

namespace tern::language {
namespace {

KernelCode code_of(std::string_view text) { return compile(try_parse(text).value()); }

std::ptrdiff_t count(const KernelCode& code, Code wanted) {
  return std::count_if(code.instructions.begin(), code.instructions.end(),
                       [&](const Instruction& one) { return one.code == wanted; });
}

TEST(KernelCode, ComputesIntoTheVariableWithoutAMove) {
  const KernelCode code =
      code_of("kernel f(inout<int> y, int a) { int b = a + 1; b = b * a; y[0] = b; }");
  ASSERT_EQ(code.instructions.size(), 4u);  // add, multiply, store, end
  EXPECT_EQ(code.instructions[0].to, code.instructions[1].to);
  EXPECT_EQ(code.instructions[1].to, code.instructions[1].a);
  EXPECT_EQ(code.instructions[2].b, code.instructions[1].to);
}

TEST(KernelCode, ConvertsToAWiderTypeWithoutAnInstruction) {
  EXPECT_EQ(code_of("kernel f(inout<int64_t> y, int a) { y[0] = a; }").instructions.size(), 2u);
  EXPECT_EQ(code_of("kernel f(inout<int64_t> y, unsigned a) { y[0] = a; }").instructions.size(),
            2u);
  // Of the other conversions, each has one.
  EXPECT_EQ(count(code_of("kernel f(inout<unsigned> y, int a) { y[0] = a; }"), Code::low_u32), 1);
  EXPECT_EQ(count(code_of("kernel f(inout<int8_t> y, int a) { y[0] = a; }"), Code::low_i8), 1);
}

TEST(KernelCode, KeepsOneRegisterForEqualConstants) {
  const KernelCode code = code_of("kernel f(inout<int> y, int a) { y[0] = a + 5; y[5] = a * 5; }");
  EXPECT_EQ(std::count_if(code.constants.begin(), code.constants.end(),
                          [](const auto& constant) { return constant.second == 5; }),
            1);
}

TEST(KernelCode, ReusesTemporaryRegistersInTheNextStatement) {
  const KernelCode one = code_of("kernel f(inout<float> y, float a) { y[0] = (a + a) * (a - a); }");
  const KernelCode two = code_of(
      "kernel f(inout<float> y, float a) { y[0] = (a + a) * (a - a); y[0] = (a - a) * (a + a); }");
  EXPECT_EQ(one.register_count, two.register_count);
}

TEST(KernelCode, ChecksOnlyVariablesThatBeginWithoutAValue) {
  EXPECT_EQ(count(code_of("kernel f(inout<float> y) { float s; s = 1; y[0] = s + s; }"),
                  Code::check_value),
            2);
  EXPECT_EQ(
      count(code_of("kernel f(inout<float> y) { float s = 1; y[0] = s + s; }"), Code::check_value),
      0);
}

TEST(KernelCode, KnowsHowTheTextUsesEachArray) {
  const KernelCode code =
      code_of(R"(block f(in<float> x, inout<float> y, inout<int> c, part<int> w) {
    shared<float, 8> tile;
    for (auto thread : threads) {
      tile[0] = x[0]; y[0] += size(x); atomic_add(c, 0, 1); w[0] = 1;
    }
  })");
  ASSERT_EQ(code.arrays.size(), 5u);
  const auto uses = [&](std::size_t i) {
    const KernelCode::Array& array = code.arrays[i];
    return std::string(array.is_read ? "r" : "") + (array.is_written ? "w" : "") +
           (array.is_atomic ? "a" : "") + (array.is_shared ? "s" : "") +
           (array.size_register != KernelCode::none ? "n" : "");
  };
  EXPECT_EQ(uses(0), "rn");
  EXPECT_EQ(uses(1), "rw");
  EXPECT_EQ(uses(2), "a");
  EXPECT_EQ(uses(3), "w");
  EXPECT_EQ(uses(4), "ws");
}

TEST(KernelCode, KnowsWhichValuesTheTextChanges) {
  const KernelCode code =
      code_of("kernel f(inout<int> y, int a, int b, int c) { a = 1; ++b; y[0] = a + b + c; }");
  ASSERT_EQ(code.values.size(), 3u);
  EXPECT_TRUE(code.values[0].is_changed);
  EXPECT_TRUE(code.values[1].is_changed);
  EXPECT_FALSE(code.values[2].is_changed);
}

}  // namespace
}  // namespace tern::language
