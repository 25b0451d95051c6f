#include "tools/replay/contest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "bench/trace_player.hpp"
#include "tern/core/error.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern::tools {
namespace {

using Clock = std::chrono::steady_clock;

/// The driver's pool outlives the resource and keeps what it holds, which later resources lack.
void empty_driver_pool(const Device& device, AsyncResource& resource) {
  const Result<DriverPoolInfo> before = resource.try_driver_pool();
  if (!before) return;
  static_cast<void>(resource.try_set_release_threshold(0));
  device.synchronize();
  static_cast<void>(resource.try_set_release_threshold(before->release_threshold_bytes));
}

}  // namespace

std::uint64_t ContestResult::driver_calls() const {
  std::uint64_t sum = 0;
  for (const PassFigures& pass : passes) sum += pass.driver_calls;
  return sum;
}

std::uint64_t ContestResult::refusals() const {
  std::uint64_t sum = 0;
  for (const PassFigures& pass : passes) sum += pass.refusals;
  return sum;
}

std::size_t ContestResult::returned_bytes() const {
  std::size_t most = 0;
  for (const PassFigures& pass : passes) most = std::max(most, pass.returned_bytes);
  return most;
}

double ContestResult::held_per_live() const {
  return peak_live_bytes == 0
             ? 0
             : static_cast<double>(peak_held_bytes) / static_cast<double>(peak_live_bytes);
}

Contest::Contest(const Device& device, const bench::AllocationTrace& trace, unsigned passes,
                 Progress progress)
    : device_(device),
      trace_(trace),
      facts_(bench::facts_of(trace)),
      passes_(passes),
      progress_(std::move(progress)) {
  for (std::uint32_t i = 0; i < trace.stream_count; ++i) streams_.emplace_back(device);
}

ContestResult Contest::run(const ResourceSetting& setting) {
  ContestResult result = {.setting = setting};
  free_before_ = device_.memory().free_bytes;
  try {
    const Clock::time_point start = Clock::now();
    const ResourceHandle resource = make_resource(device_, setting);
    result.setup_ns = std::chrono::duration<double, std::nano>(Clock::now() - start).count();
    auto* const async = dynamic_cast<AsyncResource*>(resource.get());
    if (async != nullptr) static_cast<void>(async->try_reset_peaks());
    for (unsigned pass = 0; pass < passes_; ++pass) {
      progress_(fmt::format("{}, pass {} of {}", setting.text(), pass + 1, passes_));
      run_pass(*resource, result, pass + 1 == passes_);
    }
    if (async != nullptr) empty_driver_pool(device_, *async);
  } catch (const Unsupported& error) {
    result.absence = error.text();
  } catch (const OutOfMemory& error) {
    result.absence = error.text();
  }
  return result;
}

void Contest::run_pass(Resource& resource, ContestResult& result, bool is_last) {
  bench::TracePlayer player(trace_, resource, streams_, Wait::forever);
  const std::size_t at_peak = facts_.peak_step + 1;
  double seconds = player.play(0, at_peak);
  read_peak(resource, result, is_last);
  seconds += player.play(at_peak, trace_.steps.size());
  player.free_rest();
  device_.synchronize();

  PassFigures figures;
  figures.ns_per_call = seconds * 1e9 / static_cast<double>(trace_.steps.size());
  figures.refusals = player.refusals();
  figures.driver_calls = player.calls();
  if (result.setting.trim_bytes) {
    figures.returned_bytes = resource.trim(*result.setting.trim_bytes);
  }
  if (const auto* pool = dynamic_cast<const PoolResource*>(&resource)) {
    const PoolStatistics now = pool->pool_statistics();
    // The calls of the constructor count for the first pass.
    figures.driver_calls = now.driver_calls() - result.driver_calls();
    result.peak_held_bytes = now.peak_held_bytes;
  }
  if (const auto* async = dynamic_cast<const AsyncResource*>(&resource)) {
    const Result<DriverPoolInfo> info = async->try_driver_pool();
    if (info) result.peak_held_bytes = std::max(result.peak_held_bytes, info->peak_reserved_bytes);
  }
  result.passes.push_back(figures);
  result.peak_live_bytes = std::max(result.peak_live_bytes, player.peak_bytes());
  if (!result.first_refused) result.first_refused = player.first_refused();
}

void Contest::read_peak(Resource& resource, ContestResult& result, bool is_last) const {
  if (const auto* pool = dynamic_cast<const PoolResource*>(&resource)) {
    if (!is_last) return;
    const Fragmentation pieces = pool->fragmentation();
    result.free_at_peak_bytes = pieces.free_bytes;
    result.fragmentation = pieces.by_block();
    return;
  }
  std::size_t held = resource.statistics().peak_live_bytes;
  // The free memory of the host changes with every program on it.
  if (device_.info().backend != "host") {
    const std::size_t free = device_.memory().free_bytes;
    held = std::max(held, free_before_ - std::min(free_before_, free));
  }
  result.peak_held_bytes = std::max(result.peak_held_bytes, held);
}

}  // namespace tern::tools
