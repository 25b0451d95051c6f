// How large a device has to be for the allocations of a recording.
//
// The allocations are replayed with one pool on simulated devices of several sizes, whose memory
// costs nothing. Streams have no work, so frees complete at once.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "bench/allocation_trace.hpp"

namespace tern::tools {

/// Sizes of devices are multiples of this.
inline constexpr std::size_t device_granule_bytes = std::size_t{2} << 20;

/// Whether the pool of a replay has a limit: the memory of the device. With a limit, a pool holds
/// single pages, which it can put together, instead of large handles (docs/guide/pool.md).
enum class PoolLimit : std::uint8_t { none, device };

/// A replay on a device of one size. It ends with the first request that is refused.
struct SizeTrial {
  std::size_t device_bytes = 0;
  std::size_t peak_held_bytes = 0;
  /// The step that was refused, and the requested bytes that were live then.
  std::optional<std::size_t> refused_step = {};
  std::size_t live_bytes = 0;

  [[nodiscard]] bool fits() const { return !refused_step; }
};

/// Throws InvalidArgument for a size that no simulated device can have.
[[nodiscard]] SizeTrial try_device_size(const bench::AllocationTrace& trace,
                                        std::size_t device_bytes,
                                        PoolLimit limit = PoolLimit::none);

struct SmallestDevice {
  SizeTrial smallest;
  /// The trial with one granule less, which refuses a request. Nothing if the smallest device is as
  /// small as the live bytes allow.
  std::optional<SizeTrial> one_less = {};
};

/// Finds the smallest device that refuses nothing. Returns nothing if the largest simulated device,
/// of 16 TiB, is too small. Calls `progress` with each size before it is tried.
[[nodiscard]] std::optional<SmallestDevice> find_smallest_device(
    const bench::AllocationTrace& trace, PoolLimit limit,
    const std::function<void(std::size_t)>& progress);

}  // namespace tern::tools
