// Carries out operations on memory: copies, fills, and kernels without a body.
//
// Without contents, device memory is neither read nor written: copies from it write zeros to host
// memory. It knows nothing about streams, order or time; the caller has decided that the operation
// runs now. Every function returns how many bytes of managed memory had to migrate to `here`, the
// place that runs the operation. Not thread-safe.

#pragma once

#include <cstdint>

#include "backends/kernel_launch.hpp"
#include "backends/sim/memories.hpp"
#include "backends/sim/operation.hpp"

namespace tern::sim {

class Executor {
 public:
  Executor(const Memories& memories, bool keeps_contents) noexcept
      : memories_(memories), keeps_contents_(keeps_contents) {}

  std::uint64_t copy(const Operation& operation, Place here) const;
  std::uint64_t copy_2d(const Copy2D& copy, Place here) const;
  std::uint64_t fill(const Operation& operation, Place here) const;

  /// Prepares the ranges of a launch: ranges that are read are made real, overwritten ranges are
  /// forgotten.
  std::uint64_t prepare(const KernelLaunch& launch, Place here) const;
  /// Translates the addresses of a launch to the alias.
  void translate(const KernelLaunch& launch) const;
  /// Runs a kernel without a body: its output depends on all of its input, so that a wrong order
  /// changes every later byte.
  void run_placeholder(const KernelLaunch& launch) const;

 private:
  /// Copies bytes whose source and destination are prepared.
  void move(void* to, const void* from, std::size_t bytes) const;
  /// Returns whether the range is device memory whose contents are not kept.
  [[nodiscard]] bool is_without_contents(const void* address) const noexcept {
    return !keeps_contents_ && memories_.locate(address).has_value();
  }

  const Memories& memories_;
  const bool keeps_contents_;
};

}  // namespace tern::sim
