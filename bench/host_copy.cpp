// Copy bandwidth of the host device, compared with memcpy.

#include <fmt/format.h>

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "bench/case.hpp"
#include "bench/host_buffers.hpp"
#include "bench/measure.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/device/stream.hpp"

namespace tern::bench {
namespace {

void run(Context& context) {
  const Device one = open_device("host?threads=1");
  const Device all = open_device("host");
  const StreamRef one_stream = one.default_stream();
  const StreamRef all_stream = all.default_stream();
  const HeapMemory plain_from = heap_memory(transfer_bytes, 1);
  const HeapMemory plain_to = heap_memory(transfer_bytes, 2);
  // Each contestant has its own memory: cache lines that another core has modified are slow to
  // write.
  const DeviceMemory from = device_memory(all, transfer_bytes, 1);
  const DeviceMemory to = device_memory(all, transfer_bytes, 2);
  const DeviceMemory one_from = device_memory(one, transfer_bytes, 1);
  const DeviceMemory one_to = device_memory(one, transfer_bytes, 2);
  const DeviceMemory all_from = device_memory(all, transfer_bytes, 1);
  const DeviceMemory all_to = device_memory(all, transfer_bytes, 2);

  for (const std::size_t bytes : {1 * mib, transfer_bytes}) {
    const std::string size = format_bytes(bytes);
    context.step(size);
    const std::vector<double> seconds =
        median_seconds({[&] { std::memcpy(plain_to.get(), plain_from.get(), bytes); },
                        [&] { std::memcpy(to.get(), from.get(), bytes); },
                        [&] {
                          one_stream.copy(one_to.get(), one_from.get(), bytes);
                          one_stream.synchronize();
                        },
                        [&] {
                          all_stream.copy(all_to.get(), all_from.get(), bytes);
                          all_stream.synchronize();
                        }},
                       context.seconds_per_figure());
    const auto rate = [&](std::size_t i) { return static_cast<double>(bytes) / seconds[i] / 1e9; };
    const auto add = [&](std::string name, std::size_t i, std::optional<double> goal) {
      context.add({.name = std::move(name),
                   .value = rate(i),
                   .unit = "GB/s",
                   .baseline_name = "memcpy, heap memory",
                   .baseline = rate(0),
                   .goal_ratio = goal});
    };
    const bool has_goal = bytes == transfer_bytes;
    add(fmt::format("{}, memcpy on device memory", size), 1, std::nullopt);
    add(fmt::format("{}, 1 thread", size), 2, has_goal ? std::optional(1.0) : std::nullopt);
    // One core may already reach the memory bandwidth, so several threads need no speed-up. They
    // must not be slower.
    add(fmt::format("{}, all threads", size), 3, has_goal ? std::optional(1.0) : std::nullopt);
  }
}

const Registration registered({"host.copy", "copies on the host device against memcpy", run});

}  // namespace
}  // namespace tern::bench
