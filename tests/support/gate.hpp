// A Gate blocks a stream at one point until the test opens it. So a test can check asynchronous
// behaviour without sleeping: while the gate is closed, no later work of the stream has run.
//
// The destructor opens the gate. A blocked stream may pass the gate after that; the gate keeps the
// needed state alive. On most devices, a gate is a host function that blocks. On a simulated device
// it is sim::hold, because a blocking function would block the whole simulation.

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

  /// Blocks the stream: its later work begins after open().
  void hold(StreamRef stream) {
    const Device device = stream.device();
    if (is_simulated(device)) {
      holds_.emplace_back(device, sim::hold(stream));
      return;
    }
    auto state = std::make_unique<std::shared_ptr<State>>(state_);
    stream.call(pass, state.get());
    static_cast<void>(state.release());  // pass() owns it now
  }

  void open() {
    for (const auto& [device, hold] : std::exchange(holds_, {})) sim::resume(device, hold);
    const std::lock_guard lock(state_->mutex);
    state_->is_open = true;
    state_->changed.notify_all();
  }

  /// Waits until this many streams have reached the gate.
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
