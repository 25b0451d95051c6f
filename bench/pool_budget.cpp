// The cost of a budget: one block that is allocated and freed repeatedly, and threads that allocate
// through one budget and through a tree of three levels.

#include <fmt/format.h>

#include <memory>

#include "bench/contestants.hpp"
#include "bench/instruction_count.hpp"
#include "bench/pair_timing.hpp"
#include "bench/slot_threads.hpp"
#include "tern/core/bytes.hpp"
#include "tern/memory/budget_resource.hpp"

namespace tern::bench {
namespace {

constexpr std::size_t pair_bytes = 4 * kib;

InstructionCount count_pair(Resource& resource, StreamRef stream) {
  const auto pair = [&] {
    const Result<Block> block = resource.try_allocate({.bytes = pair_bytes, .stream = stream});
    if (block) static_cast<void>(resource.try_deallocate(*block, stream));
  };
  for (int i = 0; i < 64; ++i) pair();
  return count_instructions(pair);
}

void add_pair(Context& context, const Stage& stage, const ResourceHandle& pool,
              const BudgetHandle& budget) {
  const auto over_pool = std::make_shared<BudgetResource>(pool, budget);
  context.step("pair");
  const Scores ns = pair_ns(context, {over_pool, pool}, stage.streams[0], pair_bytes, 7);
  context.add({.name = fmt::format("pair of {}", format_bytes(pair_bytes)),
               .value = ns[0],
               .unit = "ns",
               .better = Better::lower,
               .baseline_name = "without a budget",
               .baseline = ns[1]});
  const InstructionCount own = count_pair(*over_pool, stage.streams[0]);
  const InstructionCount plain = count_pair(*pool, stage.streams[0]);
  if (!own.refusal.empty()) {
    context.note(fmt::format("instructions were not counted: {}.", own.refusal));
    return;
  }
  const auto add = [&](const char* unit, std::uint64_t value, std::uint64_t baseline) {
    context.add({.name = fmt::format("pair, {}", unit),
                 .value = static_cast<double>(value),
                 .better = Better::lower,
                 .baseline_name = "without a budget",
                 .baseline = static_cast<double>(baseline)});
  };
  add("instructions", own.instructions, plain.instructions);
  add("atomics", own.atomics, plain.atomics);
}

void run(Context& context) {
  const Stage stage(context);
  const std::size_t capacity = fitting_bytes(context, stage.device, 32 * gib);
  const ResourceHandle pool = make_filled_pool(stage.device, capacity);
  const BudgetLimit limit = BudgetLimit::bytes(capacity);
  const BudgetHandle shared = Budget::make("shared", limit);
  const BudgetHandle process = Budget::make("process", limit);
  const BudgetHandle tenant = Budget::make("tenant", limit, {.parent = process});
  const BudgetHandle task = Budget::make("task", limit, {.parent = tenant});
  add_pair(context, stage, pool, shared);
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

const Registration registered({"pool.budget",
                               "a pair, and threads, through budgets of one and three levels",
                               run});

}  // namespace
}  // namespace tern::bench
