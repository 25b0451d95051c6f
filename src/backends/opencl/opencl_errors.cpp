#include "backends/opencl/opencl_errors.hpp"

namespace tern::opencl {

const char* name_of(cl_int code) noexcept {
  switch (code) {
#define TERN_OPENCL_RESULT(name, official, number) \
  case number:                                     \
    return "CL_" #official;
    TERN_FOR_EACH_OPENCL_RESULT(TERN_OPENCL_RESULT)
#undef TERN_OPENCL_RESULT
    case result::platform_not_found:
      return "CL_PLATFORM_NOT_FOUND_KHR";
    default:
      return "unknown error";
  }
}

bool is_loss(cl_int code) noexcept {
  // The status of an event reports that its command failed while it ran. What the command has
  // written is unknown then.
  return code == result::device_not_available || code == result::exec_status_error;
}

Failure call_failed(std::string_view device, const char* call, cl_int code) noexcept {
  const bool is_memory = code == result::out_of_host_memory ||
                         code == result::mem_object_allocation_failure ||
                         code == result::out_of_resources;
  return Failure(is_memory ? ErrorCode::out_of_memory : ErrorCode::driver,
                 is_memory ? "'{device}' ran out of memory for driver objects: {call} returned "
                             "{name} ({code}). Synchronise, or free memory, and try again."
                           : "a call on '{device}' failed: {call} returned {name} ({code}).")
      .with("call", call)
      .with("name", name_of(code))
      .with_signed("code", code)
      .with("device", device);
}

Failure device_lost(std::string_view device, const char* call, cl_int code) noexcept {
  return Failure(ErrorCode::device_lost)
      .with("call", call)
      .with("name", name_of(code))
      .with_signed("code", code)
      .with("device", device);
}

}  // namespace tern::opencl
