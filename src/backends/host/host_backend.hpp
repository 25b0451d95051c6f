// The host as a device: CPU memory, streams that are threads, kernels that are C++ functions.
//
// This is a full backend. Work is asynchronous, so code with a missing wait fails on this backend
// too, although less reliably. Large copies and fills use all cores.

#pragma once

#include <memory>
#include <string>

#include "backends/host/host_memory.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/device/backend.hpp"

namespace tern::host {

struct HostOptions {
  std::string spec = "host";
  HostMemoryOptions memory;
  /// Number of threads of one copy or fill, including the stream's own; at least 1.
  std::size_t threads = 1;
};

[[nodiscard]] Result<std::unique_ptr<Backend>> open_backend(const HostOptions& options) noexcept;

}  // namespace tern::host
