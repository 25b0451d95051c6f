// Copies inside device memory. The rate counts the bytes read and the bytes written.

#include <fmt/format.h>

#include "bench/copy_stage.hpp"

namespace tern::bench {
namespace {

constexpr double goal_ratio = 0.98;

void run(Context& context) {
  const CopyStage stage(context);
  const std::size_t usual = stage.raw() != nullptr ? gib : 64 * mib;
  const std::size_t most = context.usual_or_quick(usual, 1 * mib);
  const DeviceMemory from = stage.memory(MemoryKind::device, most);
  const DeviceMemory to = stage.memory(MemoryKind::device, most);
  for (const std::size_t bytes : {1 * mib, 64 * mib, gib}) {
    if (bytes > most) break;
    CopyFigure figure = {.name = fmt::format("{}, read and write", format_bytes(bytes)),
                         .bytes = 2 * bytes,
                         .raw_name = "cuMemcpyAsync",
                         .plain_name = "memcpy, heap memory"};
    if (bytes == gib) figure.goal_ratio = goal_ratio;
    stage.compare(
        figure,
        [&] {
          stage.stream().copy(to.get(), from.get(), bytes);
          stage.stream().synchronize();
        },
        [&] {
          stage.raw()->copy(to.get(), from.get(), bytes);
          stage.raw()->synchronize();
        },
        stage.plain_copy(bytes));
  }
}

const Registration registered({"copy.device", "copies inside the device's memory", run});

}  // namespace
}  // namespace tern::bench
