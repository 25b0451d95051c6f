// An Arrival is the outcome of work that writes bytes after it was submitted and that can fail,
// such as a copy from a file.
//
// The storage of the bytes and the work share the Arrival. The work sets the outcome once. Until
// then, the bytes count as written, because their users are ordered after the work. After a
// failure, every read of the bytes that begins fails with the cause, until the bytes are written
// again (Storage::expect()). Thread-safe.

#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "tern/core/error.hpp"

namespace tern {

class Arrival {
 public:
  enum class State : std::uint8_t { pending, arrived, failed };

  /// Sets the outcome. Call once.
  void set(const std::optional<Failure>& failure) noexcept {
    failure_ = failure;
    state_.store(failure ? State::failed : State::arrived, std::memory_order_release);
  }
  [[nodiscard]] State state() const noexcept { return state_.load(std::memory_order_acquire); }
  /// Returns the cause. The state is failed.
  [[nodiscard]] const Failure& failure() const noexcept { return *failure_; }

 private:
  std::optional<Failure> failure_;
  std::atomic<State> state_ = State::pending;
};

}  // namespace tern
