// Converts OpenCL results to names and Failures.

#pragma once

#include <cstddef>
#include <string_view>

#include "backends/opencl/opencl_abi.hpp"
#include "tern/core/error.hpp"

namespace tern::opencl {

/// Returns the name, such as "CL_OUT_OF_RESOURCES", or "unknown error".
[[nodiscard]] const char* name_of(cl_int code) noexcept;

/// Returns whether the result means that the device is lost.
[[nodiscard]] bool is_loss(cl_int code) noexcept;

/// Returns the failure of a call that leaves the device usable: out_of_memory for a shortage of
/// host memory, else driver.
[[nodiscard]] Failure call_failed(std::string_view device, const char* call, cl_int code) noexcept;
[[nodiscard]] Failure device_lost(std::string_view device, const char* call, cl_int code) noexcept;

}  // namespace tern::opencl
