// Replays allocation traces, and compares the memory held with the memory used.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>

#include "bench/allocation_trace.hpp"
#include "bench/contestants.hpp"
#include "bench/stall.hpp"
#include "tern/core/bytes.hpp"

namespace tern::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double goal_footprint = 1.2;

struct Replay {
  double ns_per_call = 0;
  std::size_t failures = 0;
  std::size_t peak_bytes = 0;  // the peak of the requested bytes that are live
};

Replay replay(const AllocationTrace& trace, Resource& resource, std::span<const Stream> streams) {
  Replay result;
  struct Live {
    Block block = {};
    std::size_t bytes = 0;
    std::uint32_t stream = 0;
  };
  std::vector<Live> live(trace.block_count);
  std::size_t live_bytes = 0;
  const Clock::time_point start = Clock::now();
  for (const TraceStep& step : trace.steps) {
    const StreamRef stream = streams[step.stream];
    Live& one = live[step.block];
    if (step.bytes == 0) {
      if (one.block) resource.try_deallocate(one.block, stream).value();
      live_bytes -= one.bytes;
      one = {};
      continue;
    }
    // Streams are stalled forever, so a request must not wait for them.
    const Result<Block> block =
        resource.try_allocate({.bytes = step.bytes, .stream = stream, .wait = Wait::never});
    if (!block) {
      ++result.failures;
      continue;
    }
    one = {*block, step.bytes, step.stream};
    live_bytes += step.bytes;
    result.peak_bytes = std::max(result.peak_bytes, live_bytes);
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  result.ns_per_call = seconds * 1e9 / static_cast<double>(trace.steps.size());
  for (const Live& one : live) {
    if (one.block) resource.try_deallocate(one.block, streams[one.stream]).value();
  }
  return result;
}

void add_footprint(Context& context, const std::string& what, const PoolResource& pool,
                   const Replay& result) {
  const double held = static_cast<double>(pool.pool_statistics().peak_held_bytes);
  context.add({.name = fmt::format("{}, held / {}", what, format_bytes(result.peak_bytes)),
               .value = held / static_cast<double>(result.peak_bytes),
               .unit = "x",
               .better = Better::lower,
               .goal = goal_footprint});
  context.add({.name = fmt::format("{}, failures", what),
               .value = static_cast<double>(result.failures),
               .better = Better::lower,
               .goal = 0});
}

void run_alone(Context& context, const Stage& stage, const AllocationTrace& trace,
               std::span<const Stream> streams) {
  const std::string name(trace.name);
  context.step(name);
  const auto pool = make_pool(stage.device, {});
  const Contestants all = contestants(context, pool);
  Scores ns;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Replay result = replay(trace, *all[i], streams);
    if (i == 0) add_footprint(context, name, *pool, result);
    ns.push_back(result.ns_per_call);
    stage.device.synchronize();
  }
  context.add(compare(fmt::format("{}, a call", name), ns, "ns", Better::lower));
}

void run_stalled(Context& context, const Stage& stage, const AllocationTrace& trace,
                 std::span<const Stream> streams) {
  const std::string name = fmt::format("{}, stalled", trace.name);
  context.step(name);
  const auto pool = make_pool(stage.device, {});
  const Stall stall(streams);
  add_footprint(context, name, *pool, replay(trace, *pool, streams));
}

void run_trace(Context& context, const Stage& stage, AllocationTrace trace, bool also_stalled) {
  if (context.is_quick()) trace.steps.resize(std::min<std::size_t>(trace.steps.size(), 2'000));
  const std::span<const Stream> streams = std::span(stage.streams).first(trace.stream_count);
  run_alone(context, stage, trace, streams);
  if (also_stalled) run_stalled(context, stage, trace, streams);
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
  run_trace(context, stage, checkerboard(), false);
  run_trace(context, stage, train_varlen(training_scale(context, stage.device)), true);
  run_trace(context, stage, growing_kv_cache(), true);
  run_trace(context, stage, multi_stream_etl(), false);
}

const Registration registered({"pool.traces", "memory held for the traces of four programs", run});

}  // namespace
}  // namespace tern::bench
