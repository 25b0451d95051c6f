// Random kernels on the interpreter. LONG_TESTS=1 in the environment runs 10,000 of them.

#include "language/random_kernels.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "language/interpreter.hpp"
#include "language/parser.hpp"
#include "support/thorough.hpp"

namespace tern::test {
namespace {

using language::Argument;
using language::Interpreter;
using language::Mistake;

std::uint64_t kernels() { return in_full() ? 10'000 : is_sanitized ? 100 : 400; }

/// The memory of the arguments of a launch.
struct Memory {
  explicit Memory(const std::vector<RandomArgument>& of) {
    for (const RandomArgument& argument : of) {
      bytes.push_back(argument.bytes());
      const bool is_value = argument.intent == language::Intent::value;
      arguments.push_back({.value = is_value ? bytes.back().data() : nullptr,
                           .address = is_value ? nullptr : bytes.back().data(),
                           .elements = argument.values.size()});
    }
  }
  std::vector<std::vector<std::byte>> bytes;
  std::vector<Argument> arguments;
};

std::string shown(const RandomKernel& kernel, const std::vector<Mistake>& mistakes) {
  std::string text = "seed " + std::to_string(kernel.seed) + "\n" + kernel.text;
  for (const Mistake& mistake : mistakes) text += mistake.what() + "\n";
  return text;
}

void expect_equal(const RandomKernel& kernel, const RandomArgument& expected,
                  const std::vector<std::byte>& actual) {
  const std::size_t at = expected.first_difference(actual);
  EXPECT_EQ(at, expected.values.size()) << expected.name << "[" << at << "] differs\n"
                                        << shown(kernel, {});
}

void run_reduction(const RandomKernel& kernel, const Interpreter& interpreter,
                   std::uint64_t order_seed) {
  Memory memory(kernel.arguments), results({kernel.results}), total({kernel.total});
  std::vector<Argument> arguments = memory.arguments;
  arguments.push_back(results.arguments[0]);
  for (Memory* cleared : {&results, &total}) {
    for (std::byte& byte : cleared->bytes[0]) byte = std::byte{0xa5};
  }
  const auto mapped = interpreter.try_run(kernel.shape, arguments, {.order_seed = order_seed});
  ASSERT_TRUE(mapped) << mapped.failure().text();
  EXPECT_TRUE(mapped->empty()) << shown(kernel, *mapped);
  expect_equal(kernel, kernel.results, results.bytes[0]);
  const auto combined = interpreter.try_combine(1, results.arguments[0], total.arguments[0],
                                                {.order_seed = order_seed});
  ASSERT_TRUE(combined) << combined.failure().text();
  EXPECT_TRUE(combined->empty()) << shown(kernel, *combined);
  expect_equal(kernel, kernel.total, total.bytes[0]);
}

void run_kernel(const RandomKernel& kernel, const Interpreter& interpreter,
                std::uint64_t order_seed) {
  Memory memory(kernel.arguments);
  const auto mistakes =
      interpreter.try_run(kernel.shape, memory.arguments, {.order_seed = order_seed});
  ASSERT_TRUE(mistakes) << mistakes.failure().text();
  EXPECT_TRUE(mistakes->empty()) << shown(kernel, *mistakes);
  for (std::size_t i = 0; i < kernel.expected.size(); ++i) {
    expect_equal(kernel, kernel.expected[i], memory.bytes[i]);
  }
}

TEST(RandomKernels, AreCorrectInEveryOrderAndEqualTheirDirectEvaluation) {
  for (std::uint64_t seed = 1; seed <= kernels() && !HasFailure(); ++seed) {
    const RandomKernel kernel = make_random_kernel(seed);
    const auto program = language::try_parse(kernel.text);
    ASSERT_TRUE(program) << program.failure().text() << "\n" << shown(kernel, {});
    const Interpreter interpreter(*program);
    for (const std::uint64_t order_seed : {std::uint64_t{0}, seed}) {
      if (kernel.form == language::Form::reduction) {
        run_reduction(kernel, interpreter, order_seed);
      } else {
        run_kernel(kernel, interpreter, order_seed);
      }
    }
  }
}

TEST(RandomKernels, WithAPlantedMistakeAreFoundAtItsLine) {
  for (std::uint64_t seed = 1; seed <= kernels() && !HasFailure(); ++seed) {
    PlantedMistake planted;
    const RandomKernel kernel = make_random_kernel(seed, planted);
    const auto program = language::try_parse(kernel.text);
    ASSERT_TRUE(program) << program.failure().text() << "\n" << shown(kernel, {});
    for (const std::uint64_t order_seed : {std::uint64_t{0}, seed}) {
      Memory memory(kernel.arguments);
      const auto mistakes =
          Interpreter(*program).try_run(kernel.shape, memory.arguments, {.order_seed = order_seed});
      ASSERT_TRUE(mistakes) << mistakes.failure().text();
      bool is_found = false;
      for (const Mistake& mistake : *mistakes) is_found = is_found || planted.is(mistake);
      EXPECT_TRUE(is_found) << "planted " << name(planted.kind) << " in line " << planted.line
                            << "\n"
                            << shown(kernel, *mistakes);
    }
  }
}

}  // namespace
}  // namespace tern::test
