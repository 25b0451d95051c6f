// Allocates and frees page-locked memory: the segments of a pool, and the staging ring.

#include <fmt/format.h>

#include <cstring>

#include "bench/copy_stage.hpp"

namespace tern::bench {
namespace {

/// At most 40 % of the driver's time.
constexpr double goal_ratio = 2.5;

void run(Context& context) {
  const CopyStage stage(context);
  for (const std::size_t bytes : {2 * mib, 512 * mib}) {
    if (context.is_quick() && bytes > 2 * mib) break;
    context.step(format_bytes(bytes));
    const RawDriver* raw = stage.raw();
    const std::vector<double> seconds = median_seconds(
        {[&] { stage.device().release(stage.device().allocate(MemoryKind::pinned, bytes)); },
         [&] {
           if (raw == nullptr) {
             const HeapMemory touched = heap_memory(bytes, 1);
             // The volatile read keeps the compiler from removing the allocation.
             static_cast<void>(*static_cast<volatile std::byte*>(touched.get()));
             return;
           }
           void* memory = nullptr;
           RawDriver::check(raw->calls().cuMemHostAlloc(&memory, bytes, cuda::host_alloc_portable),
                            "cuMemHostAlloc");
           RawDriver::check(raw->calls().cuMemFreeHost(memory), "cuMemFreeHost");
         }},
        context.seconds_per_figure());
    Figure figure = {
        .name = fmt::format("{} allocated and released", format_bytes(bytes)),
        .value = seconds[0] * 1e3,
        .unit = "ms",
        .better = Better::lower,
        .baseline_name = raw != nullptr ? "cuMemHostAlloc" : "malloc, all pages written",
        .baseline = seconds[1] * 1e3};
    if (raw != nullptr && bytes == 512 * mib) figure.goal_ratio = goal_ratio;
    context.add(std::move(figure));
  }
}

const Registration registered({"copy.slab", "page-locked memory made and given back", run});

}  // namespace
}  // namespace tern::bench
