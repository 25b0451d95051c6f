// A reduction is several launches: the first reduces chunks of the arrays, and the following ones
// reduce the results of the launch before, until one value is left.
//
// The chunks have the same size on every device, and a chunk is reduced in the same order, so every
// device computes the same bits. Memory for the results of chunks is allocated before the launch
// holds anything, and is freed in stream order.

#pragma once

#include <cstdint>
#include <span>

#include "launch/kernel_state.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/device/operations.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/owned_block.hpp"

namespace tern {

/// Returns the size of the first launch. Without elements, one chunk has the identity.
[[nodiscard]] Result<LaunchSize> reduction_size(std::uint64_t elements, CallSite site) noexcept;

class ReductionPasses {
 public:
  ReductionPasses(const KernelState& kernel, StreamRef stream) noexcept
      : kernel_(kernel), stream_(stream) {}

  /// Allocates what a launch of this size needs, from the device's default resource. Fails with
  /// stream_misuse if the stream is being captured: a graph would keep the address of memory that
  /// is freed.
  [[nodiscard]] Result<void> try_allocate(const LaunchSize& size, CallSite site) noexcept;
  /// Submits all launches. The last argument is the result.
  [[nodiscard]] Result<void> try_launch(const LaunchSize& size,
                                        std::span<const KernelArgument> arguments,
                                        CallSite site) noexcept;
  /// Returns whether a launch was submitted, also if a later one failed.
  [[nodiscard]] bool has_submitted() const noexcept { return has_submitted_; }

 private:
  const KernelState& kernel_;
  const StreamRef stream_;
  OwnedBlock scratch_;
  bool has_submitted_ = false;
};

}  // namespace tern
