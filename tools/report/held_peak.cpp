#include "tools/report/held_peak.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "tern/core/bytes.hpp"
#include "tools/report/obstacles.hpp"

namespace tern::tools {
namespace {

/// The highest held memory of a device, and what each of its pools held then.
struct Held {
  std::uint64_t now = 0, most = 0, time = 0;
  std::map<std::uint32_t, std::uint64_t> of_resource = {};
};

std::vector<Held> add_up_holds(const TraceSummary& summary) {
  std::vector<Held> devices(summary.devices.size());
  for (const TraceSummary::Hold& hold : summary.holds) {
    Held& device = devices[summary.resources[hold.resource].device];
    device.now += hold.bytes - std::exchange(device.of_resource[hold.resource], hold.bytes);
    if (device.now <= device.most) continue;
    device.most = device.now;
    device.time = hold.time;
  }
  return devices;
}

void add_obstacles(const TraceSummary& summary, const std::map<std::uint32_t, std::uint64_t>& pools,
                   HeldPeak& peak) {
  std::map<std::uint32_t, std::uint64_t> pending;  // by stream
  for (const auto& [resource, held] : pools) {
    const Moment moment{peak.time, 0, resource, Moment::no_stream};
    const Obstacles obstacles = obstacles_at(summary, {&moment, 1}).front();
    peak.largest_free = std::max(peak.largest_free, obstacles.largest_free);
    for (const Obstacles::Pending& one : obstacles.pending) pending[one.stream] += one.bytes;
  }
  for (const auto& [stream, bytes] : pending) {
    peak.pending += bytes;
    if (bytes <= peak.pending_on_stream) continue;
    peak.pending_on_stream = bytes;
    peak.stream = stream;
  }
}

}  // namespace

std::vector<HeldPeak> held_peaks(const TraceSummary& summary) {
  std::vector<HeldPeak> found;
  const std::vector<Held> devices = add_up_holds(summary);
  for (const TraceSummary::Peak& live : summary.peaks) {
    const Held& held = devices[live.device];
    if (held.most <= live.live + live.live / 4) continue;
    HeldPeak peak{live.device, held.time, held.most};
    for (const TraceSummary::Block& block : summary.blocks) {
      const bool is_live = block.begin < held.time && held.time < block.end;
      if (is_live && held.of_resource.contains(block.resource)) peak.live += block.bytes;
    }
    add_obstacles(summary, held.of_resource, peak);
    peak.live = std::min(peak.live, peak.held);
    peak.pending = std::min(peak.pending, peak.held - peak.live);
    peak.free = peak.held - peak.live - peak.pending;
    found.push_back(peak);
  }
  return found;
}

std::string HeldPeak::text(const TraceSummary& summary) const {
  std::string text =
      fmt::format("{}: at {}, pools held the most, {}: {} were live", summary.devices[device],
                  time_text(time), format_bytes(held), format_bytes(live));
  if (pending > 0) {
    text += fmt::format(", {} were pending ({} of it on stream '{}')", format_bytes(pending),
                        format_bytes(pending_on_stream), summary.streams[stream].name);
  }
  text += fmt::format(", and {} were free", format_bytes(free));
  if (largest_free > 0 && free > 0) {
    text += fmt::format(", in ranges of up to {}", format_bytes(std::min(largest_free, free)));
  }
  return text + '.';
}

}  // namespace tern::tools
