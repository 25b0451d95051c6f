// An OpenCL device as a backend: shared virtual memory, in-order queues, kernels in OpenCL C.
//
// What it declares follows from what the device offers. Everywhere: streams, events with times,
// host functions, and memory in stream order. Kernels where there is a compiler. Access by the host
// and managed memory, which is the same memory here, only where shared virtual memory is
// fine-grained, and prefetching of it from OpenCL 2.1 on. Never: what OpenCL has no call for
// (page-locking, virtual memory, advice, copies between contexts).

#pragma once

#include <memory>
#include <string>

#include "backends/opencl/opencl_devices.hpp"
#include "backends/opencl/opencl_table.hpp"
#include "tern/core/result.hpp"
#include "tern/device/backend.hpp"

namespace tern::opencl {

/// The table must live for ever.
[[nodiscard]] Result<std::unique_ptr<Backend>> open_backend(const Table& table,
                                                            const DeviceFacts& facts,
                                                            std::string spec) noexcept;

}  // namespace tern::opencl
