#include "backends/opencl/opencl_context.hpp"

#include <new>
#include <utility>

#include "backends/opencl/opencl_errors.hpp"
#include "core/no_host_memory.hpp"
#include "core/spans_in_flight.hpp"

namespace tern::opencl {

Result<std::shared_ptr<Context>> Context::open(const Table& table, const DeviceFacts& facts,
                                               std::string spec) noexcept {
  try {
    const std::shared_ptr<Context> context(new Context(table, facts, std::move(spec)));
    cl_int code = result::success;
    context->handle_ = table.clCreateContext(nullptr, 1, &facts.id, nullptr, nullptr, &code);
    if (context->handle_ == nullptr) {
      // No device is open yet that could be lost.
      return call_failed(context->spec_, "clCreateContext", code);
    }
    return context;
  } catch (const std::bad_alloc&) {
    return no_host_memory(sizeof(Context), "an OpenCL context");
  }
}

Context::~Context() {
  spans_lost(this);
  if (handle_ != nullptr) table_.clReleaseContext(handle_);
}

Result<void> Context::check(const char* call, cl_int code) noexcept {
  if (code == result::success) return {};
  if (is_loss(code)) return lose(call, code);
  return call_failed(spec_, call, code);
}

Result<void> Context::check_alive() const noexcept {
  if (!is_lost()) return {};
  const std::lock_guard lock(mutex_);
  return *cause_;
}

Failure Context::lose(const char* call, cl_int code) noexcept {
  const std::lock_guard lock(mutex_);
  if (!cause_) cause_ = device_lost(spec_, call, code);
  is_lost_.store(true, std::memory_order_release);
  spans_lost(this);
  return *cause_;
}

}  // namespace tern::opencl
