#include "tools/rehearse/device_size.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "bench/trace_player.hpp"
#include "tern/backends/sim.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/pool_resource.hpp"
#include "tools/replay/smallest.hpp"

namespace tern::tools {
namespace {

constexpr std::size_t max_device_bytes = std::size_t{1} << 44;
/// After so many steps, the replay looks whether a request was refused.
constexpr std::size_t steps_at_once = 1024;

}  // namespace

SizeTrial try_device_size(const bench::AllocationTrace& trace, std::size_t device_bytes,
                          PoolLimit limit) {
  const Device device = sim::open({.policy = sim::Policy::eager,
                                   .print_findings = false,
                                   .memory_bytes = device_bytes,
                                   .keeps_contents = false,
                                   .check = false});
  std::vector<Stream> streams;
  for (std::uint32_t i = 0; i < trace.stream_count; ++i) streams.emplace_back(device);
  PoolResource pool(
      device, {.limit_bytes = limit == PoolLimit::device ? device_bytes : 0, .auto_trim = false});
  bench::TracePlayer player(trace, pool, streams, Wait::forever);
  SizeTrial trial = {.device_bytes = device_bytes};
  const std::size_t steps = trace.steps.size();
  for (std::size_t at = 0; at < steps && trial.fits(); at += steps_at_once) {
    player.play(at, std::min(at + steps_at_once, steps));
    trial.refused_step = player.first_refused();
  }
  player.free_rest();
  trial.peak_held_bytes = pool.pool_statistics().peak_held_bytes;
  if (trial.refused_step) {
    trial.live_bytes = bench::live_bytes_before(trace, *trial.refused_step);
  }
  return trial;
}

std::optional<SmallestDevice> find_smallest_device(
    const bench::AllocationTrace& trace, PoolLimit limit,
    const std::function<void(std::size_t)>& progress) {
  const std::size_t live = bench::facts_of(trace).peak_bytes;
  SmallestDevice found;
  // No device is smaller than what is live.
  const std::size_t low = (std::max<std::size_t>(live, 1) - 1) / device_granule_bytes;
  const auto granules =
      find_smallest(low, max_device_bytes / device_granule_bytes, [&](std::size_t count) {
        progress(count * device_granule_bytes);
        const SizeTrial trial = try_device_size(trace, count * device_granule_bytes, limit);
        if (trial.fits()) {
          found.smallest = trial;
        } else {
          found.one_less = trial;
        }
        return trial.fits();
      });
  if (!granules) return std::nullopt;
  // The size that was refused last is one granule smaller, unless none was refused.
  return found;
}

}  // namespace tern::tools
