// The cost of a unified buffer: a lease that moves nothing, a change of a small part of a large
// buffer, alternating accesses that mostly read, and the transfer rates to a device and back.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "bench/copy_stage.hpp"
#include "bench/instruction_count.hpp"
#include "bench/measure.hpp"
#include "tern/coherence/unified_buffer.hpp"
#include "tern/core/bytes.hpp"

namespace tern::bench {
namespace {

constexpr double goal_lease_ns = 40;
constexpr double goal_share_percent = 1.1;
constexpr double goal_ping_pong_percent = 10;

void add_leases(Context& context, const CopyStage& stage) {
  constexpr std::size_t rounds = 1000;
  UnifiedBuffer<float> buffer(Shape{1024}, {.device = stage.device(), .tag = "bench"});
  const StreamRef stream = stage.stream();
  std::ranges::fill(buffer.discard_host(), 1.0f);
  buffer.sync_to_device();
  const auto add = [&](const std::string& name, const auto& lease) {
    context.step(name);
    lease();
    stream.synchronize();
    context.add({.name = name,
                 .value = median_ns(
                     [&] {
                       for (std::size_t i = 0; i < rounds; ++i) lease();
                     },
                     rounds, context.seconds_per_figure()),
                 .unit = "ns",
                 .better = Better::lower,
                 .goal = goal_lease_ns});
    add_instructions(context, name, [&] { lease(); });
  };
  add("a host read, opened and closed", [&] { static_cast<void>(buffer.read_host()); });
  add("a device read, opened and closed", [&] { static_cast<void>(buffer.read_device(stream)); });
  static_cast<void>(buffer.rw_device(stream));
  add("a device rw, opened and closed", [&] { static_cast<void>(buffer.rw_device(stream)); });
  static_cast<void>(buffer.rw_host());
  add("a host rw, opened and closed", [&] { static_cast<void>(buffer.rw_host()); });
}

void add_small_part(Context& context, const CopyStage& stage) {
  const std::size_t bytes = context.usual_or_quick(1 * gib, 32 * mib);
  context.step("a hundredth of it changes");
  UnifiedBuffer<std::uint8_t> buffer(Shape{bytes}, {.device = stage.device(), .tag = "bench"});
  buffer.fill(1);
  buffer.sync_to_device();
  const std::uint64_t before = buffer.statistics().moved().bytes + buffer.statistics().elided.bytes;
  // In a hundred separate ranges.
  const std::size_t part = bytes / 10000;
  for (std::size_t i = 0; i < 100; ++i) {
    std::ranges::fill(buffer.slice(i * (bytes / 100), part).discard_host(), std::uint8_t{2});
  }
  buffer.sync_to_device();
  const std::uint64_t moved =
      buffer.statistics().moved().bytes + buffer.statistics().elided.bytes - before;
  context.add({.name = fmt::format("moved of {} when 1 % of it changed", format_bytes(bytes)),
               .value = 100.0 * static_cast<double>(moved) / static_cast<double>(bytes),
               .unit = "%",
               .better = Better::lower,
               .goal = goal_share_percent});
}

void add_ping_pong(Context& context, const CopyStage& stage) {
  constexpr std::size_t rounds = 100, bytes = 1 * mib;
  context.step("ping-pong");
  const StreamRef stream = stage.stream();
  const auto moved = [&](bool reads) {
    UnifiedBuffer<std::uint8_t> buffer(Shape{bytes}, {.device = stage.device(), .tag = "bench"});
    buffer.fill(1);
    for (std::size_t i = 0; i < rounds; ++i) {
      if (reads && i % 20 != 0) {
        static_cast<void>(buffer.read_device(stream));
        static_cast<void>(buffer.read_host());
      } else {
        static_cast<void>(buffer.rw_device(stream));
        static_cast<void>(buffer.rw_host());
      }
    }
    return static_cast<double>(buffer.statistics().moved().bytes +
                               buffer.statistics().elided.bytes);
  };
  context.add({.name = "moved by ping-pong that writes every twentieth time",
               .value = 100.0 * moved(true) / moved(false),
               .unit = "% of always dirty",
               .better = Better::lower,
               .goal = goal_ping_pong_percent});
}

/// The host has changed the bytes and a device reads them, or the reverse.
void add_rates(const CopyStage& stage, Pinned pinned) {
  Context& context = stage.context();
  const bool is_pinned = pinned == Pinned::required;
  // Without a driver to compare with, a larger size gives no new information.
  const std::size_t usual = is_pinned ? 256 * mib : stage.raw() != nullptr ? gib : 64 * mib;
  const std::size_t bytes = context.usual_or_quick(usual, 1 * mib);
  const StreamRef stream = stage.stream();
  UnifiedBuffer<std::uint8_t> buffer(Shape{bytes},
                                     {.device = stage.device(), .tag = "bench", .pinned = pinned});
  buffer.fill(1);
  const DeviceMemory device = stage.memory(MemoryKind::device, bytes);
  const DeviceMemory locked =
      is_pinned ? stage.memory(MemoryKind::pinned, bytes) : DeviceMemory(nullptr, {stage.device()});
  const HeapMemory heap = is_pinned ? nullptr : heap_memory(bytes, 1);
  std::byte* const host = is_pinned ? locked.get() : heap.get();
  const auto add = [&](const char* direction, std::byte* to, const std::byte* from,
                       const Body& ours) {
    CopyFigure figure = {.name = fmt::format("{} {} to the {}", format_bytes(bytes),
                                             is_pinned ? "page-locked" : "pageable", direction),
                         .bytes = bytes,
                         .raw_name = "cuMemcpyAsync",
                         .plain_name = "one copy of the stream's"};
    if (is_pinned) {
      figure.goal_ratio = goal_copy_ratio;
    } else if (to == host) {
      figure.goal = goal_staged_to_host;
      figure.goal_ratio = goal_staged_ratio_to_host;
    } else {
      figure.goal = goal_staged_to_device;
      figure.goal_ratio = goal_staged_ratio_to_device;
    }
    stage.compare(
        figure, ours,
        [&] {
          stage.raw()->copy(to, from, bytes);
          stage.raw()->synchronize();
        },
        [&] {
          stream.copy(to, from, bytes);
          stream.synchronize();
        });
  };
  add("device", device.get(), host, [&] {
    buffer.mark_host_dirty();
    static_cast<void>(buffer.read_device(stream));
    stream.synchronize();
  });
  add("host", host, device.get(), [&] {
    buffer.mark_device_dirty(stream);
    static_cast<void>(buffer.read_host());
  });
}

void run(Context& context) {
  const CopyStage stage(context);
  add_leases(context, stage);
  add_small_part(context, stage);
  add_ping_pong(context, stage);
  if (stage.device().can(Capability::host_access)) {
    context.note(
        fmt::format("'{}' uses the host's own memory: nothing is copied, so there is no "
                    "rate.",
                    stage.device().spec()));
    return;
  }
  if (stage.device().can(Capability::pinned_memory)) add_rates(stage, Pinned::required);
  add_rates(stage, Pinned::never);
}

const Registration registered({"coherence.lease", "leases, parts and copies of unified buffers",
                               run});

}  // namespace
}  // namespace tern::bench
