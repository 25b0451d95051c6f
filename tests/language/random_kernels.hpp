// Random kernels: texts with their arguments, launch, and a direct evaluation in C++ that knows
// nothing of the parser and the tree. Each statement of a text is made together with the function
// that does the same, so a parser or a device that reads the text differently gets another result.
//
// Correct kernels make no mistake in any order of threads. Each index is in its array, each divisor
// is positive, no conversion overflows, and only the thread that owns an element uses it, unless
// all uses are atomic or a loop over threads ends between them. A planted mistake is one line more,
// or a loop over threads less.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "language/interpreter.hpp"
#include "language/mistake.hpp"
#include "language/syntax.hpp"

namespace tern::test {

/// A value of any type of the language, in the order of language::Scalar.
using Value = std::variant<bool, std::int8_t, std::uint8_t, std::int16_t, std::uint16_t,
                           std::int32_t, std::uint32_t, std::int64_t, std::uint64_t, float, double>;

/// An argument: an array, or a value in values[0].
struct RandomArgument {
  std::string name;
  language::Scalar type = language::Scalar::f32;
  language::Intent intent = language::Intent::value;
  std::vector<Value> values;

  /// The elements as they are in memory.
  [[nodiscard]] std::vector<std::byte> bytes() const;
  /// Returns the first element where `bytes` differ, or values.size(). All NaNs are equal: C++ does
  /// not say which of two NaNs a sum is.
  [[nodiscard]] std::size_t first_difference(const std::vector<std::byte>& bytes) const;
};

/// What was planted. A race is found at one of two lines, depending on the order of threads.
struct PlantedMistake {
  language::Mistake::Kind kind{};
  std::uint32_t line = 0;
  std::uint32_t other_line = 0;  // of a race; 0: any
  /// Whether the mistake is the planted one.
  [[nodiscard]] bool is(const language::Mistake& mistake) const;
};

struct RandomKernel {
  std::uint64_t seed = 0;
  std::string text;
  language::Form form = language::Form::thread;
  language::LaunchShape shape;
  std::vector<RandomArgument> arguments;  // before the launch
  std::vector<RandomArgument> expected;   // after it
  // Reductions: the type and the results of the two passes.
  language::Scalar result = language::Scalar::f32;
  RandomArgument results, total;
};

/// Makes the kernel of a seed, of any form.
[[nodiscard]] RandomKernel make_random_kernel(std::uint64_t seed);
/// Makes a kernel with one mistake. Its results are not known.
[[nodiscard]] RandomKernel make_random_kernel(std::uint64_t seed, PlantedMistake& planted);

}  // namespace tern::test
