// A Position is a point in a stream: the event of the last command before it.
//
// Queues are in order, so that one event stands for everything submitted before. Sharing a position
// costs no call of OpenCL, and the event ends with the last share. Null is the point before all
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
  /// Where the call that makes the event writes it.
  [[nodiscard]] cl_event* slot() noexcept { return &event_; }

  /// A command that failed while it ran loses the device.
  [[nodiscard]] Result<bool> is_passed() const noexcept;
  [[nodiscard]] Result<void> wait() const noexcept;
  /// For whoever cannot go on before the work is done. A refusal says nothing about that, so it
  /// tries again; a driver that goes on refusing has lost the device.
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
