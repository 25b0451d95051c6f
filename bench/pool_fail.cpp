// How fast a pool rejects a request at its limit: the first time, and again.

#include <fmt/format.h>

#include <chrono>
#include <string>
#include <vector>

#include "bench/fragmented_pool.hpp"
#include "bench/measure.hpp"
#include "tern/core/bytes.hpp"

namespace tern::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double goal_first_us = 20, goal_again_us = 1;

/// Returns the time of one request, which must fail.
double refusal_us(Resource& resource, StreamRef stream, std::size_t bytes) {
  const Clock::time_point start = Clock::now();
  const Result<Block> block = resource.try_allocate({.bytes = bytes, .stream = stream});
  const double us = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
  if (block) {
    resource.try_deallocate(*block, stream).value();
    raise(Failure(ErrorCode::invalid_argument, "{requested} were granted and should not have been.")
              .with_bytes("requested", bytes));
  }
  return us;
}

void add_refusals(Context& context, const Stage& stage, const std::string& what, Resource& pool,
                  Fragmented& fragmented, std::size_t bytes) {
  const std::size_t rounds = context.usual_or_quick<std::size_t>(100, 5);
  const ResourceHandle malloc = make_malloc(stage.device);
  std::vector<double> first, again, of_malloc;
  for (std::size_t round = 0; round < rounds; ++round) {
    fragmented.stir();
    stage.device.synchronize();
    first.push_back(refusal_us(pool, stage.streams[0], bytes));
    for (int i = 0; i < 10; ++i) {
      again.push_back(refusal_us(pool, stage.streams[0], bytes));
      of_malloc.push_back(refusal_us(*malloc, stage.streams[0], max_request_bytes));
    }
  }
  const auto add = [&](const char* when, const std::vector<double>& us, double goal) {
    context.add({.name = fmt::format("{}, {}", what, when),
                 .value = median(us),
                 .unit = "us",
                 .better = Better::lower,
                 .baseline_name = "malloc",
                 .baseline = median(of_malloc),
                 .goal = goal});
  };
  add("first", first, goal_first_us);
  add("again", again, goal_again_us);
}

void run(Context& context) {
  const Stage stage(context);
  const std::size_t cap = context.usual_or_quick(4 * gib, gib);
  const std::size_t steps = context.usual_or_quick<std::size_t>(20'000, 1'000);
  for (const Sizes sizes : {Sizes::uniform, Sizes::logarithmic}) {
    for (const std::size_t streams : {1u, 4u}) {
      const Load load = {sizes, streams, cap, steps};
      context.step(load.text());
      const auto pool = make_filled_pool(stage.device, cap);
      Fragmented fragmented(*pool, stage, load);
      const std::size_t free = cap - fragmented.live_bytes();
      add_refusals(context, stage, fmt::format("{}, over limit", load.text()), *pool, fragmented,
                   free + 2 * mib);
      // A request for less than the free bytes, but more than the free whole pages.
      const std::size_t largest = fragmented.largest_bytes();
      if (largest + 4 * mib >= free) continue;
      add_refusals(context, stage, fmt::format("{}, in pieces", load.text()), *pool, fragmented,
                   (largest + free) / 2);
    }
  }
}

const Registration registered({"pool.fail", "how long a refused request takes", run});

}  // namespace
}  // namespace tern::bench
