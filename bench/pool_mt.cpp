// Many threads, each with its own stream.

#include <fmt/format.h>

#include <string>
#include <thread>

#include "bench/contestants.hpp"
#include "bench/slot_threads.hpp"
#include "tern/core/bytes.hpp"

namespace tern::bench {
namespace {

constexpr double goal_mops = 20;

void run(Context& context) {
  const Stage stage(context);
  const std::size_t capacity = fitting_bytes(context, stage.device, 32 * gib);
  const double seconds = context.seconds_per_figure() / 2;
  context.note(fmt::format("on {} processors.", std::thread::hardware_concurrency()));
  for (const std::size_t max_bytes : {1 * mib, 4 * mib}) {
    const Contestants all = contestants(context, make_filled_pool(stage.device, capacity));
    double of_4 = 0;
    for (const std::size_t threads : {1u, 2u, 4u, 8u, 16u}) {
      const std::string what = fmt::format("to {}, {} thread{}", format_bytes(max_bytes), threads,
                                           threads == 1 ? "" : "s");
      context.step(what);
      Scores mops;
      for (const ResourceHandle& one : all) {
        mops.push_back(slot_mops(*one, stage.streams, threads, max_bytes, seconds));
        stage.device.synchronize();
      }
      Figure figure = compare(what, mops, "M/s", Better::higher);
      if (threads == 16 && max_bytes == 1 * mib) figure.goal = goal_mops;
      context.add(std::move(figure));
      if (threads == 4) of_4 = mops[0];
      if (threads != 16) continue;
      // 16 threads must not be slower than 4, even on a machine with fewer than 4 cores.
      context.add({.name = fmt::format("to {}, 16 threads", format_bytes(max_bytes)),
                   .value = mops[0],
                   .unit = "M/s",
                   .baseline_name = "4 threads",
                   .baseline = of_4,
                   .goal_ratio = 1.0});
    }
  }
}

const Registration registered({"pool.mt", "threads with a stream each", run});

}  // namespace
}  // namespace tern::bench
