// A working set of four times what the device may hold, and more than the host may: copies go when
// memory is short, dirty ones are written home first, and what the host cannot hold is in a file
// without a name. Nothing in the loop knows of it.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <tern/backends/catalog.hpp>
#include <tern/backends/sim.hpp>
#include <tern/coherence/pressure.hpp>
#include <tern/coherence/spill_file.hpp>
#include <tern/coherence/unified_buffer.hpp>
#include <tern/device/stream.hpp>
#include <tern/launch/kernel.hpp>
#include <tern/memory/budget_resource.hpp>
#include <tern/memory/direct_resource.hpp>
#include <tern/memory/pool_resource.hpp>
#include <vector>

namespace {

void step(tern::View<float> tile) {
  for (float& x : tile) x += 1;
}

/// Memory of a device with a limit.
template <class Resource>
tern::ResourceHandle limited(const char* name, const tern::Device& device, std::size_t bytes) {
  return std::make_shared<tern::BudgetResource>(
      std::make_shared<Resource>(device),
      tern::Budget::make(name, tern::BudgetLimit::bytes(bytes)));
}

}  // namespace

int main() {
  constexpr std::size_t tiles = 16, count = 16 * 1024, bytes = count * sizeof(float);
  const tern::Device device = tern::sim::open({.seed = 14});
  const tern::Stream stream(device);
  const auto kernel = tern::Kernel::from_function(device, "step", step);

  const tern::UnifiedOptions options{
      .device = device,
      .tag = "tile",
      .pinned = tern::Pinned::never,
      .resources = {limited<tern::PoolResource>("device", device, tiles / 4 * bytes),
                    limited<tern::DirectResource>("host", tern::open_device("host"),
                                                  tiles / 2 * bytes)},
      .spill = tern::SpillFile::open({.directory = std::filesystem::temp_directory_path().string(),
                                      .limit_bytes = tiles * bytes})};
  std::vector<tern::UnifiedBuffer<float>> grid;
  for (std::size_t i = 0; i < tiles; ++i) {
    grid.emplace_back(tern::Shape{count}, options);
    std::ranges::fill(grid.back().discard_host(), static_cast<float>(i));
  }
  for (int round = 0; round < 3; ++round) {
    for (tern::UnifiedBuffer<float>& tile : grid) {
      kernel.launch(stream, tern::elements(count), inout(tile));
    }
  }
  bool is_right = true;
  for (std::size_t i = 0; i < tiles; ++i) {
    const auto tile = grid[i].view(0, count).read_host();
    is_right &= std::ranges::all_of(tile, [&](float x) { return x == static_cast<float>(i + 3); });
  }
  const tern::PressureStatistics all = tern::pressure_totals();
  const auto print = [&](const char* where, const auto& counts) {
    std::printf("%-7s", where);
    for (std::size_t i = 0; i < tern::eviction_kinds; ++i) {
      const std::string_view kind = name(static_cast<tern::Eviction>(i));
      std::printf(" %3llu %.*s", static_cast<unsigned long long>(counts[i].copies),
                  static_cast<int>(kind.size()), kind.data());
    }
    std::printf("\n");
  };
  std::printf("copies that went:\n");
  print("device", all.device);
  print("host", all.host);
  std::printf("written back %llu KiB, spilled %llu KiB, read back %llu KiB\n",
              static_cast<unsigned long long>(all.written_back_bytes / 1024),
              static_cast<unsigned long long>(all.spilled_bytes / 1024),
              static_cast<unsigned long long>(all.unspilled_bytes / 1024));

  // What cannot fit is refused at once, and nothing goes for it.
  tern::UnifiedBuffer<float> large(tern::Shape{tiles * count}, options);
  const auto refused = large.try_discard_device(stream);
  if (refused) return 1;
  std::printf("refused: %s\n", refused.failure().text().c_str());
  return is_right && all.spilled_bytes > 0 ? 0 : 1;
}
