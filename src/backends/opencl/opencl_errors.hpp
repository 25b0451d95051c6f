// What a refusal of OpenCL's becomes: its name, and a Failure that says which call refused.

#pragma once

#include <cstddef>
#include <string_view>

#include "backends/opencl/opencl_abi.hpp"
#include "tern/core/error.hpp"

namespace tern::opencl {

/// "CL_OUT_OF_RESOURCES"; "unknown error" for a number that no version of OpenCL had when this was
/// written.
[[nodiscard]] const char* name_of(cl_int code) noexcept;

/// Does the result say that the device is gone, for this call and all that follow?
[[nodiscard]] bool is_loss(cl_int code) noexcept;

/// The call failed and nothing else is wrong with the device. Shortage of host memory is
/// out_of_memory, the rest is driver.
[[nodiscard]] Failure call_failed(std::string_view device, const char* call, cl_int code) noexcept;
[[nodiscard]] Failure device_lost(std::string_view device, const char* call, cl_int code) noexcept;

}  // namespace tern::opencl
