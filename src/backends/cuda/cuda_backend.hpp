// A CUDA device as a backend (device/backend.hpp), through the driver interface only.

#pragma once

#include <memory>
#include <string>

#include "backends/cuda/driver.hpp"
#include "backends/cuda/staging.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/device/backend.hpp"

namespace tern::cuda {

struct CudaOptions {
  std::string spec = {};  // canonical spec
  int ordinal = 0;        // below the driver's device_count
  StagingOptions staging = {};
  std::string nvtx_injection = {};  // library of an attached tool, or empty
};

/// The driver must be present and must live as long as the process.
[[nodiscard]] Result<std::unique_ptr<Backend>> open_backend(const Driver& driver,
                                                            const CudaOptions& options) noexcept;

}  // namespace tern::cuda
