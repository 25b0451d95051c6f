// What everything of one opened OpenCL device shares: the table, the context, and whether the
// device is lost.
//
// It lives as long as anything that was made in it, events of ended streams included. The table it
// refers to lives for ever. Thread-safe.

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

  /// Success, or the failure of `call`. A result that says that the device is gone is kept.
  [[nodiscard]] Result<void> check(const char* call, cl_int code) noexcept;
  /// Success, or what the device was lost by. Every call that would reach the device asks first.
  [[nodiscard]] Result<void> check_alive() const noexcept;
  [[nodiscard]] bool is_lost() const noexcept { return is_lost_.load(std::memory_order_acquire); }
  /// The first cause stays.
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
