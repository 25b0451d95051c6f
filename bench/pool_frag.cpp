// A pool at nine tenths of its limit: does it fail a request that it could serve, and how much of
// the free memory can one block use?

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "bench/fragmented_pool.hpp"
#include "tern/core/bytes.hpp"

namespace tern::bench {
namespace {

constexpr double goal_of_pages = 95, goal_failure_us = 20;

struct Start {
  const char* name;
  std::size_t initial_bytes;
};

/// The goal for the largest block, in percent of the memory that is not live. It depends on the
/// sizes and on whether half of the blocks were freed.
double goal_of_free(Sizes sizes, bool is_half) {
  if (sizes == Sizes::uniform) return is_half ? 55 : 50;
  return is_half ? 80 : 25;
}

/// The mean of a figure over several runs.
class Mean {
 public:
  void add(double value) {
    sum_ += value;
    least_ = count_ == 0 ? value : std::min(least_, value);
    ++count_;
  }
  void report(Context& context, std::string name, double goal) const {
    if (count_ == 0) return;
    context.add({.name = std::move(name),
                 .value = sum_ / static_cast<double>(count_),
                 .unit = "%",
                 .others = {{"the least", least_}},
                 .goal = goal});
  }

 private:
  std::size_t count_ = 0;
  double sum_ = 0, least_ = 0;
};

/// The largest block that can be allocated, relative to the free whole pages and to all free
/// memory.
struct Largest {
  Mean of_pages, of_free;

  void measure(Fragmented& pool, const Load& load) {
    const auto pages = static_cast<double>(pool.free_page_bytes());
    const auto free = static_cast<double>(load.cap_bytes - pool.live_bytes());
    const auto largest = static_cast<double>(pool.largest_bytes());
    if (pages > 0) of_pages.add(100 * largest / pages);
    of_free.add(100 * largest / free);
  }
  void report(Context& context, const std::string& of, double goal_of_all) const {
    of_pages.report(context, fmt::format("{} (of pages)", of), goal_of_pages);
    of_free.report(context, fmt::format("{} (of free)", of), goal_of_all);
  }
};

void run_load(Context& context, const Stage& stage, const Start& start, Load load,
              std::size_t seeds) {
  const std::string what = fmt::format("{}, {}", start.name, load.text());
  std::size_t failures = 0;
  double failure_us = 0;
  Scores ns;
  Largest full, half;
  for (load.seed = 1; load.seed <= seeds; ++load.seed) {
    context.step(fmt::format("{}, seed {} of {}", what, load.seed, seeds));
    const auto pool = make_pool(
        stage.device, {.limit_bytes = load.cap_bytes, .initial_bytes = start.initial_bytes});
    Fragmented fragmented(*pool, stage, load);
    failures += fragmented.failures();
    failure_us += fragmented.us_per_failure() * static_cast<double>(fragmented.failures());
    if (ns.empty()) {
      const ResourceHandle malloc = make_malloc(stage.device), null = make_null(stage.device);
      ns = {fragmented.ns_per_step(), Fragmented(*malloc, stage, load).ns_per_step(),
            Fragmented(*null, stage, load).ns_per_step()};
    }
    full.measure(fragmented, load);
    fragmented.free_half();
    half.measure(fragmented, load);
  }
  context.add({.name = fmt::format("{}, failures", what),
               .value = static_cast<double>(failures),
               .better = Better::lower,
               .goal = 0});
  if (failures > 0) {
    context.add({.name = fmt::format("{}, a failure", what),
                 .value = failure_us / static_cast<double>(failures),
                 .unit = "us",
                 .better = Better::lower,
                 .goal = goal_failure_us});
  }
  context.add(compare(fmt::format("{}, a step", what), ns, "ns", Better::lower));
  full.report(context, fmt::format("{}, largest", what), goal_of_free(load.sizes, false));
  half.report(context, fmt::format("{}, half", what), goal_of_free(load.sizes, true));
}

void run(Context& context) {
  const Stage stage(context);
  const std::size_t cap = context.usual_or_quick(4 * gib, gib);
  const std::size_t steps = context.usual_or_quick<std::size_t>(20'000, 1'000);
  const std::size_t seeds = context.usual_or_quick<std::size_t>(8, 2);
  for (const Start& start : {Start{"fixed", cap}, Start{"grow", cap / 16}}) {
    for (const Sizes sizes : {Sizes::uniform, Sizes::logarithmic}) {
      for (const std::size_t streams : {1u, 4u}) {
        run_load(context, stage, start, {sizes, streams, cap, steps}, seeds);
      }
    }
  }
  context.note(
      fmt::format("each is {} runs with other random numbers: all failures, the mean of "
                  "what is left, and the least.",
                  seeds));
}

const Registration registered({"pool.frag", "failures and the largest block at 90 % load", run});

}  // namespace
}  // namespace tern::bench
