// A Gate holds a stream at one point until the test opens it, so that what is asynchronous can be
// tested without sleeping: while the gate is closed, nothing behind it has happened.
//
// It opens when it ends. What it held may pass later than that; it keeps what it needs alive. On
// most devices it is a host function that blocks; a simulated device has its own way to hold a
// stream, because a blocking function would hold the simulation.

#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "support/simulated.hpp"
#include "tern/backends/sim.hpp"
#include "tern/device/stream.hpp"

namespace tern::test {

class Gate {
 public:
  Gate() = default;
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  ~Gate() { open(); }

  /// Later work of the stream begins after open().
  void hold(StreamRef stream) {
    const Device device = stream.device();
    if (is_simulated(device)) {
      holds_.emplace_back(device, sim::hold(stream));
      return;
    }
    auto state = std::make_unique<std::shared_ptr<State>>(state_);
    stream.call(pass, state.get());
    static_cast<void>(state.release());  // pass() has it now
  }

  void open() {
    for (const auto& [device, hold] : std::exchange(holds_, {})) sim::resume(device, hold);
    const std::lock_guard lock(state_->mutex);
    state_->is_open = true;
    state_->changed.notify_all();
  }

  /// Returns when as many streams stand at the gate, or have passed it.
  void wait_until_reached(std::size_t streams = 1) {
    if (!holds_.empty()) {
      for (const auto& [device, hold] : holds_) sim::run_to_hold(device, hold);
      return;
    }
    std::unique_lock lock(state_->mutex);
    state_->changed.wait(lock, [&] { return state_->reached >= streams; });
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool is_open = false;
    std::size_t reached = 0;
  };

  static void pass(void* context) {
    const std::unique_ptr<std::shared_ptr<State>> held(
        static_cast<std::shared_ptr<State>*>(context));
    State& state = **held;
    std::unique_lock lock(state.mutex);
    ++state.reached;
    state.changed.notify_all();
    state.changed.wait(lock, [&] { return state.is_open; });
  }

  std::vector<std::pair<Device, std::uint64_t>> holds_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace tern::test
