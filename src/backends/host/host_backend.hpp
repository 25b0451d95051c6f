// The host as a device: CPU memory, streams that are threads, kernels that are C++ functions.
//
// It is a real backend, not a stand-in: work is asynchronous, so code that forgets to wait fails
// here as it does elsewhere, only less reliably; large copies and fills use all cores.

#pragma once

#include <memory>
#include <string>

#include "backends/host/host_memory.hpp"
#include "tern/core/result.hpp"
#include "tern/device/backend.hpp"

namespace tern::host {

struct HostOptions {
  std::string spec = "host";
  HostMemoryOptions memory;
  /// Threads of one copy or fill, the stream's own included; at least 1.
  std::size_t threads = 1;
};

[[nodiscard]] Result<std::unique_ptr<Backend>> open_backend(const HostOptions& options) noexcept;

}  // namespace tern::host
