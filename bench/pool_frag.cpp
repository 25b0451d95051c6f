// A pool at nine tenths of its limit: does a request fail that should not, and how much of the free
// memory can one block have?

#include <fmt/format.h>

#include "bench/fragmented_pool.hpp"
#include "tern/core/bytes.hpp"

namespace tern::bench {
namespace {

constexpr double goal_of_pages = 95, goal_failure_us = 20;

struct Start {
  const char* name;
  std::size_t initial_bytes;
};

/// Of the memory that is not live, by sizes and whether half of the blocks were freed.
double goal_of_free(Sizes sizes, bool is_half) {
  if (sizes == Sizes::uniform) return is_half ? 55 : 50;
  return is_half ? 80 : 25;
}

void add_largest(Context& context, const std::string& what, Fragmented& pool, const Load& load,
                 bool is_half) {
  const std::string of = fmt::format("{}, {}", what, is_half ? "half" : "largest");
  context.step(of);
  const auto pages = static_cast<double>(pool.free_page_bytes());
  const auto free = static_cast<double>(load.cap_bytes - pool.live_bytes());
  const auto largest = static_cast<double>(pool.largest_bytes());
  if (pages > 0) {
    context.add({.name = fmt::format("{} (of pages)", of),
                 .value = 100 * largest / pages,
                 .unit = "%",
                 .goal = goal_of_pages});
  }
  context.add({.name = fmt::format("{} (of free)", of),
               .value = 100 * largest / free,
               .unit = "%",
               .goal = goal_of_free(load.sizes, is_half)});
}

void run_load(Context& context, const Stage& stage, const Start& start, const Load& load) {
  const std::string what = fmt::format("{}, {}", start.name, load.text());
  context.step(what);
  const auto pool = make_pool(
      stage.device, {.limit_bytes = load.cap_bytes, .initial_bytes = start.initial_bytes});
  Fragmented fragmented(*pool, stage, load);
  context.add({.name = fmt::format("{}, failures", what),
               .value = static_cast<double>(fragmented.failures()),
               .better = Better::lower,
               .goal = 0});
  if (fragmented.failures() > 0) {
    context.add({.name = fmt::format("{}, a failure", what),
                 .value = fragmented.us_per_failure(),
                 .unit = "us",
                 .better = Better::lower,
                 .goal = goal_failure_us});
  }
  const ResourceHandle malloc = make_malloc(stage.device), null = make_null(stage.device);
  const Scores ns = {fragmented.ns_per_step(), Fragmented(*malloc, stage, load).ns_per_step(),
                     Fragmented(*null, stage, load).ns_per_step()};
  context.add(compare(fmt::format("{}, a step", what), ns, "ns", Better::lower));
  add_largest(context, what, fragmented, load, false);
  fragmented.free_half();
  add_largest(context, what, fragmented, load, true);
}

void run(Context& context) {
  const Stage stage(context);
  const std::size_t cap = context.usual_or_quick(4 * gib, gib);
  const std::size_t steps = context.usual_or_quick<std::size_t>(20'000, 1'000);
  for (const Start& start : {Start{"fixed", cap}, Start{"grow", cap / 16}}) {
    for (const Sizes sizes : {Sizes::uniform, Sizes::logarithmic}) {
      for (const std::size_t streams : {1u, 4u}) {
        run_load(context, stage, start, {sizes, streams, cap, steps});
      }
    }
  }
}

const Registration registered({"pool.frag", "failures and the largest block at 90 % load", run});

}  // namespace
}  // namespace tern::bench
