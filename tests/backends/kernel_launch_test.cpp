#include "backends/kernel_launch.hpp"

#include <gtest/gtest.h>

#include <cstdint>

namespace tern {
namespace {

TEST(KernelLaunch, KeepsItsOwnCopyOfEveryValue) {
  char letter = 'x';
  double number = 1.5;
  const KernelArgument arguments[] = {{.value = &letter, .value_bytes = sizeof letter},
                                      {.value = nullptr, .value_bytes = 0},
                                      {.value = &number, .value_bytes = sizeof number}};
  double seen = 0;
  KernelFunction copying;
  copying.body = [](const KernelCall& call) {
    EXPECT_EQ(call.argument<char>(0), 'x');
    EXPECT_EQ(call.size.grid[0], 3u);
    *static_cast<double*>(call.context) = call.argument<double>(2);
  };
  copying.context = &seen;
  const KernelLaunch launch(copying, "copying", {.grid = {3, 1, 1}}, arguments);
  letter = 'y';
  number = 0;
  launch.run();
  EXPECT_EQ(seen, 1.5);
  EXPECT_EQ(launch.name, "copying");
}

TEST(KernelLaunch, AlignsEachValueForAnyType) {
  const char letters[] = "abc";
  const KernelArgument arguments[] = {{.value = letters, .value_bytes = 3},
                                      {.value = letters, .value_bytes = 1}};
  const KernelLaunch launch({}, "", {}, arguments);
  for (const KernelArgument& argument : launch.arguments) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(argument.value) % alignof(std::max_align_t), 0u);
  }
}

}  // namespace
}  // namespace tern
