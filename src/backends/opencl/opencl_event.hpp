// A Position is a point in a stream: the event of the last command before it.
//
// Queues are in order, so one event covers everything submitted before. Sharing a position makes no
// OpenCL call, and the event is released with the last reference. Null is the point before all
// work. Thread-safe.

#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "backends/opencl/opencl_context.hpp"
#include "tern/core/result.hpp"

namespace tern::opencl {

class Completion {
 public:
  explicit Completion(std::shared_ptr<Context> context) noexcept : context_(std::move(context)) {}
  ~Completion();
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;

  [[nodiscard]] const std::shared_ptr<Context>& context() const noexcept { return context_; }
  [[nodiscard]] cl_event event() const noexcept { return event_; }
  /// The address to which the OpenCL call writes the event.
  [[nodiscard]] cl_event* slot() noexcept { return &event_; }

  /// Waits for the work. A command that failed while it ran loses the device.
  [[nodiscard]] Result<bool> is_passed() const noexcept;
  [[nodiscard]] Result<void> wait() const noexcept;
  /// Waits and retries after failures, for callers that cannot continue before the work is done. If
  /// the driver keeps failing, the device is lost.
  [[nodiscard]] Result<void> wait_until_done() const noexcept;

 private:
  const std::shared_ptr<Context> context_;
  cl_event event_ = nullptr;
  mutable std::atomic<bool> is_known_passed_ = false;
};

using Position = std::shared_ptr<const Completion>;

[[nodiscard]] inline Result<bool> is_passed(const Position& position) noexcept {
  if (!position) return true;
  return position->is_passed();
}
[[nodiscard]] inline Result<void> wait(const Position& position) noexcept {
  if (!position) return {};
  return position->wait();
}

[[nodiscard]] inline Result<void> wait_until_done(const Position& position) noexcept {
  if (!position) return {};
  return position->wait_until_done();
}

}  // namespace tern::opencl
