// The fast path of the pool, counted instead of timed: driver calls, instructions, atomic
// instructions.

#include <fmt/format.h>

#include <optional>
#include <string_view>

#include "bench/contestants.hpp"
#include "bench/instruction_count.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/bytes.hpp"

namespace tern::bench {
namespace {

constexpr std::size_t block_bytes = 4 * kib;
constexpr double goal_atomics = 1;

void run_pairs(Resource& resource, StreamRef stream, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const Block block = resource.try_allocate({.bytes = block_bytes, .stream = stream}).value();
    resource.try_deallocate(block, stream).value();
  }
}

/// Returns the calls of the simulated device, by any caller.
std::uint64_t simulated_calls(const Device& device) {
  std::uint64_t calls = 0;
  for (const std::string_view name : {"allocate", "release", "map", "pin", "copy", "fill", "launch",
                                      "record", "wait", "query", "sync", "stream", "info"}) {
    calls += sim::calls(device, name);
  }
  return calls;
}

void add_calls(Context& context, const Stage& stage, PoolResource& pool) {
  const std::size_t pairs = context.usual_or_quick<std::size_t>(100'000, 1'000);
  const bool is_simulated = stage.device.info().backend == "sim";
  const auto add = [&](const char* who, std::uint64_t calls) {
    context.add({.name = fmt::format("driver calls of {} pairs ({})", pairs, who),
                 .value = static_cast<double>(calls),
                 .better = Better::lower,
                 .goal = 0});
  };
  const std::uint64_t before = pool.pool_statistics().driver_calls();
  const std::uint64_t simulated_before = is_simulated ? simulated_calls(stage.device) : 0;
  run_pairs(pool, stage.streams[0], pairs);
  const std::uint64_t simulated = is_simulated ? simulated_calls(stage.device) : 0;
  add("pool", pool.pool_statistics().driver_calls() - before);
  if (is_simulated) add("device", simulated - simulated_before);
}

struct Counts {
  InstructionCount allocate, free;
};

Counts count_pair(Resource& resource, StreamRef stream) {
  run_pairs(resource, stream, 64);
  Counts counts;
  Block block;
  counts.allocate = count_instructions([&] {
    const Result<Block> result = resource.try_allocate({.bytes = block_bytes, .stream = stream});
    if (result) block = *result;
  });
  counts.free =
      count_instructions([&] { static_cast<void>(resource.try_deallocate(block, stream)); });
  return counts;
}

void add_counts(Context& context, const char* what, const InstructionCount& pool,
                const InstructionCount& malloc, const InstructionCount& null) {
  if (!pool.refusal.empty()) {
    context.note(fmt::format("{}: instructions were not counted: {}.", what, pool.refusal));
    return;
  }
  const auto add = [&](const char* unit, auto member, std::optional<double> goal) {
    const auto of = [&](const InstructionCount& one) { return static_cast<double>(one.*member); };
    Figure figure = compare(fmt::format("{} that hits, {}", what, unit),
                            {of(pool), of(malloc), of(null)}, "", Better::lower);
    figure.goal = goal;
    context.add(std::move(figure));
  };
  add("atomics", &InstructionCount::atomics, goal_atomics);
  add("instructions", &InstructionCount::instructions, std::nullopt);
}

void run(Context& context) {
  const Stage stage(context);
  const auto pool = make_filled_pool(stage.device, fitting_bytes(context, stage.device, gib));
  run_pairs(*pool, stage.streams[0], 1'000);
  context.step("driver calls");
  add_calls(context, stage, *pool);
  context.step("instructions");
  const Counts of_pool = count_pair(*pool, stage.streams[0]);
  const Counts of_malloc = count_pair(*make_malloc(stage.device), stage.streams[0]);
  const Counts of_null = count_pair(*make_null(stage.device), stage.streams[0]);
  add_counts(context, "allocation", of_pool.allocate, of_malloc.allocate, of_null.allocate);
  add_counts(context, "free", of_pool.free, of_malloc.free, of_null.free);
}

const Registration registered({"pool.hit", "driver calls and atomics of a block used again", run});

}  // namespace
}  // namespace tern::bench
