// Random kernels, translated to C++ and run on the host, equal their direct evaluation. Many
// kernels are compiled together, each in a namespace of its own, because starting a compiler takes
// most of the time. LONG_TESTS=1 in the environment runs 2,000 of them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "language/emit.hpp"
#include "language/host_compiler.hpp"
#include "language/host_kernel.hpp"
#include "language/parser.hpp"
#include "language/random_kernels.hpp"
#include "support/thorough.hpp"

namespace tern::test {
namespace {

using language::HostEntry;

constexpr std::uint64_t kernels_of_a_text = 50;
std::uint64_t texts() { return in_full() ? 40 : is_sanitized ? 1 : 2; }

struct Translated {
  RandomKernel kernel;
  language::Program program;
};

/// The memory of an argument, and its slots.
struct Memory {
  explicit Memory(const std::vector<RandomArgument>& arguments) {
    for (const RandomArgument& argument : arguments) {
      bytes.push_back(argument.bytes());
      if (argument.intent == language::Intent::value) {
        slots.add_bytes(bytes.back().data(), bytes.back().size());
      } else {
        slots.add_array(bytes.back().data(), argument.values.size());
      }
    }
  }
  std::vector<std::vector<std::byte>> bytes;
  HostArguments slots;
};

void call(HostEntry entry, const language::LaunchShape& shape, HostArguments& slots) {
  const std::vector<void*> addresses = slots.addresses();
  language::HostCall made = {};
  std::copy(shape.grid.begin(), shape.grid.end(), made.grid);
  std::copy(shape.block.begin(), shape.block.end(), made.block);
  made.values = addresses.data();
  // In two parts, as several threads of the host would call it.
  const std::uint64_t blocks = shape.grid[0] * shape.grid[1] * shape.grid[2];
  made.block_count = blocks / 2;
  entry(&made);
  made.first_block = blocks / 2;
  made.block_count = blocks - blocks / 2;
  entry(&made);
}

void expect_equal(const Translated& made, const RandomArgument& expected,
                  const std::vector<std::byte>& actual) {
  const std::size_t at = expected.first_difference(actual);
  EXPECT_EQ(at, expected.values.size())
      << expected.name << "[" << at << "] differs\nseed " << made.kernel.seed << "\n"
      << made.kernel.text << "\n"
      << emit(made.program, language::Dialect::cpp);
}

void run_reduction(const Translated& made, HostEntry map, HostEntry combine) {
  const RandomKernel& kernel = made.kernel;
  Memory memory(kernel.arguments), results({kernel.results}), total({kernel.total});
  for (Memory* cleared : {&results, &total}) {
    std::fill(cleared->bytes[0].begin(), cleared->bytes[0].end(), std::byte{0xa5});
  }
  const void* address = results.bytes[0].data();
  memory.slots.add_bytes(&address, sizeof address);
  call(map, kernel.shape, memory.slots);
  expect_equal(made, kernel.results, results.bytes[0]);
  address = total.bytes[0].data();
  results.slots.add_bytes(&address, sizeof address);
  call(combine, {.grid = {1, 1, 1}, .block = {language::reduction_lanes, 1, 1}}, results.slots);
  expect_equal(made, kernel.total, total.bytes[0]);
}

void run_kernel(const Translated& made, HostEntry entry) {
  Memory memory(made.kernel.arguments);
  call(entry, made.kernel.shape, memory.slots);
  for (std::size_t i = 0; i < made.kernel.expected.size(); ++i) {
    expect_equal(made, made.kernel.expected[i], memory.bytes[i]);
  }
}

TEST(EmittedRandomKernels, EqualTheirDirectEvaluation) {
  const language::CodeCache no_cache("", 0);
  for (std::uint64_t i = 0; i < texts() && !HasFailure(); ++i) {
    std::string text;
    std::vector<Translated> all;
    for (std::uint64_t k = 1; k <= kernels_of_a_text; ++k) {
      const std::uint64_t seed = i * kernels_of_a_text + k;
      Translated& made = all.emplace_back(Translated{make_random_kernel(seed), {}});
      made.program = language::try_parse(made.kernel.text).value();
      made.program.name = "k" + std::to_string(seed);
      text += "namespace n" + std::to_string(seed) + " {\n" +
              emit(made.program, language::Dialect::cpp) + "\n}\n";
    }
    const Result<language::HostCode> code = language::try_host_code("random", text, no_cache);
    ASSERT_TRUE(code) << code.failure().text() << "\n" << text;
    for (const Translated& made : all) {
      const auto find = [&](const std::string& name) {
        return reinterpret_cast<HostEntry>(code->find(name.c_str()));
      };
      const HostEntry entry = find(entry_name(made.program));
      ASSERT_NE(entry, nullptr);
      if (made.kernel.form == language::Form::reduction) {
        run_reduction(made, entry, find(combine_entry_name(made.program)));
      } else {
        run_kernel(made, entry);
      }
    }
  }
}

}  // namespace
}  // namespace tern::test
