// The cost of a budget: threads that allocate through one budget, and through a tree of three
// levels.

#include <fmt/format.h>

#include "bench/contestants.hpp"
#include "bench/slot_threads.hpp"
#include "tern/core/bytes.hpp"
#include "tern/memory/budget_resource.hpp"

namespace tern::bench {
namespace {

void run(Context& context) {
  const Stage stage(context);
  const std::size_t capacity = fitting_bytes(context, stage.device, 32 * gib);
  const ResourceHandle pool = make_filled_pool(stage.device, capacity);
  const BudgetLimit limit = BudgetLimit::bytes(capacity);
  const BudgetHandle shared = Budget::make("shared", limit);
  const BudgetHandle process = Budget::make("process", limit);
  const BudgetHandle tenant = Budget::make("tenant", limit, {.parent = process});
  const BudgetHandle task = Budget::make("task", limit, {.parent = tenant});
  const double seconds = context.seconds_per_figure() / 2;
  for (const std::size_t threads : {1u, 4u, 16u}) {
    const auto mops = [&](Resource& resource) {
      const double score = slot_mops(resource, stage.streams, threads, 1 * mib, seconds);
      stage.device.synchronize();
      return score;
    };
    context.step(fmt::format("{} threads", threads));
    const double plain = mops(*pool);
    const auto add = [&](const char* depth, const BudgetHandle& budget) {
      BudgetResource over_pool(pool, budget);
      context.add({.name = fmt::format("{} thread{}, {}", threads, threads == 1 ? "" : "s", depth),
                   .value = mops(over_pool),
                   .unit = "M/s",
                   .baseline_name = "without a budget",
                   .baseline = plain});
      static_cast<void>(budget->try_wait_for_pending());
    };
    add("one shared budget", shared);
    add("three levels", task);
  }
}

const Registration registered({"pool.budget", "threads through budgets of one and three levels",
                               run});

}  // namespace
}  // namespace tern::bench
