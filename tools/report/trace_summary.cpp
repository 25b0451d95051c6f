#include "tools/report/trace_summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "tern/coherence/unified_statistics.hpp"
#include "tern/core/bytes.hpp"
#include "tern/core/error.hpp"
#include "tern/device/device_info.hpp"
#include "tools/report/open_work.hpp"

namespace tern::tools {
namespace {

using trace::DefinitionKind;
using trace::EventKind;
using trace::MemoryEvent;
using trace::MemoryTrace;

/// A hostile trace could refuse a million requests and make each a table.
constexpr std::size_t max_refusals = 200, max_tags = 20, max_sites = 50;
#define TERN_CODE(code, name, base) +1
constexpr std::size_t error_codes = 0 TERN_FOR_EACH_ERROR_CODE(TERN_CODE);
#undef TERN_CODE

/// Assigns indices to the numbers of the trace, in the order in which they appear.
class Indices {
 public:
  template <class Make>
  std::uint32_t of(std::uint64_t number, Make make) {
    const auto [at, is_new] = indices_.try_emplace(number, next_);
    if (is_new) {
      ++next_;
      make();
    }
    return at->second;
  }
  explicit Indices(std::uint32_t first) : next_(first) {}

 private:
  std::unordered_map<std::uint64_t, std::uint32_t> indices_;
  std::uint32_t next_;
};

void keep_largest(std::vector<TraceSummary::Share>& shares, std::size_t max) {
  std::ranges::sort(shares, [](const TraceSummary::Share& a, const TraceSummary::Share& b) {
    return std::tuple(b.bytes, a.tag, a.site) < std::tuple(a.bytes, b.tag, b.site);
  });
  if (shares.size() > max) shares.resize(max);
}

/// Adds up blocks by tag and site.
class Shares {
 public:
  void add(std::uint32_t tag, std::uint32_t site, std::uint64_t bytes) {
    TraceSummary::Share& share = shares_[std::uint64_t{tag} << 32 | site];
    share.tag = tag;
    share.site = site;
    share.bytes += bytes;
    ++share.blocks;
  }
  /// The largest first, at most `max`.
  [[nodiscard]] std::vector<TraceSummary::Share> sorted(std::size_t max) const {
    std::vector<TraceSummary::Share> all;
    for (const auto& [key, share] : shares_) all.push_back(share);
    keep_largest(all, max);
    return all;
  }

 private:
  std::map<std::uint64_t, TraceSummary::Share> shares_;
};

/// Reads the events one by one and fills the summary.
class SummaryBuilder {
 public:
  SummaryBuilder(const MemoryTrace& trace, TraceSummary& summary)
      : trace_(trace), summary_(summary) {
    summary_.tags.emplace_back("untagged");
    summary_.sites.emplace_back("unknown");
    summary_.streams.push_back({"host", 0});
  }

  void build() {
    const std::uint64_t start = summary_.start = start_of();
    for (const MemoryEvent& event : trace_.events) {
      if (event.kind == EventKind::copy_time) copy_times_.try_emplace(event.block, &event);
    }
    for (std::size_t i = 0; i < trace_.events.size(); ++i) {
      const MemoryEvent& event = trace_.events[i];
      now_ = event.time_ns - start;
      summary_.duration = std::max(summary_.duration, now_ + took_of(event));
      add(event, trace_.threads[i]);
    }
    end_ranges();
    finish();
  }

 private:
  /// Live memory of a device, and the state at its peak.
  struct DeviceMemory {
    std::uint64_t live = 0, peak = 0, peak_time = 0;
    std::unordered_map<std::uint32_t, TraceSummary::Share> tags = {};  // live now
    bool has_events = false;
  };

  /// Events may be a little older than the start: some have the time at which a call began.
  [[nodiscard]] std::uint64_t start_of() const {
    if (trace_.events.empty()) return 0;
    const std::uint64_t first = trace_.events.front().time_ns;
    const std::uint64_t start = trace_.header.start_ns;
    // The clock of a damaged header may be anything.
    return start <= first && first - start < std::uint64_t{3600} * 1'000'000'000 ? start : first;
  }
  static std::uint64_t took_of(const MemoryEvent& event) {
    constexpr std::uint64_t day = std::uint64_t{86400} * 1'000'000'000;
    const bool has_time = event.kind == EventKind::host_wait || event.kind == EventKind::copy_time;
    return has_time ? std::min(event.extra, day) : 0;
  }

