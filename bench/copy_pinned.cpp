// Copies between page-locked memory and the device. They must be as fast as the driver's own.

#include <fmt/format.h>

#include "bench/copy_stage.hpp"

namespace tern::bench {
namespace {

void run(Context& context) {
  const CopyStage stage(context);
  const std::size_t most = context.usual_or_quick(1 * gib, 1 * mib);
  const DeviceMemory pinned = stage.memory(MemoryKind::pinned, most);
  const DeviceMemory device = stage.memory(MemoryKind::device, most);
  for (const std::size_t bytes : ladder_bytes) {
    if (bytes > most) break;
    CopyFigure figure = {.bytes = bytes, .goal_ratio = goal_copy_ratio};
    figure.name = fmt::format("{} to the device", format_bytes(bytes));
    stage.compare_copy(figure, device.get(), pinned.get());
    figure.name = fmt::format("{} to the host", format_bytes(bytes));
    stage.compare_copy(figure, pinned.get(), device.get());
  }
}

const Registration registered({"copy.pinned", "page-locked memory to the device and back", run});

}  // namespace
}  // namespace tern::bench
