// A Stall blocks streams at one point while it lives: work that is submitted later does not run
// before the Stall is destroyed. It is a host function that blocks. On a simulated device it is
// sim::hold.

#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "tern/backends/sim.hpp"
#include "tern/device/stream.hpp"

namespace tern::bench {

class Stall {
 public:
  explicit Stall(std::span<const Stream> streams) : device_(streams.front().device()) {
    const bool is_simulated = device_.info().backend == "sim";
    // Here streams are meant to stay blocked for long, so the simulated device must not report it.
    if (is_simulated) sim::set_patience(device_, hour_ms);
    for (const Stream& stream : streams) {
      if (is_simulated) {
        holds_.push_back(sim::hold(stream));
      } else {
        stream.call(wait, &is_over_);
      }
    }
  }
  ~Stall() {
    is_over_ = true;
    is_over_.notify_all();
    for (const std::uint64_t hold : holds_) sim::resume(device_, hold);
    // The host functions read is_over_ until they return.
    static_cast<void>(device_.try_synchronize());
  }
  Stall(const Stall&) = delete;
  Stall& operator=(const Stall&) = delete;

 private:
  static constexpr std::uint64_t hour_ms = 3'600'000;

  static void wait(void* flag) { static_cast<std::atomic<bool>*>(flag)->wait(false); }

  const Device device_;
  std::atomic<bool> is_over_ = false;
  std::vector<std::uint64_t> holds_;
};

}  // namespace tern::bench
