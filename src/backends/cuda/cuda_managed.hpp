// Managed memory of a CUDA device: where its pages should be, and where they were last sent.
//
// Places are Tern's and locations the driver's; devices are known here by both numbers. Drivers
// before 12.2 know devices and the host, but no NUMA nodes. All calls are in a scope. Thread-safe.

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

/// Which number of ours is which of the driver's devices, for all devices of all opened CUDA
/// backends. One that was closed is not known any more.
void note_opened(const Driver& driver, DeviceId id, CUdevice device);
void note_closed(DeviceId id) noexcept;

/// May managed memory be discarded, and prefetched in batches? The driver has the calls, and every
/// device it knows lets the host use managed memory at any time.
[[nodiscard]] bool has_batches(const Driver& driver) noexcept;

class CudaManaged {
 public:
  explicit CudaManaged(Context& context) noexcept
      : context_(context), has_batches_(has_batches(context.driver())) {}

  /// Ranges lie inside managed memory; that was checked.
  [[nodiscard]] Result<void> prefetch(CUstream stream, void* address, std::size_t bytes,
                                      Place destination) noexcept;
  /// By one call where the driver has it and takes it, else one by one. A call that is refused has
  /// no word on which range it did not like, so they are tried one by one then: prefetching twice
  /// does no harm.
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
