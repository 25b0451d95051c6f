// Measures how long a pool takes to be made, to be destroyed, and to grow, beside the driver.

#include <fmt/format.h>

#include <chrono>
#include <string>
#include <vector>

#include "bench/contestants.hpp"
#include "bench/measure.hpp"
#include "tern/core/bytes.hpp"

namespace tern::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t block_bytes = 20 * mib;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// Allocates `bytes` in blocks of `piece` and frees them. Returns the time of the allocations.
double ms_to_fill(Resource& resource, StreamRef stream, std::size_t bytes, std::size_t piece) {
  std::vector<Block> blocks;
  blocks.reserve(bytes / piece);
  const Clock::time_point start = Clock::now();
  for (std::size_t held = 0; held + piece <= bytes; held += piece) {
    blocks.push_back(resource.allocate({.bytes = piece, .stream = stream}));
  }
  const double ms = ms_since(start);
  for (const Block& block : blocks) resource.deallocate(block, stream);
  stream.synchronize();
  return ms;
}

void run(Context& context) {
  const Stage stage(context);
  const StreamRef stream = stage.streams[0];
  const std::size_t bytes =
      fitting_bytes(context, stage.device, context.usual_or_quick(8 * gib, 256 * mib));
  const std::size_t rounds = context.usual_or_quick<std::size_t>(5, 1);
  std::vector<double> made, destroyed, cold, whole_by_driver, cold_by_driver;
  for (std::size_t round = 0; round < rounds; ++round) {
    context.step(fmt::format("round {} of {}", round + 1, rounds));
    {
      const Clock::time_point start = Clock::now();
      auto pool = make_pool(stage.device, {.initial_bytes = bytes});
      made.push_back(ms_since(start));
      const Clock::time_point end = Clock::now();
      pool.reset();
      destroyed.push_back(ms_since(end));
    }
    cold.push_back(ms_to_fill(*make_pool(stage.device, {}), stream, bytes, block_bytes));
    if (const ResourceHandle plain = make_driver_plain(context, stage.device)) {
      whole_by_driver.push_back(ms_to_fill(*plain, stream, bytes, bytes));
    }
    if (const ResourceHandle driver_pool = make_driver_pool(context, stage.device)) {
      cold_by_driver.push_back(ms_to_fill(*driver_pool, stream, bytes, block_bytes));
    }
  }
  const auto add = [&](std::string what, std::vector<double> times, double goal,
                       const char* baseline, std::vector<double> baseline_times) {
    Figure figure = {.name = fmt::format("{}, {}", format_bytes(bytes), what),
                     .value = median(std::move(times)),
                     .unit = "ms",
                     .better = Better::lower,
                     .goal = goal};
    if (!baseline_times.empty()) {
      figure.baseline_name = baseline;
      figure.baseline = median(std::move(baseline_times));
    }
    context.add(std::move(figure));
  };
  add("pool made", made, 5, "cuMemAlloc", whole_by_driver);
  add("pool destroyed", destroyed, 10, "", {});
  add("cold, in blocks of 20 MiB", cold, 10, "cuMemAllocAsync", cold_by_driver);
}

const Registration registered({"pool.growth", "a pool is made, grows and is destroyed", run});

}  // namespace
}  // namespace tern::bench