  void add(const MemoryEvent& event, std::uint32_t thread) {
    switch (event.kind) {
      case EventKind::allocate:
        explain_hold(event, thread);
        serve_refused(event, thread);
        pending_.allocate(event, now_);
        return begin_block(event);
      case EventKind::free:
        return end_block(event);
      case EventKind::done_seen:
        open_waits_.done_seen(event, now_);
        open_calls_.done_seen(event, now_);
        return pending_.done_seen(event, now_);
      case EventKind::event_recorded:
        open_waits_.event_recorded(event);
        return open_calls_.event_recorded(event);
      case EventKind::host_call:
        open_calls_.add(event);
        summary_.host_calls.push_back(
            {now_, TraceSummary::never, stream_of(event.stream, event), site_of(event.site)});
        return;
      case EventKind::budget_refuse:
        ++budgets_[event.block].refused;
        return add_refusal(event, thread);
      case EventKind::refuse:
        return add_refusal(event, thread);
      case EventKind::limit:
        limits_[thread] = event;
        return;
      case EventKind::hold:
        return add_hold(event, thread);
      case EventKind::copy:
        return add_copy(event);
      case EventKind::launch:
        summary_.launches.push_back(
            {now_, stream_of(event.stream, event), kernel_of(event.extra), site_of(event.site)});
        return;
      case EventKind::fill:
        summary_.launches.push_back(
            {now_, stream_of(event.stream, event), name_of_fill(), site_of(event.site)});
        return;
      case EventKind::stream_wait:
        if (event.extra == 0) return;  // for work of others
        open_waits_.add(event);
        stream_waits_.push_back(summary_.waits.size());
        summary_.waits.push_back({now_, 0, stream_of(event.stream, event),
                                  stream_of(event.extra, event), site_of(event.site), thread});
        return;
      case EventKind::host_wait:
        summary_.waits.push_back(
            {now_, took_of(event), 0, stream_of(event.stream, event), site_of(event.site), thread});
        return;
      case EventKind::stream_begin:
        return name_stream(event);
      case EventKind::move:
        return add_move(event);
      case EventKind::evict:
        return count(event, event.bytes, summary_.evictions, evicted_lines_);
      case EventKind::evict_blocked:
        return add_kept_copy(event);
      case EventKind::finding:
        return add_finding(event);
      case EventKind::budget_use:
        return note_budget(event);
      case EventKind::budget_wait:
        ++budgets_[event.block].waits;
        budgets_[event.block].waited += event.extra;
        return count(event, event.extra, summary_.budget_waits, budget_wait_lines_);
      case EventKind::range_begin:
        return begin_range(event, thread);
      case EventKind::range_end:
        return end_range(thread);
      default:
        return;
    }
  }

  // --- Memory

