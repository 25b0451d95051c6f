// Fills of the device's memory, by bytes and by floats.

#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <optional>

#include "bench/copy_stage.hpp"

namespace tern::bench {
namespace {

constexpr double goal_ratio = 0.98;

void run(Context& context) {
  const CopyStage stage(context);
  const std::size_t usual = stage.raw() != nullptr ? gib : 64 * mib;
  const std::size_t bytes = context.usual_or_quick(usual, 1 * mib);
  const DeviceMemory memory = stage.memory(MemoryKind::device, bytes);
  const cuda::CUdeviceptr address = RawDriver::address(memory.get());
  auto* const floats = reinterpret_cast<float*>(memory.get());
  auto* const plain = reinterpret_cast<unsigned char*>(memory.get());
  const std::optional<double> goal = bytes == gib ? std::optional(goal_ratio) : std::nullopt;

  stage.compare(
      {.name = fmt::format("{} of bytes", format_bytes(bytes)),
       .bytes = bytes,
       .raw_name = "cuMemsetD8Async",
       .plain_name = "memset, heap memory",
       .goal_ratio = goal},
      [&] {
        stage.stream().fill(plain, bytes, 7);
        stage.stream().synchronize();
      },
      [&] {
        const RawDriver& raw = *stage.raw();
        RawDriver::check(raw.calls().cuMemsetD8Async(address, 7, bytes, raw.stream()),
                         "cuMemsetD8Async");
        raw.synchronize();
      },
      stage.plain_fill(bytes));
  stage.compare(
      {.name = fmt::format("{} of floats", format_bytes(bytes)),
       .bytes = bytes,
       .raw_name = "cuMemsetD32Async",
       .plain_name = "memset, heap memory",
       .goal_ratio = goal},
      [&] {
        stage.stream().fill(floats, bytes / sizeof(float), 1.5f);
        stage.stream().synchronize();
      },
      [&] {
        const RawDriver& raw = *stage.raw();
        RawDriver::check(raw.calls().cuMemsetD32Async(address, std::bit_cast<std::uint32_t>(1.5f),
                                                      bytes / sizeof(float), raw.stream()),
                         "cuMemsetD32Async");
        raw.synchronize();
      },
      stage.plain_fill(bytes));
}

const Registration registered({"copy.fill", "fills of the device's memory", run});

}  // namespace
}  // namespace tern::bench
