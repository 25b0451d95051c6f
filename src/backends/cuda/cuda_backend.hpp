// A CUDA device behind the contract of device/backend.hpp, through the driver alone.

#pragma once

#include <memory>
#include <string>

#include "backends/cuda/driver.hpp"
#include "backends/cuda/staging.hpp"
#include "tern/core/result.hpp"
#include "tern/device/backend.hpp"

namespace tern::cuda {

struct CudaOptions {
  std::string spec = {};  // canonical
  int ordinal = 0;        // below the driver's device_count
  StagingOptions staging = {};
};

/// The driver is present, and lives as long as the process.
[[nodiscard]] Result<std::unique_ptr<Backend>> open_backend(const Driver& driver,
                                                            const CudaOptions& options) noexcept;

}  // namespace tern::cuda
