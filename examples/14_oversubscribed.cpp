// A working set of four times what the device may hold: copies go when memory is short, and dirty
// ones are written home first. Then the same with a host that is small too, where what it cannot
// hold is in a file without a name. Nothing in the loop knows of it.
//
//   14_oversubscribed [DEVICE]   such as opencl:0, host or cuda:0; sim if none is named

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <tern/backends/catalog.hpp>
#include <tern/coherence/pressure.hpp>
#include <tern/coherence/spill_file.hpp>
#include <tern/coherence/unified_buffer.hpp>
#include <tern/device/stream.hpp>
#include <tern/memory/budget_resource.hpp>
#include <tern/memory/driver_resource.hpp>
#include <tern/memory/pool_resource.hpp>
#include <vector>

namespace {

constexpr std::size_t tiles = 16, rounds = 3, part = 16 * 1024, count = (rounds + 1) * part;
constexpr std::size_t tile_bytes = count * sizeof(float), all_bytes = tiles * tile_bytes;
constexpr std::size_t device_bytes = all_bytes / 4, host_bytes = all_bytes / 2;

/// What the host writes to a tile, and what a round adds in front of it.
float value_of(std::size_t tile, std::size_t round) {
  return static_cast<float>(100 * tile + round);
}

unsigned long long kib_of(std::uint64_t bytes) { return bytes / 1024; }

/// What had to go since then, by kind.
void print_since(const tern::PressureStatistics& before) {
  const tern::PressureStatistics now = tern::pressure_totals();
  const auto print = [](const char* place, const auto& counts, const auto& counts_before) {
    std::printf("  evicted from the %-7s", place);
    for (std::size_t i = 0; i < tern::eviction_kinds; ++i) {
      const std::string_view kind = name(static_cast<tern::Eviction>(i));
      const unsigned long long copies = counts[i].copies - counts_before[i].copies;
      std::printf(" %3llu %.*s", copies, static_cast<int>(kind.size()), kind.data());
    }
    std::printf("\n");
  };
  print("device:", now.device, before.device);
  print("host:", now.host, before.host);
  std::printf("  written back %llu KiB, spilled %llu KiB, read back from the file %llu KiB\n",
              kib_of(now.written_back_bytes - before.written_back_bytes),
              kib_of(now.spilled_bytes - before.spilled_bytes),
              kib_of(now.unspilled_bytes - before.unspilled_bytes));
}

/// Every tile is a history: each round moves all of it on by one part, on the device, and writes a
/// new first part. Every element in the end is one that came along. Returns how many are wrong.
std::size_t stream_through(const tern::Device& device, const tern::UnifiedOptions& options) {
  const tern::Stream stream(device);
  std::vector<tern::UnifiedBuffer<float>> grid;
  for (std::size_t i = 0; i < tiles; ++i) {
    grid.emplace_back(tern::Shape{count}, options);
    std::ranges::fill(grid.back().discard_host(), value_of(i, 0));
  }
  for (std::size_t round = 1; round <= rounds; ++round) {
    for (std::size_t i = 0; i < tiles; ++i) {
      const tern::DeviceLease<float> lease = grid[i].rw_device(stream);
      float* const data = lease.data();
      for (std::size_t k = rounds; k > 0; --k) {
        stream.copy(data + k * part, data + (k - 1) * part, part * sizeof(float));
      }
      stream.fill(data, part, value_of(i, round));
    }
  }
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < tiles; ++i) {
    const auto tile = grid[i].read_host();
    for (std::size_t k = 0; k < count; ++k) {
      wrong += tile[k] == value_of(i, rounds - k / part) ? 0u : 1u;
    }
  }
  std::printf("  %zu elements, %zu of them wrong\n", tiles * count, wrong);
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  const auto opened = tern::try_open_device(argc > 1 ? argv[1] : "sim?seed=14");
  if (!opened) {
    std::fprintf(stderr, "%s\n", opened.failure().text().c_str());
    return 2;
  }
  const tern::Device device = *opened;
  const std::string spec(device.spec());
  const bool is_host = device.info().is_host;
  const auto budget = tern::Budget::make("device", tern::BudgetLimit::bytes(device_bytes));
  const auto host_budget = tern::Budget::make("host", tern::BudgetLimit::bytes(host_bytes));
  tern::UnifiedOptions options{
      // A device that shares the host's memory has copies of its own in buffers that are the
      // host's.
      .device = device.can(tern::Capability::host_access) ? tern::open_device("host") : device,
      .tag = "tile",
      .resources = {std::make_shared<tern::BudgetResource>(
          std::make_shared<tern::PoolResource>(device), budget)}};

  std::size_t wrong = 0;
  tern::PressureStatistics before = tern::pressure_totals();
  if (is_host) {
    // It has no copies apart from the host's, which only the file can take.
    std::printf("%llu KiB through %llu KiB on '%s' and a file:\n", kib_of(all_bytes),
                kib_of(device_bytes), spec.c_str());
  } else {
    std::printf("%llu KiB through %llu KiB on '%s':\n", kib_of(all_bytes), kib_of(device_bytes),
                spec.c_str());
    wrong += stream_through(device, options);
    print_since(before);
    if (tern::pressure_totals().written_back_bytes == before.written_back_bytes) return 1;
    std::printf("the same with %llu KiB on the host, and a file:\n", kib_of(host_bytes));
  }

  options.pinned = tern::Pinned::never;
  options.resources.push_back(std::make_shared<tern::BudgetResource>(
      std::make_shared<tern::DirectResource>(tern::open_device("host")), host_budget));
  options.spill = tern::SpillFile::open(
      {.directory = std::filesystem::temp_directory_path().string(), .limit_bytes = 2 * all_bytes});
  before = tern::pressure_totals();
  wrong += stream_through(device, options);
  print_since(before);
  if (tern::pressure_totals().spilled_bytes == before.spilled_bytes) return 1;

  // What cannot fit is refused at once, and nothing goes for it.
  tern::UnifiedBuffer<float> large(tern::Shape{tiles * count}, options);
  const tern::Stream stream(device);
  const auto refused = large.try_discard_device(stream);
  if (refused) return 1;
  std::printf("refused: %s\n", refused.failure().text().c_str());
  const bool kept = budget->peak_bytes() <= device_bytes && host_budget->peak_bytes() <= host_bytes;
  return wrong == 0 && kept ? 0 : 1;
}
