// Fill bandwidth of the host device, compared with memset and std::fill.

#include <fmt/format.h>

#include <algorithm>
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

constexpr std::size_t floats = transfer_bytes / sizeof(float);

void run(Context& context) {
  const StreamRef one = open_device("host?threads=1").default_stream();
  const StreamRef all = open_device("host").default_stream();
  const HeapMemory plain = heap_memory(transfer_bytes, 1);
  // Each contestant has its own memory: cache lines that another core has modified are slow to
  // write.
  const DeviceMemory one_memory = device_memory(open_device("host"), transfer_bytes, 1);
  const DeviceMemory all_memory = device_memory(open_device("host"), transfer_bytes, 1);
  auto* plain_floats = reinterpret_cast<float*>(plain.get());
  const auto floats_of = [](const DeviceMemory& m) { return reinterpret_cast<float*>(m.get()); };
  const auto bytes_of = [](const DeviceMemory& m) {
    return reinterpret_cast<unsigned char*>(m.get());
  };

  const auto filled = [](StreamRef stream, auto* to, std::size_t count, auto value) {
    return [=] {
      stream.fill(to, count, value);
      stream.synchronize();
    };
  };
  const std::string size = format_bytes(transfer_bytes);
  const auto report = [&](const char* what, const char* baseline, const std::vector<Body>& bodies) {
    context.step(what);
    const std::vector<double> seconds = median_seconds(bodies, context.seconds_per_figure());
    const auto rate = [&](std::size_t i) { return transfer_bytes / seconds[i] / 1e9; };
    const char* variants[] = {"", "1 thread", "all threads", "memset on device memory"};
    for (std::size_t i = 1; i < bodies.size(); ++i) {
      context.add({.name = fmt::format("{} of {}, {}", size, what, variants[i]),
                   .value = rate(i),
                   .unit = "GB/s",
                   .baseline_name = fmt::format("{}, heap memory", baseline),
                   .baseline = rate(0),
                   .goal_ratio = i <= 2 ? std::optional(1.0) : std::nullopt});
    }
  };

  report("bytes", "memset",
         {[&] { std::memset(plain.get(), 7, transfer_bytes); },
          filled(one, bytes_of(one_memory), transfer_bytes, static_cast<unsigned char>(7)),
          filled(all, bytes_of(all_memory), transfer_bytes, static_cast<unsigned char>(7)),
          [&] { std::memset(one_memory.get(), 7, transfer_bytes); }});
  report("floats", "std::fill",
         {[&] { std::fill_n(plain_floats, floats, 1.5f); },
          filled(one, floats_of(one_memory), floats, 1.5f),
          filled(all, floats_of(all_memory), floats, 1.5f)});
}

const Registration registered({"host.fill", "fills on the host device against memset", run});

}  // namespace
}  // namespace tern::bench
