// Managed memory of a CUDA device: where its pages should be, and where they were last sent.
//
// Places are Tern's and locations the driver's; devices are known here by both numbers. Drivers
// before 12.2 know devices and the host, but no NUMA nodes. All calls are in a visit. Thread-safe.

#pragma once

#include <cstddef>
#include <optional>

#include "backends/cuda/context.hpp"
#include "tern/core/place.hpp"
#include "tern/core/result.hpp"
#include "tern/device/backend.hpp"

namespace tern::cuda {

/// Which number of ours is which of the driver's devices, for all devices of all opened CUDA
/// backends. One that was closed is not known any more.
void note_opened(const Driver& driver, DeviceId id, CUdevice device);
void note_closed(DeviceId id) noexcept;

class CudaManaged {
 public:
  explicit CudaManaged(Context& context) noexcept : context_(context) {}

  /// Ranges lie inside managed memory; that was checked.
  [[nodiscard]] Result<void> prefetch(CUstream stream, void* address, std::size_t bytes,
                                      Place destination) noexcept;
  [[nodiscard]] Result<void> advise(void* address, std::size_t bytes, Advice advice,
                                    Place place) noexcept;
  [[nodiscard]] Result<ManagedInfo> info(const void* address, std::size_t bytes) noexcept;

 private:
  [[nodiscard]] Result<CUmemLocation> location_of(Place place) noexcept;
  [[nodiscard]] std::optional<Place> place_of(CUmemLocation location) noexcept;

  Context& context_;
};

}  // namespace tern::cuda
