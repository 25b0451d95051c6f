// The allocators that the pool cases compare: the pool, malloc and free, an allocator that does
// nothing, and on a CUDA device the driver's allocators.
//
// All are called through Resource, with one virtual call per allocation and per free. So every
// value includes the cost of the interface and of the loop. The value of the allocator that does
// nothing is that cost alone.

#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "bench/case.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/pool_resource.hpp"
#include "tern/memory/resource.hpp"

namespace tern::bench {

/// Makes the pool that all pool cases measure.
[[nodiscard]] std::shared_ptr<PoolResource> make_pool(const Device& device,
                                                      const PoolOptions& options);
/// Allocates from the heap, for any device.
[[nodiscard]] ResourceHandle make_malloc(const Device& device);
/// Always returns the same address.
[[nodiscard]] ResourceHandle make_null(const Device& device);
/// Uses cuMemAllocAsync and cuMemFreeAsync, with a pool that keeps freed memory. Null unless the
/// device is a CUDA device. For each stream of Tern it creates a driver stream that gets no work,
/// so the driver does not know about waits between the streams.
[[nodiscard]] ResourceHandle make_driver_pool(Context& context, const Device& device);
/// Uses cuMemAlloc and cuMemFree. Null unless the device is a CUDA device.
[[nodiscard]] ResourceHandle make_driver_plain(Context& context, const Device& device);

/// The device of the run, and streams on it.
struct Stage {
  static constexpr std::size_t stream_count = 16;

  explicit Stage(const Context& context);

  Device device;
  std::vector<Stream> streams;
};

/// One value per contestant, in the order of the contestants.
using Scores = std::vector<double>;
/// The pool, malloc, null and, on a CUDA device, the driver's pool.
using Contestants = std::vector<ResourceHandle>;

[[nodiscard]] Contestants contestants(Context& context, const ResourceHandle& pool);

/// Makes a figure from the pool's score, with the other scores beside it. There must be at least
/// three scores.
[[nodiscard]] Figure compare(std::string name, const Scores& scores, std::string unit,
                             Better better);

/// Returns how much memory a case may hold: `wanted_bytes`, or less, with a note, on a small
/// device.
[[nodiscard]] std::size_t fitting_bytes(Context& context, const Device& device,
                                        std::size_t wanted_bytes);

/// Makes a pool that allocates all of its memory from the driver at once.
[[nodiscard]] std::shared_ptr<PoolResource> make_filled_pool(const Device& device,
                                                             std::size_t bytes);

}  // namespace tern::bench
