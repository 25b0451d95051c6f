// A reduction is several launches: the first reduces chunks of the arrays, and the following ones
// reduce the results of the launch before, until one value is left.
//
// The chunks have the same size on every device, and a chunk is reduced in the same order, so every
// device computes the same bits.

#pragma once

#include <cstdint>
#include <span>

#include "launch/kernel_state.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/device/operations.hpp"
#include "tern/device/stream.hpp"

namespace tern {

/// Returns the size of the first launch. Without elements, one chunk has the identity.
[[nodiscard]] Result<LaunchSize> reduction_size(std::uint64_t elements, CallSite site) noexcept;

/// Submits all launches of a reduction. The last argument is the result. Memory for the results of
/// chunks comes from the device's default resource, and is freed in stream order.
[[nodiscard]] Result<void> try_reduce(const KernelState& kernel, StreamRef stream,
                                      const LaunchSize& size,
                                      std::span<const KernelArgument> arguments,
                                      CallSite site) noexcept;

}  // namespace tern