  /// Returns what an allocation and a free both say about their block.
  [[nodiscard]] TraceSummary::Block block_of(const MemoryEvent& event) {
    TraceSummary::Block block;
    block.bytes = event.bytes;
    block.address = event.address;
    block.tag = tag_of(event.tag);
    block.stream = stream_of(event.stream, event);
    block.resource = resource_of(event);
    return block;
  }
  void begin_block(const MemoryEvent& event) {
    TraceSummary::Block block = block_of(event);
    block.begin = now_;
    block.site = site_of(event.site);
    end_at(event.address);
    const auto index = static_cast<std::uint32_t>(summary_.blocks.size());
    summary_.blocks.push_back(block);
    live_[event.block] = index;
    by_address_[event.address] = {index, event.block};
    note_live(block, true);
  }
  /// The free of the block at this address is not in the trace: it was lost, or a ring replaced it.
  void end_at(std::uint64_t address) {
    const auto at = by_address_.find(address);
    if (at == by_address_.end()) return;
    TraceSummary::Block& block = summary_.blocks[at->second.index];
    block.end = now_;
    live_.erase(at->second.number);
    ended_.insert(at->second.number);
    by_address_.erase(at);
    note_live(block, false);
  }
  void end_block(const MemoryEvent& event) {
    const auto known = live_.find(event.block);
    if (known == live_.end()) {
      if (!ended_.contains(event.block)) end_earlier(event);
      return;
    }
    TraceSummary::Block& block = summary_.blocks[known->second];
    note_pending(event, block, known->second);
    block.end = now_;
    block.free_site = site_of(event.site);
    block.free_stream = stream_of(event.stream, event);
    const auto at = by_address_.find(block.address);
    if (at != by_address_.end() && at->second.index == known->second) by_address_.erase(at);
    live_.erase(known);
    note_live(block, false);
  }
  /// The block was allocated before the trace began.
  void end_earlier(const MemoryEvent& event) {
    TraceSummary::Block block = block_of(event);
    block.end = now_;
    block.free_site = site_of(event.site);
    block.free_stream = block.stream;
    note_pending(event, block, ~earlier_.size());
    earlier_.push_back(block);
    std::uint64_t& before = live_before_by_resource_[block.resource];
    before -= std::min(before, block.bytes);
  }
  void note_pending(const MemoryEvent& event, TraceSummary::Block& block, std::uint64_t number) {
    const std::uint32_t device = summary_.resources[block.resource].device;
    const bool is_pending = pending_.free(event, now_, device, number);
    block.pending_until = is_pending ? TraceSummary::never : 0;
  }
  void note_live(const TraceSummary::Block& block, bool is_more) {
    const std::uint32_t device = summary_.resources[block.resource].device;
    if (devices_.size() <= device) devices_.resize(device + 1);
    DeviceMemory& memory = devices_[device];
    memory.has_events = true;
    TraceSummary::Share& tag = memory.tags[block.tag];
    tag.tag = block.tag;
    std::uint64_t& live_of_resource = live_by_resource_[block.resource];
    if (is_more) {
      memory.live += block.bytes;
      tag.bytes += block.bytes;
      ++tag.blocks;
      live_of_resource += block.bytes;
    } else {
      memory.live -= std::min(memory.live, block.bytes);
      tag.bytes -= std::min(tag.bytes, block.bytes);
      tag.blocks -= std::min<std::uint64_t>(tag.blocks, 1);
      live_of_resource -= std::min(live_of_resource, block.bytes);
    }
    if (memory.live > memory.peak) {
      memory.peak = memory.live;
      memory.peak_time = now_;
    }
    TraceSummary::Resource& resource = summary_.resources[block.resource];
    if (live_of_resource > resource.peak_live) {
      resource.peak_live = live_of_resource;
      resource.peak_time = now_;
    }
  }
  void add_hold(const MemoryEvent& event, std::uint32_t thread) {
    const std::uint32_t resource = resource_of(event);
    TraceSummary::Hold hold;
    hold.time = now_;
    hold.bytes = event.bytes;
    hold.resource = resource;
    hold.pending = event.block;
    last_hold_[thread] = summary_.holds.size();
    summary_.holds.push_back(hold);
    if (has_first_hold_[resource]) return;
    has_first_hold_[resource] = true;
    // What was live then and is not in the trace.
    const std::uint64_t unseen = event.extra - std::min(event.extra, live_by_resource_[resource]);
    live_before_ += unseen;
    live_before_by_resource_[resource] = unseen;
  }
  /// A pool grows for a request, and the thread records the block of the request next.
  void explain_hold(const MemoryEvent& event, std::uint32_t thread) {
    const auto last = last_hold_.find(thread);
    if (last == last_hold_.end()) return;
    TraceSummary::Hold& hold = summary_.holds[last->second];
    last_hold_.erase(last);
    if (hold.resource != resource_of(event)) return;
    hold.requested = event.bytes;
    hold.tag = tag_of(event.tag);
    hold.site = site_of(event.site);
    hold.stream = stream_of(event.stream, event);
  }
  /// The thread gets what a resource or a budget refused before.
  void serve_refused(const MemoryEvent& event, std::uint32_t thread) {
    if (refused_.empty()) return;
    const auto refused = refused_.find({thread, event.site, event.extra});
    if (refused == refused_.end()) return;
    for (const std::size_t index : refused->second.shown) {
      summary_.refusals[index].is_served_later = true;
    }
    summary_.served_later += refused->second.count;
    refused_.erase(refused);
  }
  void add_refusal(const MemoryEvent& event, std::uint32_t thread) {
    ++summary_.refused;
    Refused& refused = refused_[{thread, event.site, event.bytes}];
    ++refused.count;
    if (summary_.refusals.size() >= max_refusals) return;
    refused.shown.push_back(summary_.refusals.size());
    TraceSummary::Refusal refusal;
    refusal.time = now_;
    refusal.bytes = event.bytes;
    refusal.held = event.extra;
    refusal.resource = resource_of(event);
    refusal.device =
        event.resource != 0 ? summary_.resources[refusal.resource].device : device_of(event);
    refusal.tag = tag_of(event.tag);
    refusal.site = site_of(event.site);
    refusal.stream = stream_of(event.stream, event);
    refusal.error = error_of(event);
    refusal.pending = event.block;
    refusal.largest_free = event.address;
    refusal.resource_live =
        live_by_resource_[refusal.resource] + live_before_by_resource_[refusal.resource];
    if (const auto limit = limits_.extract(thread);
        limit && limit.mapped().resource == event.resource) {
      refusal.limit = limit.mapped().bytes;
      refusal.backing = static_cast<trace::Backing>(limit.mapped().detail);
    }
    if (event.kind == EventKind::budget_refuse) {
      const MemoryTrace::Name* budget =
          trace_.find(DefinitionKind::text, static_cast<std::uint32_t>(event.extra));
      refusal.held = refusal.pending = refusal.largest_free = 0;
      refusal.error =
          fmt::format("out_of_budget '{}'", budget != nullptr ? budget->text : "unknown");
    }
    if (refusal.device < devices_.size()) {
      const DeviceMemory& memory = devices_[refusal.device];
      refusal.live = memory.live;
      for (const auto& [tag, share] : memory.tags) {
        if (share.blocks > 0) refusal.tags.push_back(share);
      }
      keep_largest(refusal.tags, max_tags);
    }
    summary_.refusals.push_back(std::move(refusal));
  }
  static std::string error_of(const MemoryEvent& event) {
    if (event.detail >= error_codes) return "unknown";
    return std::string(name(static_cast<ErrorCode>(event.detail)));
  }

