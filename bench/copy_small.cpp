// Many small copies from page-locked memory, between scattered addresses.

#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <vector>

#include "bench/copy_stage.hpp"
#include "bench/random.hpp"

namespace tern::bench {
namespace {

constexpr std::size_t goal_bytes = 64 * kib;
constexpr double goal_ratio = 0.95;

/// No two of the copies are adjacent, so they cannot be merged.
struct Scattered {
  Scattered(std::byte* to, const std::byte* from, std::size_t count, std::size_t each) {
    std::vector<std::size_t> order(count);
    for (std::size_t i = 0; i < count; ++i) order[i] = i;
    Random random(1);
    for (std::size_t i = count; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    for (std::size_t i = 0; i < count; ++i) {
      ranges.push_back({to + 2 * order[i] * each, from + 2 * i * each, each});
      sources.push_back(RawDriver::address(ranges[i].source));
      destinations.push_back(RawDriver::address(ranges[i].destination));
      bytes.push_back(each);
    }
  }
  std::vector<CopyRange> ranges;
  // The same copies, in the form of the driver's batch call.
  std::vector<cuda::CUdeviceptr> destinations, sources;
  std::vector<std::size_t> bytes;
};

void raw_batch(const RawDriver& raw, Scattered& copies) {
  cuda::CUmemcpyAttributes attributes;
  attributes.srcAccessOrder = cuda::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  std::size_t first = 0;
  const cuda::DriverTable& calls = raw.calls();
  const std::size_t count = copies.bytes.size();
  if (calls.cuMemcpyBatchAsync != nullptr) {
    RawDriver::check(
        calls.cuMemcpyBatchAsync(copies.destinations.data(), copies.sources.data(),
                                 copies.bytes.data(), count, &attributes, &first, 1, raw.stream()),
        "cuMemcpyBatchAsync");
  } else if (calls.cuMemcpyBatchAsync_12080 != nullptr) {
    std::size_t failed = 0;
    RawDriver::check(calls.cuMemcpyBatchAsync_12080(
                         copies.destinations.data(), copies.sources.data(), copies.bytes.data(),
                         count, &attributes, &first, 1, &failed, raw.stream()),
                     "cuMemcpyBatchAsync");
  } else {
    for (std::size_t i = 0; i < count; ++i) {
      RawDriver::check(calls.cuMemcpyAsync(copies.destinations[i], copies.sources[i],
                                           copies.bytes[i], raw.stream()),
                       "cuMemcpyAsync");
    }
  }
  raw.synchronize();
}

void run(Context& context) {
  const CopyStage stage(context);
  const std::size_t count = context.usual_or_quick<std::size_t>(500, 20);
  const std::size_t most = 2 * count * goal_bytes;
  const DeviceMemory from = stage.memory(MemoryKind::pinned, most);
  const DeviceMemory to = stage.memory(MemoryKind::device, most);
  for (const std::size_t each : {4 * kib, goal_bytes}) {
    Scattered copies(to.get(), from.get(), count, each);
    stage.compare(
        {.name = fmt::format("{} x {} to the device", count, format_bytes(each)),
         .bytes = count * each,
         .raw_name = "cuMemcpyBatchAsync",
         .plain_name = "memcpy, heap memory",
         .goal_ratio = each == goal_bytes ? std::optional(goal_ratio) : std::nullopt},
        [&] {
          stage.stream().copy_batch(copies.ranges);
          stage.stream().synchronize();
        },
        [&] { raw_batch(*stage.raw(), copies); }, stage.plain_copy(count * each));
  }
}

const Registration registered({"copy.small", "many small copies from page-locked memory", run});

}  // namespace
}  // namespace tern::bench
