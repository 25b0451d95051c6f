// Who takes part in the pool cases: the pool, malloc and free, and an allocator that does nothing;
// on a CUDA device also the driver's own allocators.
//
// All are called through Resource, with one indirect call for each allocation and each free, so
// what the interface and the loop around it cost is in everybody's figures: the last one's are that
// alone.

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

/// What the pool cases measure; the one place that says so.
[[nodiscard]] std::shared_ptr<PoolResource> make_pool(const Device& device,
                                                      const PoolOptions& options);
/// Memory of the heap, whatever the device.
[[nodiscard]] ResourceHandle make_malloc(const Device& device);
/// Gives the same address every time.
[[nodiscard]] ResourceHandle make_null(const Device& device);
/// cuMemAllocAsync and cuMemFreeAsync, told to keep what is freed; null unless the device is a CUDA
/// device. Each of Tern's streams has one of the driver's own here, so the driver knows nothing of
/// waits between them; nothing runs on them either.
[[nodiscard]] ResourceHandle make_driver_pool(Context& context, const Device& device);
/// cuMemAlloc and cuMemFree; null unless the device is a CUDA device.
[[nodiscard]] ResourceHandle make_driver_plain(Context& context, const Device& device);

/// The device that was asked for, and streams on it.
struct Stage {
  static constexpr std::size_t stream_count = 16;

  explicit Stage(const Context& context);

  Device device;
  std::vector<Stream> streams;
};

/// One number for each contestant, in their order.
using Scores = std::vector<double>;
/// The pool, malloc, null; and on a CUDA device the driver's pool.
using Contestants = std::vector<ResourceHandle>;

[[nodiscard]] Contestants contestants(Context& context, const ResourceHandle& pool);

/// The pool's score beside the others', of which the first three must be there.
[[nodiscard]] Figure compare(std::string name, const Scores& scores, std::string unit,
                             Better better);

/// How much memory a case may hold that wants so much: less on a small device, with a note.
[[nodiscard]] std::size_t fitting_bytes(Context& context, const Device& device,
                                        std::size_t wanted_bytes);

/// A pool that holds all of its memory from the beginning.
[[nodiscard]] std::shared_ptr<PoolResource> make_filled_pool(const Device& device,
                                                             std::size_t bytes);

}  // namespace tern::bench