  // --- Work

  /// Returns the live block that the address is in, or null.
  [[nodiscard]] const TraceSummary::Block* block_at(std::uint64_t address) const {
    const auto after = by_address_.upper_bound(address);
    if (after == by_address_.begin()) return nullptr;
    const TraceSummary::Block& block = summary_.blocks[std::prev(after)->second.index];
    return address - block.address < block.bytes ? &block : nullptr;
  }
  [[nodiscard]] bool is_device_memory(const TraceSummary::Block* block) const {
    return block != nullptr && summary_.resources[block->resource].is_device_memory;
  }
  /// An address that is in no block counts as memory of the host if the other one is in a block.
  [[nodiscard]] TraceSummary::Direction direction_of(const TraceSummary::Block* to,
                                                     const TraceSummary::Block* from) const {
    using enum TraceSummary::Direction;
    const bool is_to_device = is_device_memory(to), is_from_device = is_device_memory(from);
    if (is_to_device && is_from_device) {
      return summary_.resources[to->resource].device == summary_.resources[from->resource].device
                 ? within_device
                 : between_devices;
    }
    if (is_to_device) return to_device;
    if (is_from_device) return to_host;
    return to == nullptr && from == nullptr ? unknown : within_host;
  }
  void add_copy(const MemoryEvent& event) {
    const TraceSummary::Block* const to = block_at(event.address);
    const TraceSummary::Block* const from = block_at(event.extra);
    TraceSummary::Copy copy;
    copy.time = now_;
    copy.bytes = event.bytes;
    if (const auto at = copy_times_.find(event.block);
        event.block != 0 && at != copy_times_.end()) {
      copy.time = std::max(now_ + (at->second->time_ns - event.time_ns), now_);
      copy.took = took_of(*at->second);
    }
    copy.stream = stream_of(event.stream, event);
    copy.site = site_of(event.site);
    copy.tag = to != nullptr ? to->tag : from != nullptr ? from->tag : 0;
    copy.direction = direction_of(to, from);
    TraceSummary::Transfers& sum = summary_.transfers[static_cast<std::size_t>(copy.direction)];
    ++sum.calls;
    sum.bytes += copy.bytes;
    sum.busy += copy.took;
    if (copy.took != 0) sum.timed_bytes += copy.bytes;
    summary_.copies.push_back(copy);
  }
  void add_kept_copy(const MemoryEvent& event) {
    const std::uint32_t tag = tag_of(event.tag), site = site_of(event.site);
    TraceSummary::KeptCopy& sum = kept_copies_[std::uint64_t{tag} << 32 | site];
    sum.tag = tag;
    sum.site = site;
    ++sum.times;
    sum.bytes = std::max(sum.bytes, event.bytes);
  }
  void add_finding(const MemoryEvent& event) {
    constexpr std::size_t max_findings = 100;
    if (summary_.checker_findings.size() == max_findings) return;
    const MemoryTrace::Name* const text =
        trace_.find(trace::DefinitionKind::text, static_cast<std::uint32_t>(event.extra));
    summary_.checker_findings.push_back(
        {now_, site_of(event.site), text != nullptr ? text->text : "unknown"});
  }
  void note_budget(const MemoryEvent& event) {
    TraceSummary::Budget& budget = budgets_[event.block];
    if (budget.count++ == 0 || event.bytes > budget.highest) {
      budget.highest = event.bytes;
      budget.limit = event.address;
      budget.time = now_;
    }
    if (!budget.path.empty()) return;
    const MemoryTrace::Name* const path =
        trace_.find(DefinitionKind::text, static_cast<std::uint32_t>(event.extra));
    if (path != nullptr) budget.path = path->text;
  }
  /// Budgets with the same path become one row. A budget whose use was not recorded has no row:
  /// older recordings do not have it.
  void add_up_budgets() {
    std::map<std::string, TraceSummary::Budget> rows;
    for (const auto& [number, one] : budgets_) {
      if (one.count == 0) continue;
      TraceSummary::Budget& row =
          rows[one.path.empty() ? fmt::format("budget {}", number) : one.path];
      if (row.count++ == 0 || one.highest > row.highest) {
        row.highest = one.highest;
        row.limit = one.limit;
        row.time = one.time;
      }
      row.waits += one.waits;
      row.waited += one.waited;
      row.refused += one.refused;
    }
    for (auto& [path, row] : rows) {
      row.path = path;
      summary_.budgets.push_back(std::move(row));
    }
    std::ranges::stable_sort(summary_.budgets, std::ranges::greater(),
                             &TraceSummary::Budget::highest);
  }
  void add_move(const MemoryEvent& event) {
    const std::string reason(event.detail < transfer_reasons
                                 ? name(static_cast<TransferReason>(event.detail))
                                 : "unknown");
    auto same = std::ranges::find(summary_.moves, reason, &TraceSummary::Moves::reason);
    if (same == summary_.moves.end()) same = summary_.moves.insert(same, {reason, 0, 0});
    ++same->calls;
    same->bytes += event.bytes;
  }
  using LineCounts = std::map<std::pair<std::uint32_t, std::uint32_t>, TraceSummary::LineCount>;

