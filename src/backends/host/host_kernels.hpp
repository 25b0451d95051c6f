// Kernels of the host device: compiles portable texts that are not C++ already, and runs launches
// on all cores.

#pragma once

#include "backends/kernel_launch.hpp"
#include "core/worker_team.hpp"
#include "tern/core/result.hpp"
#include "tern/device/operations.hpp"

namespace tern::host {

/// Compiles a portable text with the compiler of the system, or takes the code from the cache on
/// disk. Fails with unsupported if there is no compiler.
[[nodiscard]] Result<KernelFunction> try_compile(const KernelSource& source) noexcept;

/// Returns how many elements a thread of the launch processes.
[[nodiscard]] std::uint32_t elements_per_thread(const language::Program& program) noexcept;

/// Runs all blocks of the launch. If the code splits, the threads of the team share the blocks.
void run_launch(WorkerTeam& team, const KernelLaunch& launch) noexcept;

}  // namespace tern::host
