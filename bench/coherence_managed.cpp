// Managed buffers that the host has written and kernels use next. The pages are moved by a prefetch
// plan during the launches, or on demand when a kernel accesses them.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "bench/copy_stage.hpp"
#include "bench/touch_kernel.hpp"
#include "tern/coherence/managed_buffer.hpp"
#include "tern/coherence/prefetch_plan.hpp"

namespace tern::bench {
namespace {

constexpr double goal_ratio_of_demand = 5;

/// A working set in a few large buffers or in many small ones. The driver needs time for every
/// range.
struct Set {
  std::size_t count = 0, bytes = 0;
};

void add_set(Context& context, const CopyStage& stage, Set set) {
  const StreamRef stream = stage.stream();
  const std::size_t rounds = context.usual_or_quick<std::size_t>(7, 2);
  std::vector<ManagedBuffer<std::byte>> buffers;
  PrefetchPlan plan;
  for (std::size_t i = 0; i < set.count; ++i) {
    buffers.emplace_back(stage.device(), Shape{set.bytes});
    plan.add(buffers.back(), stage.device().place());
  }
  const TouchKernel kernel(stage);
  const auto write_on_host = [&] {
    for (auto& buffer : buffers) std::ranges::fill(buffer.discard_host(), std::byte{1});
  };
  const auto use_on_device = [&] {
    for (auto& buffer : buffers) {
      const auto lease = buffer.rw_device(stream);
      kernel.launch(stream, lease.data(), lease.size());
    }
    stream.synchronize();
  };
  const auto planned = [&] {
    plan.execute(stream);
    use_on_device();
  };

  // The first launch loads the kernel, and the first access allocates the pages.
  write_on_host();
  use_on_device();
  std::vector<double> demand, ahead, resident, submission;
  for (std::size_t round = 0; round < rounds; ++round) {
    context.step(fmt::format("{} buffers, round {} of {}", set.count, round + 1, rounds));
    write_on_host();
    demand.push_back(seconds_of(use_on_device));
    write_on_host();
    ahead.push_back(seconds_of(planned));
    resident.push_back(seconds_of(use_on_device));
    submission.push_back(seconds_of([&] { plan.execute(stream); }));
    stream.synchronize();
  }
  const auto rate = [&](const std::vector<double>& times) {
    return static_cast<double>(set.count * set.bytes) / median(times) / 1e9;
  };
  Figure figure = {
      .name = fmt::format("{} buffers of {}, plan and kernels", set.count, format_bytes(set.bytes)),
      .value = rate(ahead),
      .unit = "GB/s",
      .baseline_name = "kernels that fault",
      .baseline = rate(demand),
      .others = {{"kernels on resident pages", rate(resident)}}};
  // On other devices no pages move, so there is no goal.
  if (stage.raw() != nullptr) figure.goal_ratio = goal_ratio_of_demand;
  context.add(std::move(figure));
  context.add({.name = fmt::format("a plan of {} entries, already there", set.count),
               .value = median(submission) * 1e6,
               .unit = "us",
               .better = Better::lower});
}

void run(Context& context) {
  const CopyStage stage(context);
  if (!stage.device().can(Capability::managed_memory)) {
    context.note(fmt::format("'{}' has no managed memory.", stage.device().spec()));
    return;
  }
  // More managed memory than the device has free can hang the device, so the set is small.
  const std::size_t large = context.usual_or_quick(64 * mib, 512 * kib);
  add_set(context, stage, {4, large});
  add_set(context, stage, {32, large / 8});
}

const Registration registered({"coherence.managed",
                               "managed memory by a prefetch plan and by page "
                               "faults",
                               run});

}  // namespace
}  // namespace tern::bench
