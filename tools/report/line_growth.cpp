#include "tools/report/line_growth.hpp"

#include <algorithm>
#include <map>
#include <tuple>

namespace tern::tools {
namespace {

constexpr std::size_t min_rises = LineGrowth::parts - 2;

/// Live memory of one line in one device.
struct Line {
  LineGrowth growth;
  std::size_t part = 0;
  std::uint64_t last_time = 0;  // of an allocation

  /// Enters a part. The parts in between saw no change.
  void enter(std::size_t now) {
    if (part < now && growth.first_blocks == 0) {
      growth.first_time = last_time;
      growth.first_bytes = growth.bytes;
      growth.first_blocks = growth.blocks;
    }
    while (part < now) growth.floors[++part] = growth.bytes;
  }
  void add(const TraceSummary::Block& block, std::size_t now) {
    enter(now);
    last_time = block.begin;
    growth.bytes += block.bytes;
    ++growth.blocks;
  }
  void remove(const TraceSummary::Block& block, std::size_t now) {
    enter(now);
    growth.bytes -= block.bytes;
    --growth.blocks;
    growth.floors[now] = std::min(growth.floors[now], growth.bytes);
  }
  [[nodiscard]] bool keeps_growing() const {
    std::size_t rises = 0;
    for (std::size_t i = 1; i < LineGrowth::parts; ++i) {
      if (growth.floors[i] < growth.floors[i - 1]) return false;
      if (growth.floors[i] > growth.floors[i - 1]) ++rises;
    }
    return rises >= min_rises && growth.blocks >= LineGrowth::parts;
  }
};

struct DeviceCount {
  std::uint64_t allocations = 0, seen = 0, frees = 0, last_allocation = 0;

  [[nodiscard]] std::size_t part() const {
    if (seen == 0) return 0;
    return static_cast<std::size_t>((seen - 1) * LineGrowth::parts / allocations);
  }
};

/// Visits the blocks in the order in which they begin and end.
class GrowthFinder {
 public:
  explicit GrowthFinder(const TraceSummary& summary)
      : summary_(summary), devices_(summary.devices.size()) {}

  std::vector<LineGrowth> find() {
    const std::vector<TraceSummary::Block>& blocks = summary_.blocks;
    std::vector<std::uint32_t> by_end;
    for (std::uint32_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i].end != TraceSummary::never) by_end.push_back(i);
      if (!is_recorded(blocks[i])) continue;
      DeviceCount& device = device_of(blocks[i]);
      ++device.allocations;
      device.last_allocation = blocks[i].begin;
    }
    std::ranges::stable_sort(by_end, {}, [&](std::uint32_t i) { return blocks[i].end; });
    std::size_t ended = 0;
    for (std::uint32_t i = 0; i < blocks.size(); ++i) {
      for (; ended < by_end.size() && by_end[ended] < i &&
             blocks[by_end[ended]].end <= blocks[i].begin;
           ++ended) {
        end(blocks[by_end[ended]]);
      }
      begin(blocks[i]);
    }
    return growing();
  }

 private:
  /// A block from before the recording begins at 0 and has no line.
  static bool is_recorded(const TraceSummary::Block& block) {
    return block.begin > 0 || block.site != 0;
  }
  DeviceCount& device_of(const TraceSummary::Block& block) {
    return devices_[summary_.resources[block.resource].device];
  }
  Line& line_of(const TraceSummary::Block& block) {
    const std::uint32_t device = summary_.resources[block.resource].device;
    Line& line = lines_[{device, block.tag, block.site}];
    line.growth.device = device;
    line.growth.tag = block.tag;
    line.growth.site = block.site;
    return line;
  }
  void begin(const TraceSummary::Block& block) {
    DeviceCount& device = device_of(block);
    if (is_recorded(block)) ++device.seen;
    Line& line = line_of(block);
    line.add(block, device.part());
    if (block.end == TraceSummary::never) {
      ++line.growth.kept_blocks;
    } else if (block.end > device.last_allocation) {
      line.growth.freed_time = std::max(line.growth.freed_time, block.end);
    }
  }
  void end(const TraceSummary::Block& block) {
    DeviceCount& device = device_of(block);
    if (block.end > device.last_allocation) return;
    ++device.frees;
    line_of(block).remove(block, device.part());
  }
  std::vector<LineGrowth> growing() {
    std::vector<LineGrowth> found;
    for (auto& [key, line] : lines_) {
      line.enter(LineGrowth::parts - 1);
      if (!line.keeps_growing()) continue;
      const DeviceCount& device = devices_[line.growth.device];
      line.growth.time = device.last_allocation;
      line.growth.is_in_loop = 4 * device.frees >= device.allocations;
      found.push_back(line.growth);
    }
    std::ranges::stable_sort(found, std::ranges::greater(), &LineGrowth::growth);
    return found;
  }

  const TraceSummary& summary_;
  std::vector<DeviceCount> devices_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, Line> lines_;
};

}  // namespace

std::vector<LineGrowth> line_growth(const TraceSummary& summary) {
  return GrowthFinder(summary).find();
}

}  // namespace tern::tools
