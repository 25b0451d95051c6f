// The primary context of one device: the one the CUDA runtime uses too, so that pointers, streams
// and events of other libraries in the process mean the same here.
//
// It is retained when the device is first opened and never released: the last release would reset
// the device under everybody else. Its flags stay as they are.
//
// Every primitive opens a ContextScope before it calls the driver. A scope makes the context
// current if it is not, and puts back what was; it keeps its calls from breaking a capture into a
// graph, this thread's or another's, which the driver would let even a question about an event do;
// and it refuses where the driver must not be called any more: when the process is ending, or the
// device is lost. The first error that poisons the context is kept, with the call that saw it, and
// every later scope fails at once with it. Thread-safe.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "backends/cuda/driver.hpp"
#include "backends/cuda/driver_result.hpp"
#include "tern/core/result.hpp"

namespace tern::cuda {

class Context {
 public:
  /// Retains the primary context of the device.
  [[nodiscard]] static Result<std::unique_ptr<Context>> try_open(const Driver& driver, int ordinal,
                                                                 std::string spec);

  [[nodiscard]] const DriverTable& cu() const noexcept { return driver_.table; }
  [[nodiscard]] const Driver& driver() const noexcept { return driver_; }
  [[nodiscard]] CUcontext handle() const noexcept { return handle_; }
  [[nodiscard]] CUdevice device() const noexcept { return device_; }
  [[nodiscard]] const std::string& spec() const noexcept { return spec_; }

  /// Zero for an attribute the driver does not know.
  [[nodiscard]] int attribute(CUdevice_attribute attribute) const noexcept;

  /// The failure of a call that was made in a scope; success for success. Notes a lost device.
  [[nodiscard]] Result<void> check(CUresult result, const char* call,
                                   std::size_t requested_bytes = 0) noexcept;

  [[nodiscard]] bool is_lost() const noexcept { return is_lost_.load(std::memory_order_acquire); }
  /// Is there a driver to give things back to? If not, giving back is bookkeeping.
  [[nodiscard]] bool can_call() const noexcept { return !is_lost() && !has_ended(); }

 private:
  friend class ContextScope;
  Context(const Driver& driver, CUdevice device, CUcontext handle, std::string spec)
      : driver_(driver), device_(device), handle_(handle), spec_(std::move(spec)) {}

  [[nodiscard]] Failure why_not() noexcept;

  const Driver& driver_;
  const CUdevice device_;
  const CUcontext handle_;
  const std::string spec_;

  std::atomic<bool> is_lost_ = false;
  std::mutex loss_mutex_;
  std::optional<Failure> loss_;  // guarded by loss_mutex_
};

class ContextScope {
 public:
  explicit ContextScope(Context& context) noexcept;
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

  [[nodiscard]] explicit operator bool() const noexcept { return !failure_; }
  [[nodiscard]] const Failure& failure() const noexcept { return *failure_; }

 private:
  Context& context_;
  std::optional<Failure> failure_;
  bool has_pushed_ = false;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // while it lasts, and what was
  bool has_changed_mode_ = false;
};

}  // namespace tern::cuda
