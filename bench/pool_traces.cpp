// Replays allocation traces of four programs, three times on one pool: the time per call, cold and
// warm, and the memory held beside the memory used.

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "bench/allocation_trace.hpp"
#include "bench/contestants.hpp"
#include "bench/stall.hpp"
#include "bench/trace_player.hpp"
#include "tern/core/bytes.hpp"

namespace tern::bench {
namespace {

/// A third pass of the same program finds its memory in place.
constexpr int pass_count = 3;
constexpr double goal_ns_of_last_pass = 150;
/// How much more a pool of segments may hold after the last pass than after the first.
constexpr double max_segment_creep = 1.05;

struct Replay {
  double ns_per_call = 0;
  std::size_t failures = 0;
  std::size_t peak_bytes = 0;  // the peak of the requested bytes that are live
};

Replay replay(const AllocationTrace& trace, Resource& resource, std::span<const Stream> streams) {
  // Streams may be stalled forever, so a request must not wait for them.
  TracePlayer player(trace, resource, streams, Wait::never);
  const double seconds = player.play(0, trace.steps.size());
  player.free_rest();
  return {.ns_per_call = seconds * 1e9 / static_cast<double>(trace.steps.size()),
          .failures = player.refusals(),
          .peak_bytes = player.peak_bytes()};
}

/// A trace, and what is expected of the pool.
struct Program {
  AllocationTrace trace;
  double max_footprint = 1.1;  // peak held / peak live
  /// What the caching allocator of PyTorch needed for a first pass on an H200, per call.
  double cold_goal_ns = 0;
  bool also_stalled = false;
};

void add_footprint(Context& context, const std::string& what, const PoolResource& pool,
                   const Program& program, const Replay& result) {
  const double held = static_cast<double>(pool.pool_statistics().peak_held_bytes);
  context.add({.name = fmt::format("{}, held / {}", what, format_bytes(result.peak_bytes)),
               .value = held / static_cast<double>(result.peak_bytes),
               .unit = "x",
               .better = Better::lower,
               .goal = program.max_footprint});
  context.add({.name = fmt::format("{}, failures", what),
               .value = static_cast<double>(result.failures),
               .better = Better::lower,
               .goal = 0});
}

// All passes of one contestant, then all of the next, because a pass begins with the memory that
// the pass before has left.
void run_alone(Context& context, const Stage& stage, const Program& program,
               std::span<const Stream> streams) {
  const std::string& name = program.trace.name;
  context.step(name);
  const auto pool = make_pool(stage.device, {});
  const Contestants all = contestants(context, pool);
  Scores first_ns, last_ns;
  Replay worst;
  std::uint64_t calls_of_last = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    for (int pass = 0; pass < pass_count; ++pass) {
      const std::uint64_t calls = pool->pool_statistics().page_calls;
      const Replay result = replay(program.trace, *all[i], streams);
      stage.device.synchronize();
      if (pass == 0) first_ns.push_back(result.ns_per_call);
      if (pass == pass_count - 1) last_ns.push_back(result.ns_per_call);
      if (i > 0) continue;
      worst.failures += result.failures;
      worst.peak_bytes = result.peak_bytes;
      calls_of_last = pool->pool_statistics().page_calls - calls;
    }
  }
  add_footprint(context, name, *pool, program, worst);
  Figure cold = compare(fmt::format("{}, a call, cold", name), first_ns, "ns", Better::lower);
  if (stage.device.info().backend == "cuda") cold.goal = program.cold_goal_ns;
  context.add(cold);
  Figure warm = compare(fmt::format("{}, a call, third pass", name), last_ns, "ns", Better::lower);
  warm.goal = goal_ns_of_last_pass;
  context.add(warm);
  context.add({.name = fmt::format("{}, driver calls in the third pass", name),
               .value = static_cast<double>(calls_of_last),
               .better = Better::lower,
               .goal = 0});
}

/// Segments cannot be remapped, so what a pass leaves in pieces must serve the next pass.
void run_with_segments(Context& context, const Stage& stage, const Program& program,
                       std::span<const Stream> streams) {
  const std::string name = fmt::format("{}, segments", program.trace.name);
  context.step(name);
  const auto pool = make_pool(stage.device, {.backing = PoolBacking::segments});
  std::size_t first_held = 0;
  for (int pass = 0; pass < pass_count; ++pass) {
    static_cast<void>(replay(program.trace, *pool, streams));
    stage.device.synchronize();
    if (pass == 0) first_held = pool->pool_statistics().peak_held_bytes;
  }
  context.add({.name = fmt::format("{}, held / held after a pass", name),
               .value = static_cast<double>(pool->pool_statistics().peak_held_bytes) /
                        static_cast<double>(first_held),
               .unit = "x",
               .better = Better::lower,
               .goal = max_segment_creep});
}

void run_stalled(Context& context, const Stage& stage, const Program& program,
                 std::span<const Stream> streams) {
  const std::string name = fmt::format("{}, stalled", program.trace.name);
  context.step(name);
  const auto pool = make_pool(stage.device, {});
  const Stall stall(streams);
  add_footprint(context, name, *pool, program, replay(program.trace, *pool, streams));
}

void run_program(Context& context, const Stage& stage, Program program) {
  std::vector<TraceStep>& steps = program.trace.steps;
  if (context.is_quick()) steps.resize(std::min<std::size_t>(steps.size(), 2'000));
  const std::span<const Stream> streams =
      std::span(stage.streams).first(program.trace.stream_count);
  run_alone(context, stage, program, streams);
  run_with_segments(context, stage, program, streams);
  if (!program.also_stalled) return;
  // The fake CUDA driver runs host functions in the calling thread, so a blocked one would block
  // this program.
  if (stage.device.spec().find("driver=sim") != std::string::npos) {
    context.note(fmt::format("{}: no stalled streams with driver=sim.", program.trace.name));
    return;
  }
  run_stalled(context, stage, program, streams);
}

/// Returns a scale with which the training fits the device.
std::size_t training_scale(Context& context, const Device& device) {
  if (context.is_quick()) return 4;
  const std::size_t total = device.info().total_bytes;
  const std::size_t scale = total >= 64 * gib ? 1 : total >= 16 * gib ? 2 : 4;
  if (scale > 1) {
    context.note(fmt::format("train_varlen with scale {}: {} has {}.", scale, device.spec(),
                             format_bytes(total)));
  }
  return scale;
}

void run(Context& context) {
  const Stage stage(context);
  const std::size_t scale = training_scale(context, stage.device);
  run_program(context, stage,
              {.trace = checkerboard(), .max_footprint = 1.2, .cold_goal_ns = 29'000});
  run_program(context, stage,
              {.trace = train_varlen(scale), .cold_goal_ns = 2'400, .also_stalled = true});
  run_program(context, stage,
              {.trace = growing_kv_cache(), .cold_goal_ns = 700, .also_stalled = true});
  run_program(context, stage, {.trace = multi_stream_etl(), .cold_goal_ns = 788});
}

const Registration registered({"pool.traces",
                               "traces of four programs: time cold and warm, and memory held",
                               run});

}  // namespace
}  // namespace tern::bench
