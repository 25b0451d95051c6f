// The fake CUDA driver as the library sees it.
//
// The fake is a library of its own, tern::fake_cuda, because programs that are shipped have no use
// for it. A program that opens `cuda:0?driver=sim` links it. The function that returns this table
// is then part of the program; without the fake, its address is null.

#pragma once

#include <cstdint>

#include "backends/cuda/driver_table.hpp"
#include "tern/detail/device/backend.hpp"

namespace tern::sim {
class World;
}

namespace tern::cuda {

struct FakeCuda {
  /// Installs a fake driver for the rest of the process.
  void (*install)(unsigned device_count) = nullptr;
  /// What a loader asks for the entries of the driver that is installed.
  cuGetProcAddress_type* get_proc_address = nullptr;
  /// The simulated devices behind the driver that is installed; null if none is.
  sim::World* (*world)() = nullptr;
  /// The simulated device's own stream behind a handle of the installed driver.
  NativeStream (*native_stream)(CUstream handle, std::uint32_t device) = nullptr;
};

/// Null if the program is linked without tern::fake_cuda.
[[nodiscard]] const FakeCuda* linked_fake_cuda() noexcept;

}  // namespace tern::cuda
