// Does to memory what an operation says: copies, fills, and kernels without a body.
//
// It knows nothing of streams, order or time; whoever calls it has decided that it is the
// operation's turn. Every call gives how many bytes of managed memory had to move to `here`, the
// place that does the work. Confined.

#pragma once

#include <cstdint>

#include "backends/kernel_launch.hpp"
#include "backends/sim/memories.hpp"
#include "backends/sim/operation.hpp"

namespace tern::sim {

class Executor {
 public:
  explicit Executor(const Memories& memories) noexcept : memories_(memories) {}

  std::uint64_t copy(const Operation& operation, Place here) const;
  std::uint64_t copy_2d(const Copy2D& copy, Place here) const;
  std::uint64_t fill(const Operation& operation, Place here) const;

  /// Makes the ranges of a launch ready: what it reads is there, what it overwrites forgotten.
  std::uint64_t prepare(const KernelLaunch& launch, Place here) const;
  /// The addresses a body is given become those of the alias, where it can work.
  void translate(const KernelLaunch& launch) const;
  /// In place of a body: what is written depends on everything that is read, so that a wrong order
  /// changes every byte downstream.
  void run_placeholder(const KernelLaunch& launch) const;

 private:
  const Memories& memories_;
};

}  // namespace tern::sim
