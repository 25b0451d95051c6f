#include "bench/slot_threads.hpp"

#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <latch>
#include <thread>
#include <vector>

#include "bench/random.hpp"

namespace tern::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t min_bytes = 256, warm_up_steps = 256;

class Slots {
 public:
  Slots(Resource& resource, StreamRef stream, std::size_t max_bytes, std::uint64_t seed)
      : resource_(resource), stream_(stream), max_bytes_(max_bytes), random_(seed) {}

  void step() {
    Block& slot = slots_[random_.below(slots_.size())];
    if (slot) {
      resource_.try_deallocate(slot, stream_).value();
      slot = {};
    } else {
      const std::size_t bytes = random_.log_uniform(min_bytes, max_bytes_);
      slot = resource_.try_allocate({.bytes = bytes, .stream = stream_}).value();
    }
  }
  void clear() {
    for (Block& slot : slots_) {
      if (slot) resource_.try_deallocate(slot, stream_).value();
      slot = {};
    }
  }

 private:
  Resource& resource_;
  const StreamRef stream_;
  const std::size_t max_bytes_;
  Random random_;
  std::array<Block, 64> slots_ = {};
};

}  // namespace

double slot_mops(Resource& resource, std::span<const Stream> streams, std::size_t threads,
                 std::size_t max_bytes, double seconds) {
  std::latch ready(static_cast<std::ptrdiff_t>(threads) + 1);
  std::atomic<bool> is_over = false;
  // Each thread writes its result once, at its end.
  std::vector<std::size_t> steps(threads);
  std::vector<std::exception_ptr> failures(threads);
  const auto work = [&](std::size_t index) {
    bool is_ready = false;
    try {
      Slots slots(resource, streams[index], max_bytes, index + 1);
      for (std::size_t i = 0; i < warm_up_steps; ++i) slots.step();
      is_ready = true;
      ready.arrive_and_wait();
      std::size_t done = 0;
      for (; !is_over.load(std::memory_order_relaxed); ++done) slots.step();
      steps[index] = done;
      slots.clear();
    } catch (...) {
      failures[index] = std::current_exception();
      if (!is_ready) ready.count_down();
    }
  };

  std::vector<std::jthread> workers;
  for (std::size_t i = 0; i < threads; ++i) workers.emplace_back(work, i);
  ready.arrive_and_wait();
  const Clock::time_point start = Clock::now();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  is_over = true;
  // A thread that is not running at the end still finishes its last step. That step and its time
  // count.
  for (std::jthread& worker : workers) worker.join();
  const double taken = std::chrono::duration<double>(Clock::now() - start).count();
  std::size_t all = 0;
  for (std::size_t i = 0; i < threads; ++i) {
    if (failures[i]) std::rethrow_exception(failures[i]);
    all += steps[i];
  }
  return static_cast<double>(all) / taken / 1e6;
}

}  // namespace tern::bench
