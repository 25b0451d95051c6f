// Random allocations and frees of up to 4 MiB, with much free memory and with little.

#include <fmt/format.h>

#include <chrono>
#include <vector>

#include "bench/contestants.hpp"
#include "bench/measure.hpp"
#include "bench/random.hpp"
#include "tern/core/bytes.hpp"

namespace tern::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct Outcome {
  double ms = 0;
  std::size_t failures = 0;
};

/// The loop of RMM's benchmark. The time includes the random numbers.
Outcome run_random(Resource& resource, StreamRef stream, std::size_t count,
                   std::size_t usage_bytes) {
  constexpr std::size_t max_bytes = 4 * mib;
  constexpr double allocate_chance = 0.73;
  struct Live {
    Block block;
    std::size_t bytes;
  };
  Random random(1);
  Outcome outcome;
  std::vector<Live> live;
  live.reserve(count);
  std::size_t made = 0, live_bytes = 0;
  const auto free_one = [&] {
    const std::size_t i = random.below(live.size());
    resource.try_deallocate(live[i].block, stream).value();
    live_bytes -= live[i].bytes;
    live[i] = live.back();
    live.pop_back();
  };

  const Clock::time_point start = Clock::now();
  for (std::size_t step = 0; step < 2 * count; ++step) {
    const std::size_t bytes = random.between(1, max_bytes);
    const bool allocates = live.empty() || (random.chance(allocate_chance) && made < count &&
                                            live_bytes + bytes < usage_bytes);
    if (!allocates) {
      free_one();
      continue;
    }
    const Result<Block> block = resource.try_allocate({.bytes = bytes, .stream = stream});
    if (block) {
      live.push_back({*block, bytes});
      live_bytes += bytes;
      ++made;
    } else {
      ++outcome.failures;
      if (!live.empty()) free_one();
    }
  }
  outcome.ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  while (!live.empty()) free_one();
  return outcome;
}

struct Usage {
  const char* name;
  std::size_t capacity_bytes;
  std::size_t usage_bytes;
  bool is_tight = false;
};

void run_usage(Context& context, const Stage& stage, const Usage& usage) {
  constexpr std::size_t rounds = 3;
  const std::size_t count = context.usual_or_quick<std::size_t>(50'000, 500);
  const StreamRef stream = stage.device.default_stream();
  std::vector<std::vector<double>> times;
  std::size_t failures = 0;
  for (std::size_t round = 0; round < rounds; ++round) {
    context.step(fmt::format("{}, round {} of {}", usage.name, round + 1, rounds));
    const Contestants all =
        contestants(context, make_filled_pool(stage.device, usage.capacity_bytes));
    times.resize(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Outcome outcome = run_random(*all[i], stream, count, usage.usage_bytes);
      stream.synchronize();
      times[i].push_back(outcome.ms);
      if (i == 0) failures += outcome.failures;
    }
  }
  Scores ms;
  for (std::vector<double>& of_one : times) ms.push_back(median(std::move(of_one)));
  context.add(
      compare(fmt::format("{}, {} allocations", usage.name, count), ms, "ms", Better::lower));
  Figure failed = {.name = fmt::format("{}, failures", usage.name),
                   .value = static_cast<double>(failures),
                   .better = Better::lower};
  if (usage.is_tight) failed.goal = 0;
  context.add(std::move(failed));
}

void run(Context& context) {
  const Stage stage(context);
  const std::size_t roomy = fitting_bytes(context, stage.device, 32 * gib);
  const std::size_t tight = fitting_bytes(context, stage.device, 8 * gib);
  run_usage(context, stage, {"up to 8 GiB", roomy, 8 * gib});
  run_usage(context, stage, {"up to 16,000 MiB", roomy, 16'000 * mib});
  run_usage(context, stage, {"tight: 90 % of 8 GiB", tight, tight / 10 * 9, true});
}

const Registration registered({"pool.random", "random sizes and lifetimes, roomy and tight", run});

}  // namespace
}  // namespace tern::bench
