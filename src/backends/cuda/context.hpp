// The primary context of a device. The CUDA runtime uses the same context, so pointers, streams and
// events of other libraries in the process are valid in it.
//
// The context is retained when the device is first opened and never released, because the last
// release would reset the device for all other users. Its flags are not changed.
//
// Every primitive opens a ContextScope before it calls the driver. A scope
// - makes the context current if necessary, and restores the previous context at its end;
// - keeps its calls from invalidating a graph capture of this or another thread, which even an
//   event query can do;
// - fails if the driver must not be called: when the process is ending or the device is lost. The
//   first error that makes the context unusable is kept with its call, and every later scope fails
//   with it.
//
// Thread-safe.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
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
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  /// Ends the records of queued operations that the driver never completed, for a memory tool.
  ~Context();

  [[nodiscard]] const DriverTable& cu() const noexcept { return driver_.table; }
  [[nodiscard]] const Driver& driver() const noexcept { return driver_; }
  [[nodiscard]] CUcontext handle() const noexcept { return handle_; }
  [[nodiscard]] CUdevice device() const noexcept { return device_; }
  [[nodiscard]] const std::string& spec() const noexcept { return spec_; }

  /// Returns 0 for an attribute that the driver does not know.
  [[nodiscard]] int attribute(CUdevice_attribute attribute) const noexcept;

  /// Converts the result of a call in a scope to success or a failure. Records a lost device.
  [[nodiscard]] Result<void> check(CUresult result, const char* call,
                                   std::size_t requested_bytes = 0) noexcept;

  [[nodiscard]] bool is_lost() const noexcept { return is_lost_.load(std::memory_order_acquire); }
  /// Returns whether the driver may still be called. If not, releasing an object only updates
  /// Tern's records.
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
  // First the mode of the scope; after the exchange, the previous mode.
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  bool has_changed_mode_ = false;
};

}  // namespace tern::cuda