  void count(const MemoryEvent& event, std::uint64_t amount, TraceSummary::Count& total,
             LineCounts& lines) {
    ++total.calls;
    total.sum += amount;
    TraceSummary::LineCount& line = lines[{tag_of(event.tag), site_of(event.site)}];
    line.tag = tag_of(event.tag);
    line.site = site_of(event.site);
    ++line.calls;
    line.sum += amount;
  }
  void begin_range(const MemoryEvent& event, std::uint32_t thread) {
    auto& open = open_ranges_[thread];
    open.push_back(summary_.ranges.size());
    summary_.ranges.push_back(
        {now_, 0, static_cast<std::uint32_t>(open.size() - 1), thread, text_of(event.extra)});
  }
  void end_range(std::uint32_t thread) {
    auto& open = open_ranges_[thread];
    if (open.empty()) return;
    TraceSummary::Range& range = summary_.ranges[open.back()];
    range.took = now_ - range.begin;
    open.pop_back();
  }
  void end_ranges() {
    for (auto& [thread, open] : open_ranges_) {
      for (const std::size_t index : open) {
        summary_.ranges[index].took = summary_.duration - summary_.ranges[index].begin;
      }
    }
  }

  // --- Names

  std::uint32_t tag_of(std::uint32_t number) {
    if (number == 0) return 0;
    return tags_.of(number, [&] { add_name(summary_.tags, DefinitionKind::tag, number, "tag"); });
  }
  std::uint32_t site_of(std::uint32_t number) {
    if (number == 0) return 0;
    const auto known = site_numbers_.find(number);
    if (known != site_numbers_.end()) return known->second;
    const MemoryTrace::Name* name = trace_.find(DefinitionKind::site, number);
    const std::string text = name != nullptr ? fmt::format("{}:{}", name->text, name->line)
                                             : fmt::format("line {}", number);
    // One line may have several numbers.
    const auto [at, is_new] = sites_.try_emplace(text, summary_.sites.size());
    if (is_new) summary_.sites.push_back(text);
    return site_numbers_[number] = static_cast<std::uint32_t>(at->second);
  }
  std::uint32_t device_of(const MemoryEvent& event) {
    return device_indices_.of(event.device, [&] {
      add_name(summary_.devices, DefinitionKind::device, event.device, "device");
      // Two devices may have been opened with the same spec.
      std::string& name = summary_.devices.back();
      const std::size_t same = ++device_names_[name];
      if (same > 1) name += fmt::format(" ({})", same);
    });
  }
  std::uint32_t resource_of(const MemoryEvent& event) {
    const std::uint32_t device = device_of(event);
    return resources_.of(event.resource, [&] {
      const MemoryTrace::Name* name = trace_.find(DefinitionKind::resource, event.resource);
      const bool is_pinned =
          name != nullptr && name->detail == static_cast<std::uint8_t>(MemoryKind::pinned);
      TraceSummary::Resource resource;
      resource.name = name != nullptr ? name->text : "resource";
      resource.device = is_pinned ? pinned_of(device) : device;
      resource.is_device_memory = !is_pinned && !is_host(event.device);
      summary_.resources.push_back(std::move(resource));
    });
  }
  [[nodiscard]] bool is_host(std::uint32_t device) const {
    const MemoryTrace::Name* name = trace_.find(DefinitionKind::device, device);
    return name != nullptr && (name->text == "host" || name->text.starts_with("host?"));
  }
  /// Page-locked memory is memory of the host, and not part of what a device holds.
  std::uint32_t pinned_of(std::uint32_t device) {
    return device_indices_.of(std::uint64_t{device} | std::uint64_t{1} << 40, [&] {
      summary_.devices.push_back("page-locked memory of " + summary_.devices[device]);
    });
  }
  std::uint32_t stream_of(std::uint64_t number, const MemoryEvent& event) {
    if (number == 0) return 0;
    const std::uint32_t device = device_of(event);
    return streams_.of(number, [&] {
      summary_.streams.push_back({fmt::format("stream {}", summary_.streams.size()), device});
    });
  }
  void name_stream(const MemoryEvent& event) {
    const std::uint32_t stream = stream_of(event.stream, event);
    const MemoryTrace::Name* name =
        trace_.find(DefinitionKind::text, static_cast<std::uint32_t>(event.extra));
    if (name != nullptr && !name->text.empty()) summary_.streams[stream].name = name->text;
  }
  std::uint32_t kernel_of(std::uint64_t number) {
    return kernels_.of(number, [&] {
      add_name(summary_.kernels, DefinitionKind::kernel, static_cast<std::uint32_t>(number),
               "kernel");
    });
  }
  /// Fills are work of streams, as kernels are.
  std::uint32_t name_of_fill() {
    return kernels_.of(std::uint64_t{1} << 62, [&] { summary_.kernels.emplace_back("fill"); });
  }
  std::uint32_t text_of(std::uint64_t number) {
    // Kernels and texts are numbered separately.
    return kernels_.of(number | std::uint64_t{1} << 63, [&] {
      add_name(summary_.kernels, DefinitionKind::text, static_cast<std::uint32_t>(number), "range");
    });
  }
  void add_name(std::vector<std::string>& names, DefinitionKind kind, std::uint32_t number,
                const char* what) {
    const MemoryTrace::Name* name = trace_.find(kind, number);
    names.push_back(name != nullptr ? name->text : fmt::format("{} {}", what, number));
  }

