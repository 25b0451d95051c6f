#include "backends/cuda/driver_result.hpp"

#include <string_view>

namespace tern::cuda {

const char* name_of(CUresult result) noexcept {
  switch (result) {
#define TERN_CUDA_RESULT(name, number) \
  case name:                           \
    return #name;
    TERN_FOR_EACH_CUDA_RESULT(TERN_CUDA_RESULT)
#undef TERN_CUDA_RESULT
  }
  return "unknown";
}

bool has_untracked_writer(CUresult result) noexcept {
  switch (result) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
      return true;
    default:
      return false;
  }
}

Failure failure_of(CUresult result, const CallFacts& facts) noexcept {
  const auto with_call = [&](Failure failure) {
    return failure.with("call", facts.call)
        .with("name", facts.name != nullptr ? facts.name : name_of(result))
        .with("code", static_cast<std::uint64_t>(result))
        .with("device", facts.device);
  };
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    if (std::string_view(facts.call).starts_with("cuMemHost")) {
      return with_call(Failure(ErrorCode::out_of_memory,
                               "the host could not page-lock {requested} for '{device}' ({call} "
                               "returned {name}, {code}). Free host memory, or ask for less.")
                           .with_bytes("requested", facts.requested_bytes));
    }
    return with_call(Failure(ErrorCode::out_of_memory,
                             facts.requested_bytes == 0
                                 ? "'{device}' ran out of memory: {free} of {total} are free "
                                   "({call} returned {name}, {code}). Free something."
                                 : "'{device}' could not allocate {requested}: {free} of {total} "
                                   "are free ({call} returned {name}, {code}). Free something, or "
                                   "ask for less.")
                         .with_bytes("requested", facts.requested_bytes)
                         .with_bytes("free", facts.free_bytes)
                         .with_bytes("total", facts.total_bytes));
  }
  if (has_untracked_writer(result)) {
    return with_call(Failure(ErrorCode::device_lost,
                             "device '{device}' is lost since {call} returned {name} ({code}). It "
                             "stays lost until the process ends. Restart the program."));
  }
  if (result == CUDA_ERROR_DEINITIALIZED) {
    return with_call(Failure(ErrorCode::after_shutdown,
                             "{call} was called after the CUDA driver had shut down ({name}, "
                             "{code}). Destroy all objects of '{device}' before main returns.")
                         .with("what", facts.call));
  }
  if (is_about_capture(result)) {
    return with_call(Failure(ErrorCode::stream_misuse,
                             "{call} returned {name} ({code}) on '{device}': {why}. Make the call "
                             "before the capture begins or after it ends.")
                         .with("stream", std::uint64_t{0})
                         .with("why", "a stream is being captured into a graph"));
  }
  if (result == CUDA_ERROR_NOT_SUPPORTED) {
    return with_call(Failure(ErrorCode::unsupported,
                             "'{device}' does not support the call: {call} returned {name} "
                             "({code}). `tern info --all` lists what each device can do.")
                         .with("what", facts.call));
  }
  return with_call(Failure(ErrorCode::driver, "{call} returned {name} ({code}) on '{device}'."));
}

}  // namespace tern::cuda
