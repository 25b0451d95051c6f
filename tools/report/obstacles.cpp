#include "tools/report/obstacles.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_map>

namespace tern::tools {
namespace {

/// Memory from an address to `end`: a live block, or what was freed last.
struct Range {
  std::uint64_t end = 0;
  std::uint32_t block = 0;  // index
  bool is_live = true;
};
using Ranges = std::map<std::uint64_t, Range>;

class Replay {
 public:
  Replay(const TraceSummary& summary, std::span<const Moment> moments) : summary_(summary) {
    for (const Moment& one : moments) resources_[one.resource];
    for (std::uint32_t i = 0; i < summary.blocks.size(); ++i) {
      if (summary.blocks[i].end != TraceSummary::never) by_end_.push_back(i);
    }
    std::ranges::stable_sort(by_end_, {}, [&](std::uint32_t i) { return summary.blocks[i].end; });
  }

  Obstacles at(const Moment& moment) {
    advance(moment.time);
    Obstacles found;
    const Ranges& ranges = resources_[moment.resource];
    find_pieces(ranges, moment, found);
    find_pending(ranges, moment, found);
    return found;
  }

 private:
  const TraceSummary::Block& block(const Range& range) const {
    return summary_.blocks[range.block];
  }

  /// Applies everything before `time`, and what ends at `time`.
  void advance(std::uint64_t time) {
    const std::vector<TraceSummary::Block>& blocks = summary_.blocks;
    while (begun_ < blocks.size() && blocks[begun_].begin < time) {
      end_until(blocks[begun_].begin);
      begin(static_cast<std::uint32_t>(begun_++));
    }
    end_until(time);
  }
  void end_until(std::uint64_t time) {
    for (; ended_ < by_end_.size() && by_end_[ended_] < begun_ &&
           summary_.blocks[by_end_[ended_]].end <= time;
         ++ended_) {
      const TraceSummary::Block& ended = summary_.blocks[by_end_[ended_]];
      const auto resource = resources_.find(ended.resource);
      if (resource == resources_.end()) continue;
      const auto range = resource->second.find(ended.address);
      if (range == resource->second.end() || range->second.block != by_end_[ended_]) continue;
      range->second.is_live = false;
    }
  }
  void begin(std::uint32_t index) {
    const TraceSummary::Block& one = summary_.blocks[index];
    const auto resource = resources_.find(one.resource);
    if (resource == resources_.end() || one.bytes == 0) return;
    Ranges& ranges = resource->second;
    const std::uint64_t first = one.address, last = one.address + one.bytes;
    if (last < first) return;
    auto at = ranges.upper_bound(first);
    if (at != ranges.begin() && std::prev(at)->second.end > first) --at;
    while (at != ranges.end() && at->first < last) {
      const Range old = at->second;
      const std::uint64_t old_first = at->first;
      at = ranges.erase(at);
      if (old_first < first) ranges[old_first] = {first, old.block, old.is_live};
      if (old.end > last) ranges[last] = old;
    }
    ranges[first] = {last, index, true};
  }

  void find_pieces(const Ranges& ranges, const Moment& moment, Obstacles& found) const {
    std::map<std::pair<std::uint32_t, std::uint32_t>, TraceSummary::Share> between;
    std::uint64_t end_before = 0, free_bytes = 0;
    // Live blocks since the last free range of this run of adjacent ranges.
    std::vector<const TraceSummary::Block*> since;
    bool has_free_before = false;
    for (const auto& [address, range] : ranges) {
      if (address != end_before) {
        since.clear();
        has_free_before = false;
        free_bytes = 0;
      }
      end_before = range.end;
      if (range.is_live) {
        if (has_free_before) since.push_back(&block(range));
        free_bytes = 0;
        continue;
      }
      if (is_pending(range, moment)) {
        free_bytes = 0;
        continue;
      }
      if (free_bytes == 0) ++found.free_ranges;
      free_bytes += range.end - address;
      found.largest_free = std::max(found.largest_free, free_bytes);
      for (const TraceSummary::Block* one : since) {
        TraceSummary::Share& share = between[{one->tag, one->site}];
        share.tag = one->tag;
        share.site = one->site;
        share.bytes += one->bytes;
        ++share.blocks;
      }
      since.clear();
      has_free_before = true;
    }
    for (const auto& [key, share] : between) found.between.push_back(share);
    std::ranges::stable_sort(found.between, std::ranges::greater(), &TraceSummary::Share::bytes);
  }

  [[nodiscard]] bool is_pending(const Range& range, const Moment& moment) const {
    if (range.is_live) return false;
    const TraceSummary::Block& freed = block(range);
    return freed.free_stream != moment.stream && moment.time < freed.pending_until;
  }
  void find_pending(const Ranges& ranges, const Moment& moment, Obstacles& found) const {
    // Bytes by stream, tag, line of the allocation, and line of the free.
    using Key = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>;
    std::map<Key, std::uint64_t> lines;
    for (auto at = ranges.begin(); at != ranges.end();) {
      // Adjacent ranges of one stream are one when the stream has passed them.
      auto last = at;
      std::uint64_t bytes = 0;
      const auto belongs = [&](const Ranges::const_iterator& to) {
        return to != ranges.end() && is_pending(to->second, moment) &&
               block(to->second).free_stream == block(at->second).free_stream &&
               (to == at || std::prev(to)->second.end == to->first);
      };
      for (; belongs(last); ++last) bytes += last->second.end - last->first;
      if (last == at) {
        ++at;
        continue;
      }
      for (; at != last; ++at) {
        if (bytes < moment.requested) continue;
        const TraceSummary::Block& freed = block(at->second);
        lines[{freed.free_stream, freed.tag, freed.site, freed.free_site}] +=
            at->second.end - at->first;
      }
    }
    std::uint64_t most = 0;
    for (const auto& [key, bytes] : lines) {
      const auto [stream, tag, site, free_site] = key;
      if (found.pending.empty() || found.pending.back().stream != stream) {
        found.pending.push_back({stream, 0, 0, 0, 0});
        most = 0;
      }
      Obstacles::Pending& pending = found.pending.back();
      pending.bytes += bytes;
      if (bytes <= most) continue;
      most = bytes;
      pending.tag = tag;
      pending.site = site;
      pending.free_site = free_site;
    }
    std::ranges::stable_sort(found.pending, std::ranges::greater(), &Obstacles::Pending::bytes);
  }

  const TraceSummary& summary_;
  std::unordered_map<std::uint32_t, Ranges> resources_;
  std::vector<std::uint32_t> by_end_;
  std::size_t begun_ = 0, ended_ = 0;
};

}  // namespace

std::vector<Obstacles> obstacles_at(const TraceSummary& summary, std::span<const Moment> moments) {
  std::vector<Obstacles> all;
  if (moments.empty()) return all;
  Replay replay(summary, moments);
  for (const Moment& one : moments) all.push_back(replay.at(one));
  return all;
}

}  // namespace tern::tools