  // --- What follows

  void finish() {
    summary_.pending = pending_.changes(summary_.duration);
    for (const auto& [time, block] : pending_.passed()) {
      (block < summary_.blocks.size() ? summary_.blocks[block] : earlier_[~block]).pending_until =
          time;
    }
    for (std::size_t i = 0; i < stream_waits_.size(); ++i) {
      summary_.waits[stream_waits_[i]].over = open_waits_.over(i);
    }
    for (std::size_t i = 0; i < summary_.host_calls.size(); ++i) {
      summary_.host_calls[i].over = open_calls_.over(i);
    }
    if (!earlier_.empty()) {
      // They were live from the beginning, so they come first, and the peaks are higher.
      summary_.blocks.insert(summary_.blocks.begin(), earlier_.begin(), earlier_.end());
      sweep();
    }
    // A copy may begin later than another one that was submitted after it.
    std::ranges::stable_sort(summary_.copies, {}, &TraceSummary::Copy::time);
    for (const auto& [key, sum] : kept_copies_) summary_.kept_copies.push_back(sum);
    std::ranges::stable_sort(summary_.kept_copies, std::ranges::greater(),
                             &TraceSummary::KeptCopy::times);
    add_up_budgets();
    find_leaks();
    find_peaks();
    add_up_waits();
    summary_.evicted_lines = sorted(evicted_lines_);
    summary_.budget_wait_lines = sorted(budget_wait_lines_);
    write_notes();
  }
  /// Visits blocks and holds once, however many devices a trace names.
  void find_peaks() {
    std::vector<Shares> tags(devices_.size()), sites(devices_.size());
    for (const TraceSummary::Block& block : summary_.blocks) {
      const std::uint32_t device = summary_.resources[block.resource].device;
      const std::uint64_t time = devices_[device].peak_time;
      if (block.begin > time || block.end <= time) continue;
      tags[device].add(block.tag, 0, block.bytes);
      sites[device].add(block.tag, block.site, block.bytes);
    }
    std::vector<Held> held = add_up_holds();
    for (std::uint32_t device = 0; device < devices_.size(); ++device) {
      if (!devices_[device].has_events) continue;
      TraceSummary::Peak peak;
      peak.device = device;
      peak.time = devices_[device].peak_time;
      peak.live = devices_[device].peak;
      peak.held = held[device].at_peak;
      peak.peak_held = held[device].peak;
      peak.live_at_end = live_at_end_[device];
      peak.tags = tags[device].sorted(max_tags);
      peak.sites = sites[device].sorted(max_sites);
      peak.text = sentence_of(peak);
      summary_.peaks.push_back(std::move(peak));
    }
    std::ranges::stable_sort(summary_.peaks, std::ranges::greater(), &TraceSummary::Peak::live);
  }
  /// Memory that the resources of a device hold together.
  struct Held {
    std::uint64_t now = 0, peak = 0;
    std::uint64_t at_peak = 0;  // when the most was live
  };
  [[nodiscard]] std::vector<Held> add_up_holds() {
    std::vector<Held> devices(devices_.size());
    for (const TraceSummary::Hold& hold : summary_.holds) {
      TraceSummary::Resource& resource = summary_.resources[hold.resource];
      const std::uint64_t before = std::exchange(resource.held_at_end, hold.bytes);
      resource.peak_held = std::max(resource.peak_held, hold.bytes);
      if (resource.device >= devices_.size()) continue;
      Held& held = devices[resource.device];
      held.now += hold.bytes - before;
      held.peak = std::max(held.peak, held.now);
      if (hold.time <= devices_[resource.device].peak_time) held.at_peak = held.now;
    }
    return devices;
  }
  /// Finds the peaks from the blocks alone.
  void sweep() {
    devices_.assign(devices_.size(), {});
    live_by_resource_.clear();
    for (TraceSummary::Resource& one : summary_.resources) one.peak_live = one.peak_time = 0;
    std::vector<std::uint32_t> by_end(summary_.blocks.size());
    for (std::uint32_t i = 0; i < by_end.size(); ++i) by_end[i] = i;
    std::ranges::stable_sort(by_end, {}, [&](std::uint32_t i) { return summary_.blocks[i].end; });
    std::size_t ended = 0;
    for (std::uint32_t i = 0; i < summary_.blocks.size(); ++i) {
      const TraceSummary::Block& block = summary_.blocks[i];
      // A block whose life is 0 ends after it has begun.
      while (ended < by_end.size() && by_end[ended] < i &&
             summary_.blocks[by_end[ended]].end <= block.begin) {
        note_live(summary_.blocks[by_end[ended++]], false);
      }
      now_ = block.begin;
      note_live(block, true);
    }
  }
  [[nodiscard]] std::string sentence_of(const TraceSummary::Peak& peak) const {
    std::string text = fmt::format("{}: at {}, {} were live", summary_.devices[peak.device],
                                   time_text(peak.time), format_bytes(peak.live));
    // Only pools hold memory that is not live.
    if (peak.held >= peak.live) text += fmt::format(" of {} held", format_bytes(peak.held));
    const std::size_t shown = std::min<std::size_t>(peak.tags.size(), 4);
    for (std::size_t i = 0; i < shown; ++i) {
      text += fmt::format("{} {:.0f} % {}", i == 0 ? ":" : ",",
                          100.0 * static_cast<double>(peak.tags[i].bytes) /
                              static_cast<double>(std::max<std::uint64_t>(peak.live, 1)),
                          summary_.tags[peak.tags[i].tag]);
    }
    if (shown < peak.tags.size()) {
      const std::size_t others = peak.tags.size() - shown;
      text += fmt::format(", and {} other tag{}", others, others == 1 ? "" : "s");
    }
    return text + '.';
  }
  void find_leaks() {
    live_at_end_.resize(devices_.size());
    std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, TraceSummary::Leak> leaks;
    for (const TraceSummary::Block& block : summary_.blocks) {
      if (block.end != TraceSummary::never) continue;
      const std::uint32_t device = summary_.resources[block.resource].device;
      summary_.resources[block.resource].live_at_end += block.bytes;
      live_at_end_[device] += block.bytes;
      TraceSummary::Leak& leak = leaks[{device, block.tag, block.site}];
      leak.device = device;
      leak.tag = block.tag;
      leak.site = block.site;
      leak.bytes += block.bytes;
      ++leak.blocks;
    }
    for (const auto& [key, leak] : leaks) summary_.leaks.push_back(leak);
    std::ranges::stable_sort(summary_.leaks, std::ranges::greater(), &TraceSummary::Leak::bytes);
  }
  [[nodiscard]] static std::vector<TraceSummary::LineCount> sorted(const LineCounts& lines) {
    std::vector<TraceSummary::LineCount> all;
    for (const auto& [key, line] : lines) all.push_back(line);
    std::ranges::stable_sort(all, std::ranges::greater(), &TraceSummary::LineCount::sum);
    if (all.size() > max_sites) all.resize(max_sites);
    return all;
  }
  void add_up_waits() {
    using Key = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;
    std::map<Key, TraceSummary::Count> lines;
    for (const TraceSummary::Wait& wait : summary_.waits) {
      TraceSummary::Count& line = lines[{wait.stream, wait.waits_for, wait.site}];
      ++line.calls;
      line.sum += wait.took;
    }
    std::pair<std::uint64_t, std::uint64_t> most = {0, 0};
    for (const auto& [key, line] : lines) {
      const auto [stream, waits_for, site] = key;
      std::vector<TraceSummary::WaitSum>& sums = summary_.wait_sums;
      if (sums.empty() || sums.back().stream != stream || sums.back().waits_for != waits_for) {
        sums.push_back({stream, waits_for, 0, 0, 0});
        most = {0, 0};
      }
      sums.back().calls += line.calls;
      sums.back().took += line.sum;
      if (std::pair(line.sum, line.calls) <= most) continue;
      most = {line.sum, line.calls};
      sums.back().site = site;
    }
    std::ranges::stable_sort(summary_.wait_sums, [](const auto& a, const auto& b) {
      return std::pair(a.took, a.calls) > std::pair(b.took, b.calls);
    });
  }
  void write_notes() {
    std::vector<std::string>& notes = summary_.notes;
    notes = trace_.notes;
    if (summary_.lost > 0) {
      notes.push_back(fmt::format(
          "{} events are missing: they were lost, or newer events replaced them in the ring.",
          summary_.lost));
    }
    if (trace_.is_cut) {
      notes.emplace_back(
          "The end of the file is missing, and with it events, and names of tags, lines and "
          "devices.");
    } else if (!summary_.is_complete) {
      notes.emplace_back(
          "The recording was not stopped: the program was killed, or it is still running.");
    }
    if (trace_.damaged_slabs > 0) {
      notes.push_back(
          fmt::format("{} parts of the file are damaged and were skipped.", trace_.damaged_slabs));
    }
    if (trace_.events.empty()) {
      notes.emplace_back("The recording has no events: the program used no memory through Tern.");
    }
    std::uint64_t seen = 0;
    for (const TraceSummary::Block& block : earlier_) seen += block.bytes;
    if (live_before_ > seen) {
      notes.push_back(fmt::format("{} were allocated before the recording began and are not shown.",
                                  format_bytes(live_before_ - seen)));
    }
  }

