// One thread and many streams: each block is freed on another stream than the one that used it.

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <string>
#include <vector>

#include "bench/contestants.hpp"
#include "bench/random.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/event.hpp"

namespace tern::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t goal_streams = 16;
constexpr double goal_mops = 5, goal_share_of_null = 0.7;

class Ring {
 public:
  Ring(Resource& resource, const Stage& stage, std::size_t streams, bool hands_off)
      : resource_(resource), stage_(stage), streams_(streams), hands_off_(hands_off) {
    if (!hands_off) return;
    for (std::size_t i = 0; i < slots_.size(); ++i) events_.emplace_back(stage.device);
  }
  ~Ring() {
    for (std::size_t i = 0; i < slots_.size(); ++i) free(i);
    stage_.device.synchronize();
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  /// Makes one call of the resource in the first round, two in later rounds.
  void step(std::size_t i) {
    const std::size_t slot = i % slots_.size();
    free(slot);
    const std::size_t stream = i % streams_;
    const std::size_t bytes = random_.log_uniform(256, 1 * mib);
    slots_[slot] = {
        resource_.try_allocate({.bytes = bytes, .stream = stage_.streams[stream]}).value(), stream};
  }

 private:
  struct Slot {
    Block block = {};
    std::size_t stream = 0;
  };

  void free(std::size_t at) {
    Slot& slot = slots_[at];
    if (!slot.block) return;
    const StreamRef from = stage_.streams[slot.stream];
    const StreamRef to = stage_.streams[(slot.stream + 1) % streams_];
    if (hands_off_) {
      from.record(events_[at]);
      to.wait(events_[at]);
    }
    resource_.try_deallocate(slot.block, to).value();
    slot.block = {};
  }

  Resource& resource_;
  const Stage& stage_;
  const std::size_t streams_;
  const bool hands_off_;
  Random random_{1};
  std::array<Slot, 32> slots_ = {};
  std::vector<Event> events_;
};

double ring_mops(Resource& resource, const Stage& stage, std::size_t streams, bool hands_off,
                 double seconds) {
  constexpr std::size_t warm_up_steps = 128, steps_per_look = 32;
  Ring ring(resource, stage, streams, hands_off);
  std::size_t i = 0;
  while (i < warm_up_steps) ring.step(i++);
  const Clock::time_point start = Clock::now();
  double taken = 0;
  do {
    for (std::size_t last = i + steps_per_look; i < last; ++i) ring.step(i);
    taken = std::chrono::duration<double>(Clock::now() - start).count();
  } while (taken < seconds);
  return 2 * static_cast<double>(i - warm_up_steps) / taken / 1e6;
}

void run(Context& context) {
  const Stage stage(context);
  const std::size_t capacity = fitting_bytes(context, stage.device, 32 * gib);
  const Contestants all = contestants(context, make_filled_pool(stage.device, capacity));
  for (const bool hands_off : {false, true}) {
    for (const std::size_t streams : {1u, 4u, 16u}) {
      if (hands_off && streams == 1) continue;
      const std::string what = fmt::format("{} stream{}{}", streams, streams == 1 ? "" : "s",
                                           hands_off ? ", handed off by events" : "");
      context.step(what);
      Scores mops;
      for (const ResourceHandle& one : all) {
        mops.push_back(
            ring_mops(*one, stage, streams, hands_off, context.seconds_per_figure() / 2));
      }
      Figure figure = compare(what, mops, "M/s", Better::higher);
      if (streams == goal_streams && !hands_off) figure.goal = goal_mops;
      context.add(std::move(figure));
      if (streams != goal_streams || !hands_off) continue;
      context.add({.name = what,
                   .value = mops[0],
                   .unit = "M/s",
                   .baseline_name = "null",
                   .baseline = mops[2],
                   .goal_ratio = goal_share_of_null});
    }
  }
}

const Registration registered({"pool.xstream", "blocks freed on another stream than their own",
                               run});

}  // namespace
}  // namespace tern::bench
