// The interface between the library and the fake CUDA driver.
//
// The fake driver is a separate library, tern::fake_cuda, because release builds of programs do not
// need it. A program that opens `cuda:0?driver=sim` links it. The function that returns this table
// is then part of the program. Without the fake driver, the address of the function is null.

#pragma once

#include <cstdint>
#include <string_view>

#include "backends/cuda/driver_table.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/device/backend.hpp"

namespace tern::sim {
class World;
}

namespace tern::cuda {

/// An image that the fake driver takes in place of PTX, because it runs no machine code: this line,
/// the name of the function, the name of the kernel, and the portable text.
inline constexpr std::string_view portable_image_magic = "TERN-PORTABLE-TEXT\n";

struct FakeCuda {
  /// Installs a fake driver for the rest of the process, with the options that the environment
  /// sets for simulated devices. Fails with invalid_argument if one of these options is invalid,
  /// and with file if the trace cannot be written.
  Result<void> (*install)(unsigned device_count) = nullptr;
  /// Returns the function that looks up the entries of the installed driver.
  cuGetProcAddress_type* get_proc_address = nullptr;
  /// The simulated devices behind the driver that is installed; null if none is.
  sim::World* (*world)() = nullptr;
  /// The simulated device's own stream behind a handle of the installed driver.
  NativeStream (*native_stream)(CUstream handle, std::uint32_t device) = nullptr;
};

/// Null if the program is linked without tern::fake_cuda.
[[nodiscard]] const FakeCuda* linked_fake_cuda() noexcept;

}  // namespace tern::cuda