  const MemoryTrace& trace_;
  TraceSummary& summary_;
  std::uint64_t now_ = 0;
  std::unordered_map<std::uint64_t, std::uint32_t> live_;  // blocks by generation
  /// A live block: its index, and its number in the trace.
  struct LiveBlock {
    std::uint32_t index = 0;
    std::uint64_t number = 0;
  };
  std::map<std::uint64_t, LiveBlock> by_address_;
  std::map<std::uint64_t, TraceSummary::KeptCopy> kept_copies_;  // by tag and site
  PendingMemory pending_;
  OpenWork open_waits_, open_calls_;
  std::vector<std::size_t> stream_waits_;  // in the waits of the summary
  /// By number. `count` is the number of events, and 0 if there are only waits and refusals.
  std::map<std::uint64_t, TraceSummary::Budget> budgets_;
  std::unordered_map<std::uint64_t, const MemoryEvent*> copy_times_;  // by number of the copy
  std::unordered_set<std::uint64_t>
      ended_;  // blocks whose free was not in the trace when they ended
  std::unordered_map<std::uint32_t, std::uint64_t> live_by_resource_;
  /// Live bytes whose allocation is not in the trace.
  std::unordered_map<std::uint32_t, std::uint64_t> live_before_by_resource_;
  std::unordered_map<std::uint32_t, std::size_t> last_hold_;  // by thread
  std::unordered_map<std::uint32_t, MemoryEvent> limits_;     // by thread, before its refusal
  LineCounts evicted_lines_, budget_wait_lines_;
  struct Refused {
    std::uint64_t count = 0;
    std::vector<std::size_t> shown = {};  // places in the summary
  };
  /// Refusals that were not served yet, by thread, number of the line and bytes.
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint64_t>, Refused> refused_;
  std::vector<TraceSummary::Block> earlier_;
  std::vector<DeviceMemory> devices_;
  std::vector<std::uint64_t> live_at_end_;  // by device
  std::unordered_map<std::uint32_t, bool> has_first_hold_;
  std::map<std::uint32_t, std::vector<std::size_t>> open_ranges_;  // by thread
  std::uint64_t live_before_ = 0;
  Indices tags_{1}, streams_{1}, device_indices_{0}, resources_{0}, kernels_{0};
  std::unordered_map<std::string, std::size_t> sites_, device_names_;
  std::unordered_map<std::uint32_t, std::uint32_t> site_numbers_;
};

}  // namespace

TraceSummary::TraceSummary(const trace::MemoryTrace& trace, std::string its_title)
    : title(std::move(its_title)) {
  program = trace.header.program;
  process = trace.header.process;
  events = trace.events.size();
  lost = trace.header.lost_events;
  is_complete = trace.header.is_closed != 0 && !trace.is_cut;
  const auto seconds = static_cast<std::time_t>(trace.header.start_unix_ns / 1'000'000'000);
  std::tm utc = {};
  char text[64] = "";
  if (gmtime_r(&seconds, &utc) != nullptr) {
    started.assign(text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc));
  }
  SummaryBuilder(trace, *this).build();
}

std::string_view name(TraceSummary::Direction direction) noexcept {
  switch (direction) {
    case TraceSummary::Direction::to_device:
      return "host to device";
    case TraceSummary::Direction::to_host:
      return "device to host";
    case TraceSummary::Direction::within_device:
      return "within a device";
    case TraceSummary::Direction::between_devices:
      return "between devices";
    case TraceSummary::Direction::within_host:
      return "within the host";
    case TraceSummary::Direction::unknown:
      break;
  }
  return "other memory";
}

std::string_view name(trace::Backing backing) noexcept {
  switch (backing) {
    case trace::Backing::pages:
      return "pages";
    case trace::Backing::segments:
      return "segments";
    case trace::Backing::unknown:
      break;
  }
  return "";
}

std::string limit_text(std::uint64_t limit) {
  return limit == trace::no_limit ? "none" : format_bytes(limit);
}

std::string share_text(std::uint64_t used, std::uint64_t limit) {
  if (limit == trace::no_limit || limit == 0) return "";
  return fmt::format("{:.0f} %", 100.0 * static_cast<double>(used) / static_cast<double>(limit));
}

std::string time_text(std::uint64_t ns) {
  const auto value = static_cast<double>(ns);
  if (ns < 1'000) return fmt::format("{} ns", ns);
  if (ns < 1'000'000) return fmt::format("{:.1f} us", value / 1e3);
  if (ns < 1'000'000'000) return fmt::format("{:.1f} ms", value / 1e6);
  return fmt::format("{:.2f} s", value / 1e9);
}

}  // namespace tern::tools
