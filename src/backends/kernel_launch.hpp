// A launch of a C++ kernel, kept until it runs. It copies the argument values, because the caller's
// may be destroyed by then.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tern/device/operations.hpp"

namespace tern {

namespace language {
class Interpreter;
}  // namespace language

/// What a kernel runs. Without a function and without an interpreter, it is a placeholder of the
/// simulated device.
struct KernelFunction {
  KernelBody body = nullptr;
  void* context = nullptr;
  bool splits = false;                                       // KernelSource::splits
  std::shared_ptr<const void> owner;                         // keeps the code loaded
  std::shared_ptr<const language::Interpreter> interpreter;  // of a portable text
  std::uint32_t elements_per_thread = 1;  // for the decision how many cores a launch is worth
  bool is_combine = false;  // the interpreter runs the second pass of a reduction

  [[nodiscard]] bool is_placeholder() const noexcept { return body == nullptr && !interpreter; }
};

struct KernelLaunch {
  /// Streams limit the total size of the values, so the sum cannot overflow. Each value is copied
  /// with the strictest alignment.
  KernelLaunch(KernelFunction kernel_function, std::string kernel_name,
               const LaunchSize& launch_size, std::span<const KernelArgument> launch_arguments);

  /// Runs the whole grid.
  void run() const { run(0, block_count()); }
  /// Runs some blocks. Only if the function splits.
  void run(std::uint64_t first_block, std::uint64_t blocks) const {
    function.body({size, arguments, function.context, first_block, blocks});
  }
  [[nodiscard]] std::uint64_t block_count() const noexcept {
    return std::uint64_t{size.grid[0]} * size.grid[1] * size.grid[2];
  }

  KernelFunction function;
  std::string name;
  LaunchSize size;
  std::vector<KernelArgument> arguments;
  std::unique_ptr<std::byte[]> values;
};

}  // namespace tern
