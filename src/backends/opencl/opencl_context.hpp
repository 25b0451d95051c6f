// The shared state of one opened OpenCL device: the function table, the context, and whether the
// device is lost.
//
// It lives as long as any object that was created in it, including events of ended streams. The
// table lives for ever. Thread-safe.

#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "backends/opencl/opencl_devices.hpp"
#include "backends/opencl/opencl_table.hpp"
#include "tern/core/result.hpp"

namespace tern::opencl {

class Context {
 public:
  [[nodiscard]] static Result<std::shared_ptr<Context>> open(const Table& table,
                                                             const DeviceFacts& facts,
                                                             std::string spec) noexcept;
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  [[nodiscard]] const Table& table() const noexcept { return table_; }
  [[nodiscard]] cl_context handle() const noexcept { return handle_; }
  [[nodiscard]] const DeviceFacts& facts() const noexcept { return facts_; }
  [[nodiscard]] const std::string& spec() const noexcept { return spec_; }

  /// Returns success or the failure of `call`. Records the loss if the result means that the device
  /// is gone.
  [[nodiscard]] Result<void> check(const char* call, cl_int code) noexcept;
  /// Returns success, or the cause of the loss. Call it before every call that reaches the device.
  [[nodiscard]] Result<void> check_alive() const noexcept;
  [[nodiscard]] bool is_lost() const noexcept { return is_lost_.load(std::memory_order_acquire); }
  /// Only the first cause is kept.
  Failure lose(const char* call, cl_int code) noexcept;

 private:
  Context(const Table& table, const DeviceFacts& facts, std::string spec)
      : table_(table), facts_(facts), spec_(std::move(spec)) {}

  const Table& table_;
  const DeviceFacts facts_;
  const std::string spec_;
  cl_context handle_ = nullptr;

  std::atomic<bool> is_lost_ = false;
  mutable std::mutex mutex_;
  std::optional<Failure> cause_;  // guarded by mutex_
};

}  // namespace tern::opencl
