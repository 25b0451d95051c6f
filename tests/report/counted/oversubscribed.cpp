// Unified buffers that together need four times the memory that the device may use. Each round
// moves every buffer to the device, changes it on the device, and so evicts other buffers.
//
//   oversubscribed DEVICE [FACTOR]   such as sim, host, opencl:0 or cuda:0
//
// The last line of the output is JSON with the counters of the library at the end of the recording.
// At this time, half of the buffers are live.

#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <tern/coherence/pressure.hpp>
#include <tern/coherence/spill_file.hpp>
#include <tern/memory/budget_resource.hpp>
#include <tern/trace/recorder.hpp>
#include <vector>

#include "counted.hpp"

namespace {

constexpr std::size_t tiles = 16, rounds = 8;

/// Returns the number of wrong tiles.
std::size_t run(const counted::Setting& setting, std::vector<tern::UnifiedBuffer<float>>& grid) {
  const tern::Stream stream(setting.device, {.name = "work"});
  for (std::size_t round = 1; round <= rounds; ++round) {
    const tern::trace::Range range("round " + std::to_string(round));
    for (tern::UnifiedBuffer<float>& tile : grid) {
      const tern::DeviceLease<float> lease = tile.rw_device(stream);
      stream.fill(lease.data(), tile.size() / 2, static_cast<float>(round));
      stream.synchronize();
    }
  }
  const tern::trace::Range range("read the results");
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < grid.size(); ++i) {
    const auto values = grid[i].read_host();
    const bool is_right = values[0] == static_cast<float>(rounds) &&
                          values[values.size() - 1] == static_cast<float>(100 + i);
    wrong += is_right ? 0U : 1U;
  }
  return wrong;
}

std::string moves_json() {
  const tern::UnifiedStatistics totals = tern::unified_totals();
  std::string text = ", \"moves\": {";
  bool is_first = true;
  for (std::size_t i = 0; i < tern::transfer_reasons; ++i) {
    if (totals.by_reason[i].copies == 0) continue;
    if (!is_first) text += ", ";
    is_first = false;
    text += counted::json(name(static_cast<tern::TransferReason>(i)), totals.by_reason[i]);
  }
  return text + "}, " + counted::json("elided", totals.elided);
}

}  // namespace

int main(int argc, char** argv) {
  const counted::Setting setting = counted::Setting::of(argc, argv);
  const tern::Device& device = setting.device;
  const std::size_t count = 32 * 1024 * setting.factor;
  const std::size_t all_bytes = tiles * count * sizeof(float);
  const auto budget = tern::Budget::make("tiles", tern::BudgetLimit::bytes(all_bytes / 4));
  const auto held = std::make_shared<tern::PoolResource>(device);
  const counted::CountedPool pool(held, std::make_shared<tern::BudgetResource>(held, budget));
  std::optional<counted::CountedPool> pinned;
  std::vector<const counted::CountedPool*> pools = {&pool};
  // If a device can access host memory, a buffer has a separate copy on it only if the buffer was
  // created on the host device.
  tern::UnifiedOptions options{
      .device = device.can(tern::Capability::host_access) ? tern::open_device("host") : device,
      .resources = {pool.memory()}};
  if (device.info().is_host) {
    // Buffers of the host have only the host's copy, which is evicted to a file.
    options.pinned = tern::Pinned::never;
    options.spill =
        tern::SpillFile::open({.directory = std::filesystem::temp_directory_path().string(),
                               .limit_bytes = 2 * all_bytes});
  } else if (device.can(tern::Capability::pinned_memory)) {
    pools.push_back(&pinned.emplace(device, tern::MemoryKind::pinned));
    options.resources.push_back(pinned->memory());
  }
  std::vector<tern::UnifiedBuffer<float>> grid;
  for (std::size_t i = 0; i < tiles; ++i) {
    options.tag = i % 2 == 0 ? "density" : "velocity";
    grid.emplace_back(tern::Shape{count}, options);
    const auto values = grid.back().discard_host();
    counted::fill({values.data(), values.size()}, static_cast<float>(100 + i));
  }
  const std::size_t wrong = run(setting, grid);
  grid.resize(tiles / 2);
  device.synchronize();
  tern::trace::stop();
  if (wrong != 0) {
    std::fprintf(stderr, "%zu of %zu tiles are wrong\n", wrong, tiles);
    return 1;
  }
  const tern::PressureStatistics pressure = tern::pressure_totals();
  counted::print_counters(
      pools, ", " + counted::json("evictions", pressure.evicted()) +
                 ", \"written_back_bytes\": " + std::to_string(pressure.written_back_bytes) +
                 ", \"spilled_bytes\": " + std::to_string(pressure.spilled_bytes) + moves_json());
}
