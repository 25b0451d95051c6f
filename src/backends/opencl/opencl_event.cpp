#include "backends/opencl/opencl_event.hpp"

namespace tern::opencl {

Completion::~Completion() {
  if (event_ != nullptr) context_->table().clReleaseEvent(event_);
}

Result<bool> Completion::is_passed() const noexcept {
  if (is_known_passed_.load(std::memory_order_acquire)) return true;
  if (Result<void> alive = context_->check_alive(); !alive) return alive.failure();
  constexpr const char* call = "clGetEventInfo";
  cl_int status = complete;
  const cl_int code = context_->table().clGetEventInfo(event_, event_command_execution_status,
                                                       sizeof status, &status, nullptr);
  if (Result<void> asked = context_->check(call, code); !asked) return asked.failure();
  if (status < 0) return context_->lose("a command of the stream", status);
  if (status != complete) return false;
  is_known_passed_.store(true, std::memory_order_release);
  return true;
}

Result<void> Completion::wait() const noexcept {
  if (is_known_passed_.load(std::memory_order_acquire)) return {};
  if (Result<void> alive = context_->check_alive(); !alive) return alive;
  const cl_int code = context_->table().clWaitForEvents(1, &event_);
  if (code != result::success) {
    // The status of the event is more precise than the result of the wait: some drivers return the
    // same result for a fault on the device as for a temporary shortage.
    if (Result<bool> passed = is_passed(); !passed) return passed.failure();
  }
  if (Result<void> waited = context_->check("clWaitForEvents", code); !waited) return waited;
  is_known_passed_.store(true, std::memory_order_release);
  return {};
}

Result<void> Completion::wait_until_done() const noexcept {
  constexpr int max_refusals = 100;
  for (int refusals = 0; refusals < max_refusals; ++refusals) {
    Result<void> waited = wait();
    if (waited || context_->is_lost()) return waited;
    // The work may be done although the wait failed.
    if (const Result<bool> passed = is_passed(); passed && *passed) return {};
  }
  return context_->lose("clWaitForEvents", result::device_not_available);
}

}  // namespace tern::opencl
