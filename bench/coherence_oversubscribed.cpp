// Moves a working set of four times the device budget through unified buffers, and compares the
// rate with copies of the same bytes by hand.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bench/contestants.hpp"
#include "bench/measure.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/coherence/pressure.hpp"
#include "tern/coherence/spill_file.hpp"
#include "tern/coherence/unified_buffer.hpp"
#include "tern/core/bytes.hpp"
#include "tern/memory/budget_resource.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern::bench {
namespace {

constexpr double goal_ratio = 0.7;
constexpr std::size_t slots = 8, chunks = 4 * slots;
/// The work on a chunk touches only this much, because the case measures the copies.
constexpr std::size_t touched_bytes = 4096;

using Chunk = UnifiedBuffer<std::uint8_t>;

/// The chunks. The device budget holds a quarter of them.
class WorkingSet {
 public:
  WorkingSet(const Stage& stage, std::size_t chunk_bytes, UnifiedOptions options)
      : stream_(stage.streams[0]),
        device_budget_(Budget::make("device", BudgetLimit::bytes(slots * chunk_bytes))) {
    // A device that shares the host's memory would not need copies. The buffers then belong to the
    // host device, and copies to the other device are made.
    options.device = stage.device.can(Capability::host_access) ? open_device("host") : stage.device;
    options.tag = "bench";
    options.resources.push_back(std::make_shared<BudgetResource>(
        std::make_shared<PoolResource>(stage.device), device_budget_));
    for (std::size_t i = 0; i < chunks; ++i) {
      all_.emplace_back(Shape{chunk_bytes}, options);
      std::ranges::fill(all_.back().discard_host(), std::uint8_t{1});
    }
  }
  void change() {
    for (Chunk& one : all_) {
      const DeviceLease<std::uint8_t> lease = one.rw_device(stream_);
      stream_.fill(lease.data(), touched_bytes, std::uint8_t{2});
    }
    stream_.device().synchronize();
  }
  void read() {
    for (const Chunk& one : all_) static_cast<void>(one.read_device(stream_));
    stream_.device().synchronize();
  }

 private:
  const StreamRef stream_;
  const BudgetHandle device_budget_;
  std::vector<Chunk> all_;
};

/// The same by hand: a ring of slots, one stream for each direction.
class ByHand {
 public:
  ByHand(const Stage& stage, std::size_t chunk_bytes)
      : up_(stage.streams[1]), down_(stage.streams[2]), bytes_(chunk_bytes) {
    const MemoryKind kind =
        stage.device.can(Capability::pinned_memory) ? MemoryKind::pinned : MemoryKind::device;
    const Device home = kind == MemoryKind::pinned ? stage.device : open_device("host");
    for (std::size_t i = 0; i < chunks; ++i) {
      host_.push_back(Buffer::allocate(home, Shape{bytes_}, DType::byte,
                                       {.kind = kind, .contents = Contents::zero}));
    }
    for (std::size_t i = 0; i < slots; ++i) {
      device_.push_back(Buffer::allocate(stage.device, Shape{bytes_}, DType::byte));
    }
  }
  void run(bool writes_back) {
    for (std::size_t i = 0; i < chunks; ++i) {
      void* const slot = reinterpret_cast<void*>(device_[i % slots].address());
      void* const home = reinterpret_cast<void*>(host_[i].address());
      if (writes_back && i >= slots) up_.wait(written_[i % slots]);
      up_.copy(slot, home, bytes_);
      up_.fill(static_cast<std::uint8_t*>(slot), touched_bytes, std::uint8_t{2});
      if (!writes_back) continue;
      down_.wait(up_.mark());
      down_.copy(home, slot, bytes_);
      written_[i % slots] = down_.mark();
    }
    up_.device().synchronize();
  }

 private:
  const StreamRef up_, down_;
  const std::size_t bytes_;
  std::vector<Buffer> host_, device_;
  Mark written_[slots] = {};
};

std::string went(const PressureStatistics& before, const PressureStatistics& after) {
  const auto count = [&](Eviction kind) {
    return after.on_device(kind).copies - before.on_device(kind).copies;
  };
  return fmt::format("evicted: {} stale, {} clean, {} dirty; {} written back, {} spilled",
                     count(Eviction::stale), count(Eviction::clean), count(Eviction::dirty),
                     format_bytes(after.written_back_bytes - before.written_back_bytes),
                     format_bytes(after.spilled_bytes - before.spilled_bytes));
}

void run(Context& context) {
  const Stage stage(context);
  const std::size_t chunk_bytes = context.usual_or_quick(16 * mib, 256 * kib);
  const std::size_t bytes = chunks * chunk_bytes;
  const auto rate = [&](double seconds) { return static_cast<double>(bytes) / seconds / 1e9; };
  if (stage.device.info().is_host) {
    context.note("the host device shares memory with the host: its copies go to a file only.");
  } else {
    WorkingSet set(stage, chunk_bytes, {});
    ByHand by_hand(stage, chunk_bytes);
    const auto add = [&](const std::string& name, const Body& ours, const Body& raw) {
      context.step(name);
      const PressureStatistics before = pressure_totals();
      const std::vector<double> seconds = median_seconds({ours, raw}, context.seconds_per_figure());
      context.note(name + ": " + went(before, pressure_totals()) + ".");
      context.add({.name = fmt::format("{} of {} on a budget of {}", name, format_bytes(bytes),
                                       format_bytes(bytes / 4)),
                   .value = rate(seconds[0]),
                   .unit = "GB/s",
                   .baseline_name = "the same copies by hand",
                   .baseline = rate(seconds[1]),
                   .goal_ratio = goal_ratio});
    };
    add(
        "reading", [&] { set.read(); }, [&] { by_hand.run(false); });
    add(
        "changing", [&] { set.change(); }, [&] { by_hand.run(true); });
  }
  // The host budget holds one half, and the rest is in a spill file. The rate depends on the disk,
  // so there is no goal.
  context.step("changing, with the host capped");
  const BudgetHandle host_budget = Budget::make("host", BudgetLimit::bytes(bytes / 2));
  WorkingSet spilled(
      stage, chunk_bytes,
      {.pinned = Pinned::never,
       .resources = {std::make_shared<BudgetResource>(
           std::make_shared<DirectResource>(open_device("host")), host_budget)},
       .spill = SpillFile::open({.directory = std::filesystem::temp_directory_path().string(),
                                 .limit_bytes = 2 * bytes})});
  const PressureStatistics before = pressure_totals();
  const std::vector<double> seconds =
      median_seconds({[&] { spilled.change(); }}, context.seconds_per_figure());
  context.note("changing, with the host capped: " + went(before, pressure_totals()) + ".");
  context.add({.name = fmt::format("changing with {} on the host too, through a spill file",
                                   format_bytes(bytes / 2)),
               .value = rate(seconds[0]),
               .unit = "GB/s"});
}

const Registration registered({"coherence.oversubscribed",
                               "four times a device's budget through unified buffers", run});

}  // namespace
}  // namespace tern::bench
