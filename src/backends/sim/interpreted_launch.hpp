// How the simulated device runs a portable kernel: with the interpreter, whose mistakes become
// findings.

#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "backends/kernel_launch.hpp"
#include "language/interpreter.hpp"
#include "tern/core/result.hpp"
#include "tern/device/operations.hpp"
#include "tern/trace/finding.hpp"

namespace tern::sim {

/// Runs the launch, and returns the mistakes of the kernel. The addresses in the arguments must be
/// those at which the simulation reaches the bytes. Fails as Interpreter::try_run() does.
[[nodiscard]] Result<std::vector<language::Mistake>> try_interpret(
    const KernelLaunch& launch, const language::RunOptions& options) noexcept;

/// Returns whether the argument of a launch is an array that a portable kernel declares `part`: it
/// writes some elements and reads none.
[[nodiscard]] bool is_written_in_part(const KernelFunction& function, std::size_t index) noexcept;

/// Returns the argument of the launch that is the array of this name, or null.
[[nodiscard]] const KernelArgument* find_array(const KernelLaunch& launch,
                                               std::string_view name) noexcept;

/// Returns the code of the finding for a mistake.
[[nodiscard]] FindingCode code_of(language::Mistake::Kind kind) noexcept;

}  // namespace tern::sim
