// What a unified buffer costs: a lease that moves nothing, a small part of a large buffer that
// changes, ping-pong that mostly reads, and the rate at which it fills a device.

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bench/contestants.hpp"
#include "bench/measure.hpp"
#include "tern/buffer/buffer.hpp"
#include "tern/buffer/copy.hpp"
#include "tern/coherence/unified_buffer.hpp"
#include "tern/core/bytes.hpp"

namespace tern::bench {
namespace {

constexpr double goal_lease_ns = 40;
constexpr double goal_share_percent = 1.1;
constexpr double goal_ping_pong_percent = 10;
constexpr double goal_rate_ratio = 0.95;

void add_leases(Context& context, const Stage& stage) {
  constexpr std::size_t rounds = 1000;
  UnifiedBuffer<float> buffer(Shape{1024}, {.device = stage.device, .tag = "bench"});
  const StreamRef stream = stage.streams[0];
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
  };
  add("a host read, opened and closed", [&] { static_cast<void>(buffer.read_host()); });
  add("a device read, opened and closed", [&] { static_cast<void>(buffer.read_device(stream)); });
  static_cast<void>(buffer.rw_device(stream));
  add("a device rw, opened and closed", [&] { static_cast<void>(buffer.rw_device(stream)); });
  static_cast<void>(buffer.rw_host());
  add("a host rw, opened and closed", [&] { static_cast<void>(buffer.rw_host()); });
}

void add_small_part(Context& context, const Stage& stage) {
  const std::size_t bytes = context.usual_or_quick(1 * gib, 32 * mib);
  context.step("a hundredth of it changes");
  UnifiedBuffer<std::uint8_t> buffer(Shape{bytes}, {.device = stage.device, .tag = "bench"});
  buffer.fill(1);
  buffer.sync_to_device();
  const std::uint64_t before = buffer.stats().moved().bytes + buffer.stats().elided.bytes;
  // In a hundred places.
  const std::size_t part = bytes / 10000;
  for (std::size_t i = 0; i < 100; ++i) {
    std::ranges::fill(buffer.view(i * (bytes / 100), part).discard_host(), std::uint8_t{2});
  }
  buffer.sync_to_device();
  const std::uint64_t moved = buffer.stats().moved().bytes + buffer.stats().elided.bytes - before;
  context.add({.name = fmt::format("moved of {} when 1 % of it changed", format_bytes(bytes)),
               .value = 100.0 * static_cast<double>(moved) / static_cast<double>(bytes),
               .unit = "%",
               .better = Better::lower,
               .goal = goal_share_percent});
}

void add_ping_pong(Context& context, const Stage& stage) {
  constexpr std::size_t rounds = 100, bytes = 1 * mib;
  context.step("ping-pong");
  const StreamRef stream = stage.streams[0];
  const auto moved = [&](bool reads) {
    UnifiedBuffer<std::uint8_t> buffer(Shape{bytes}, {.device = stage.device, .tag = "bench"});
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
    return static_cast<double>(buffer.stats().moved().bytes + buffer.stats().elided.bytes);
  };
  context.add({.name = "moved by ping-pong that writes every twentieth time",
               .value = 100.0 * moved(true) / moved(false),
               .unit = "% of always dirty",
               .better = Better::lower,
               .goal = goal_ping_pong_percent});
}

void add_rate(Context& context, const Stage& stage, Pinned pinned) {
  const std::size_t bytes = context.usual_or_quick(256 * mib, 1 * mib);
  const bool is_pinned = pinned == Pinned::required;
  const std::string kind = is_pinned ? "page-locked" : "pageable";
  context.step(kind + " to the device");
  const StreamRef stream = stage.streams[0];
  UnifiedBuffer<std::uint8_t> buffer(Shape{bytes},
                                     {.device = stage.device, .tag = "bench", .pinned = pinned});
  buffer.fill(1);
  const Buffer device = Buffer::allocate(stage.device, Shape{bytes}, DType::byte);
  std::vector<std::byte> pageable(is_pinned ? 0 : bytes);
  const Buffer host =
      is_pinned ? Buffer::allocate(stage.device, Shape{bytes}, DType::byte,
                                   {.kind = MemoryKind::pinned, .contents = Contents::zero})
                : Buffer();
  const void* const from =
      is_pinned ? reinterpret_cast<const void*>(host.address()) : pageable.data();
  void* const to = reinterpret_cast<void*>(device.address());
  const std::vector<double> seconds =
      median_seconds({[&] {
                        buffer.mark_host_dirty();
                        static_cast<void>(buffer.read_device(stream));
                        stream.synchronize();
                      },
                      [&] {
                        stream.copy(to, from, bytes);
                        stream.synchronize();
                      }},
                     context.seconds_per_figure());
  const auto rate = [bytes](double of) { return static_cast<double>(bytes) / of / 1e9; };
  context.add({.name = fmt::format("{} {} to the device", format_bytes(bytes), kind),
               .value = rate(seconds[0]),
               .unit = "GB/s",
               .baseline_name = "one copy of the stream's",
               .baseline = rate(seconds[1]),
               .goal_ratio = goal_rate_ratio});
}

void run(Context& context) {
  const Stage stage(context);
  add_leases(context, stage);
  add_small_part(context, stage);
  add_ping_pong(context, stage);
  if (stage.device.info().is_host) {
    context.note("the host device shares memory with the host: nothing is copied to it.");
    return;
  }
  if (stage.device.can(Capability::pinned_memory)) add_rate(context, stage, Pinned::required);
  add_rate(context, stage, Pinned::never);
}

const Registration registered({"coherence.lease", "leases, parts and copies of unified buffers",
                               run});

}  // namespace
}  // namespace tern::bench
