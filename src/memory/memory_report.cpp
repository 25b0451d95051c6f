#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "memory/block_table.hpp"
#include "tern/core/bytes.hpp"
#include "tern/memory/guard_resource.hpp"
#include "tern/memory/tracking_resource.hpp"

namespace tern {
namespace {

/// Returns the resource that registers the blocks of a stack: the outermost guard, or the bottom.
const Resource* maker_of(const Resource* resource) noexcept {
  while (const auto* wrapping = dynamic_cast<const WrappingResource*>(resource)) {
    if (dynamic_cast<const GuardResource*>(wrapping) != nullptr) break;
    resource = wrapping->upstream().get();
  }
  return resource;
}

}  // namespace

MemoryReport memory_report(const Resource& resource) {
  MemoryReport report;
  report.resource = resource.name();
  report.device = resource.device().spec();
  report.statistics = resource.statistics();
  report.activity = resource.device().activity();
  const Resource* const maker = maker_of(&resource);
  for_each_live_block([&](Generation generation) {
    const Result<BlockFacts> facts = try_find_block(generation);
    if (!facts || facts->owner != maker) return;
    auto known = std::ranges::find(report.tags, facts->tag, &TagTotal::tag);
    if (known == report.tags.end()) known = report.tags.insert(known, {facts->tag});
    known->live_bytes += facts->bytes;
    ++known->live_blocks;
    report.tagged_bytes += facts->bytes;
  });
  std::ranges::stable_sort(
      report.tags, [](const auto& a, const auto& b) { return a.live_bytes > b.live_bytes; });
  return report;
}

std::string MemoryReport::text() const {
  const Statistics& s = statistics;
  std::string text = fmt::format(
      "{} on '{}': {} used in {} blocks, peak {}, {} pending, {} held\n"
      "hit rate {:.1f} %, fragmentation {:.1f} %, {} requests, {} refused, {} frees failed\n"
      "{} launches, {} events, {} stream waits, {} host waits\n",
      resource, device, format_bytes(s.live_bytes), s.live_blocks, format_bytes(s.peak_live_bytes),
      format_bytes(s.pending_bytes), format_bytes(s.reserved_bytes), 100 * s.hit_rate(),
      100 * s.fragmentation(), s.requests, s.refusals, s.failed_frees, activity.launches,
      activity.events, activity.stream_waits, activity.host_waits);
  for (const TagTotal& one : tags) {
    fmt::format_to(std::back_inserter(text), "  {} in {} blocks with tag '{}'\n",
                   format_bytes(one.live_bytes), one.live_blocks, one.tag.name());
  }
  text.pop_back();
  return text;
}

}  // namespace tern
