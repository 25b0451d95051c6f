// An OpenCL device as a backend: shared virtual memory, in-order queues, kernels in OpenCL C.
//
// The capabilities depend on the device. All devices have streams, timed events, host functions and
// stream-ordered memory. Kernels need a compiler. Host access and managed memory, which are the
// same memory, need fine-grained shared virtual memory; prefetching it needs OpenCL 2.1.
// Page-locking, virtual memory, advice and copies between contexts are never available, because
// OpenCL has no calls for them.

#pragma once

#include <memory>
#include <string>

#include "backends/opencl/opencl_devices.hpp"
#include "backends/opencl/opencl_table.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/device/backend.hpp"

namespace tern::opencl {

/// The table must never be destroyed.
[[nodiscard]] Result<std::unique_ptr<Backend>> open_backend(const Table& table,
                                                            const DeviceFacts& facts,
                                                            std::string spec) noexcept;

}  // namespace tern::opencl
