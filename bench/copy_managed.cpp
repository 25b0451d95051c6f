// Managed memory that the host has written and a kernel reads: prefetched, or moved on demand.

#include <fmt/format.h>

#include <cstring>
#include <string>
#include <vector>

#include "bench/copy_stage.hpp"
#include "bench/touch_kernel.hpp"

namespace tern::bench {
namespace {

constexpr double goal_ratio_of_demand = 5, goal_ratio_of_raw = 0.95;

void raw_prefetch(const RawDriver& raw, const std::byte* memory, std::size_t bytes) {
  const cuda::DriverTable& calls = raw.calls();
  const cuda::CUresult result =
      calls.cuMemPrefetchAsync != nullptr
          ? calls.cuMemPrefetchAsync(RawDriver::address(memory), bytes,
                                     {cuda::CU_MEM_LOCATION_TYPE_DEVICE, raw.device()}, 0,
                                     raw.stream())
          : calls.cuMemPrefetchAsync_8000(RawDriver::address(memory), bytes, raw.device(),
                                          raw.stream());
  RawDriver::check(result, "cuMemPrefetchAsync");
  raw.synchronize();
}

void run(Context& context) {
  const CopyStage stage(context);
  const StreamRef stream = stage.stream();
  // More managed memory than the device has free can hang the device, so the size is small.
  const std::size_t bytes = context.usual_or_quick(256 * mib, 1 * mib);
  const std::size_t rounds = context.usual_or_quick<std::size_t>(7, 2);
  const DeviceMemory memory = stage.memory(MemoryKind::managed, bytes);
  const TouchKernel kernel(stage);
  const auto touch_on_device = [&] {
    kernel.launch(stream, memory.get(), bytes);
    stream.synchronize();
  };
  const auto touch_on_host = [&] { std::memset(memory.get(), 1, bytes); };
  const auto prefetch = [&] {
    stream.try_prefetch(memory.get(), bytes, stage.device().place()).value();
    stream.synchronize();
  };

  // The first launch loads the kernel, and the first access allocates the pages.
  touch_on_host();
  touch_on_device();
  std::vector<double> demand, ahead, resident, raw;
  for (std::size_t round = 0; round < rounds; ++round) {
    context.step(fmt::format("round {} of {}", round + 1, rounds));
    touch_on_host();
    demand.push_back(seconds_of(touch_on_device));
    touch_on_host();
    ahead.push_back(seconds_of(prefetch));
    resident.push_back(seconds_of(touch_on_device));
    if (stage.raw() == nullptr) continue;
    touch_on_host();
    raw.push_back(seconds_of([&] { raw_prefetch(*stage.raw(), memory.get(), bytes); }));
  }
  const auto rate = [&](const std::vector<double>& times) {
    return static_cast<double>(bytes) / median(times) / 1e9;
  };
  const std::string size = format_bytes(bytes);
  Figure beside_demand = {.name = fmt::format("{}, prefetch", size),
                          .value = rate(ahead),
                          .unit = "GB/s",
                          .baseline_name = "a kernel that faults",
                          .baseline = rate(demand),
                          .others = {{"a kernel on resident pages", rate(resident)}}};
  if (stage.raw() != nullptr) beside_demand.goal_ratio = goal_ratio_of_demand;
  context.add(std::move(beside_demand));
  if (stage.raw() == nullptr) return;
  context.add({.name = fmt::format("{}, prefetch", size),
               .value = rate(ahead),
               .unit = "GB/s",
               .baseline_name = "cuMemPrefetchAsync",
               .baseline = rate(raw),
               .goal_ratio = goal_ratio_of_raw});
}

const Registration registered({"copy.managed", "managed memory by prefetch and by page faults",
                               run});

}  // namespace
}  // namespace tern::bench
