// Managed memory of a CUDA device: hints, prefetches and queries.
//
// This class converts Tern's places to the driver's locations; devices have a number in each.
// Drivers before 12.2 support devices and the host, but no NUMA nodes. Call all functions in a
// scope. Thread-safe.

#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "backends/cuda/context.hpp"
#include "tern/core/place.hpp"
#include "tern/core/result.hpp"
#include "tern/device/device_info.hpp"
#include "tern/device/operations.hpp"

namespace tern::cuda {

/// Maps Tern's device ids to the driver's devices, for all opened CUDA backends. Closed devices are
/// removed.
void note_opened(const Driver& driver, DeviceId id, CUdevice device);
void note_closed(DeviceId id) noexcept;

/// Returns whether managed memory can be discarded and prefetched in batches: the driver has the
/// calls, and on all its devices the host may use managed memory at any time.
[[nodiscard]] bool has_batches(const Driver& driver) noexcept;

class CudaManaged {
 public:
  explicit CudaManaged(Context& context) noexcept
      : context_(context), has_batches_(has_batches(context.driver())) {}

  /// The caller has checked that ranges are inside managed memory.
  [[nodiscard]] Result<void> prefetch(CUstream stream, void* address, std::size_t bytes,
                                      Place destination) noexcept;
  /// Uses one batch call if the driver has it, else one call per range. If the batch call fails,
  /// the ranges are submitted one by one to find the invalid range; prefetching a range twice is
  /// harmless.
  [[nodiscard]] Result<void> prefetch_batch(CUstream stream, std::span<const PrefetchRange> ranges,
                                            std::size_t& submitted) noexcept;
  [[nodiscard]] Result<void> discard(CUstream stream, void* address, std::size_t bytes,
                                     std::optional<Place> destination) noexcept;
  [[nodiscard]] Result<void> advise(void* address, std::size_t bytes, Advice advice,
                                    Place place) noexcept;
  [[nodiscard]] Result<ManagedInfo> info(const void* address, std::size_t bytes) noexcept;

 private:
  [[nodiscard]] bool takes_batches(CUstream stream) noexcept;
  [[nodiscard]] Result<void> batch_by_driver(CUstream stream,
                                             std::span<const PrefetchRange> ranges) noexcept;
  [[nodiscard]] Result<CUmemLocation> location_of(Place place) noexcept;
  [[nodiscard]] std::optional<Place> place_of(CUmemLocation location) noexcept;

  Context& context_;
  const bool has_batches_;
};

}  // namespace tern::cuda
