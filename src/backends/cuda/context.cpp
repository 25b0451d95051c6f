#include "backends/cuda/context.hpp"

#include <memory>
#include <utility>

#include "core/spans_in_flight.hpp"

namespace tern::cuda {

Context::~Context() { spans_lost(this); }

Result<std::unique_ptr<Context>> Context::try_open(const Driver& driver, int ordinal,
                                                   std::string spec) {
  const DriverTable& cu = driver.table;
  CUdevice device = 0;
  CUcontext handle = nullptr;
  if (const CUresult result = cu.cuDeviceGet(&device, ordinal); result != CUDA_SUCCESS) {
    return failure_of(result, {.call = "cuDeviceGet", .device = spec});
  }
  if (const CUresult result = cu.cuDevicePrimaryCtxRetain(&handle, device);
      result != CUDA_SUCCESS) {
    return failure_of(result, {.call = "cuDevicePrimaryCtxRetain", .device = spec});
  }
  return std::unique_ptr<Context>(new Context(driver, device, handle, std::move(spec)));
}

int Context::attribute(CUdevice_attribute attribute) const noexcept {
  int value = 0;
  if (cu().cuDeviceGetAttribute(&value, attribute, device_) != CUDA_SUCCESS) return 0;
  return value;
}

Result<void> Context::check(CUresult result, const char* call,
                            std::size_t requested_bytes) noexcept {
  if (result == CUDA_SUCCESS) return {};
  CallFacts facts = {.call = call, .device = spec_, .requested_bytes = requested_bytes};
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    static_cast<void>(cu().cuMemGetInfo(&facts.free_bytes, &facts.total_bytes));
  }
  // For results that are newer than our list of names.
  const char* name = nullptr;
  if (cu().cuGetErrorName(result, &name) == CUDA_SUCCESS) facts.name = name;
  const Failure failure = failure_of(result, facts);
  if (failure.code() == ErrorCode::device_lost) {
    const std::lock_guard lock(loss_mutex_);
    if (!loss_) {
      loss_ = failure;
      is_lost_.store(true, std::memory_order_release);
      spans_lost(this);
    }
    return *loss_;
  }
  return failure;
}

Failure Context::why_not() noexcept {
  if (has_ended()) {
    return Failure(ErrorCode::after_shutdown,
                   "'{device}' was used while the process exits, when the CUDA driver can no "
                   "longer be called. Destroy CUDA objects before main returns.")
        .with("what", "a CUDA device")
        .with("device", spec_);
  }
  const std::lock_guard lock(loss_mutex_);
  return *loss_;
}

ContextScope::ContextScope(Context& context) noexcept : context_(context) {
  if (!context.can_call()) {
    failure_ = context.why_not();
    return;
  }
  const DriverTable& cu = context.cu();
  CUcontext now = nullptr;
  if (cu.cuCtxGetCurrent(&now) != CUDA_SUCCESS || now != context.handle_) {
    if (Result<void> pushed =
            context.check(cu.cuCtxPushCurrent(context.handle_), "cuCtxPushCurrent");
        !pushed) {
      failure_ = pushed.failure();
      return;
    }
    has_pushed_ = true;
  }
  has_changed_mode_ = cu.cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS;
}

ContextScope::~ContextScope() {
  const DriverTable& cu = context_.cu();
  if (has_changed_mode_) static_cast<void>(cu.cuThreadExchangeStreamCaptureMode(&mode_));
  if (!has_pushed_) return;
  // The context is never left pushed: a thread without a context must still get device 0 from the
  // runtime later.
  CUcontext ours = nullptr;
  static_cast<void>(cu.cuCtxPopCurrent(&ours));
}

}  // namespace tern::cuda
