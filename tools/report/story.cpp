#include "tools/report/story.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <optional>
#include <unordered_map>

#include "tern/coherence/unified_statistics.hpp"
#include "tern/core/bytes.hpp"
#include "tern/core/error.hpp"
#include "tern/device/device_info.hpp"

namespace tern::tools {
namespace {

using trace::DefinitionKind;
using trace::EventKind;
using trace::MemoryEvent;
using trace::MemoryTrace;

/// A hostile trace could refuse a million requests and make each a table.
constexpr std::size_t max_refusals = 200;
constexpr std::size_t max_sites = 50;
#define TERN_CODE(code, name, base) +1
constexpr std::size_t error_codes = 0 TERN_FOR_EACH_ERROR_CODE(TERN_CODE);
#undef TERN_CODE

/// Gives every number of the trace an index, in the order in which they appear.
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

/// Adds up blocks by tag and site.
class Shares {
 public:
  void add(std::uint32_t tag, std::uint32_t site, std::uint64_t bytes) {
    Story::Share& share = shares_[std::uint64_t{tag} << 32 | site];
    share.tag = tag;
    share.site = site;
    share.bytes += bytes;
    ++share.blocks;
  }
  /// The largest first, at most `max`.
  [[nodiscard]] std::vector<Story::Share> sorted(std::size_t max = SIZE_MAX) const {
    std::vector<Story::Share> all;
    for (const auto& [key, share] : shares_) all.push_back(share);
    std::ranges::stable_sort(all, std::ranges::greater(), &Story::Share::bytes);
    if (all.size() > max) all.resize(max);
    return all;
  }

 private:
  std::map<std::uint64_t, Story::Share> shares_;
};

/// Reads the events one by one and fills the story.
class Teller {
 public:
  Teller(const MemoryTrace& trace, Story& story) : trace_(trace), story_(story) {
    story_.tags.emplace_back("untagged");
    story_.sites.emplace_back("unknown");
    story_.streams.push_back({"host", 0});
  }

  void tell() {
    const std::uint64_t start = start_of();
    for (std::size_t i = 0; i < trace_.events.size(); ++i) {
      const MemoryEvent& event = trace_.events[i];
      now_ = event.time_ns - start;
      story_.duration = std::max(story_.duration, now_ + took_of(event));
      tell(event, trace_.threads[i]);
    }
    end_ranges();
    finish();
  }

 private:
  /// Live memory of a device, and the state at its peak.
  struct DeviceMemory {
    std::uint64_t live = 0, peak = 0, peak_time = 0;
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
    return event.kind == EventKind::host_wait ? std::min(event.extra, day) : 0;
  }

  void tell(const MemoryEvent& event, std::uint32_t thread) {
    switch (event.kind) {
      case EventKind::allocate:
        return begin_block(event);
      case EventKind::free:
        return end_block(event);
      case EventKind::refuse:
      case EventKind::budget_refuse:
        return add_refusal(event);
      case EventKind::hold:
        return add_hold(event);
      case EventKind::copy:
        return add_copy(event);
      case EventKind::launch:
        story_.launches.push_back(
            {now_, stream_of(event.stream, event), kernel_of(event.extra), site_of(event.site)});
        return;
      case EventKind::stream_wait:
        story_.waits.push_back({now_, 0, stream_of(event.stream, event),
                                stream_of(event.extra, event), site_of(event.site)});
        return;
      case EventKind::host_wait:
        story_.waits.push_back(
            {now_, took_of(event), 0, stream_of(event.stream, event), site_of(event.site)});
        return;
      case EventKind::stream_begin:
        return name_stream(event);
      case EventKind::move:
        return add_move(event);
      case EventKind::evict:
        ++story_.evictions.calls;
        story_.evictions.sum += event.bytes;
        return;
      case EventKind::budget_wait:
        ++story_.budget_waits.calls;
        story_.budget_waits.sum += event.extra;
        return;
      case EventKind::range_begin:
        return begin_range(event, thread);
      case EventKind::range_end:
        return end_range(thread);
      default:
        return;
    }
  }

  // --- Memory

  void begin_block(const MemoryEvent& event) {
    Story::Block block;
    block.begin = now_;
    block.bytes = event.bytes;
    block.address = event.address;
    block.tag = tag_of(event.tag);
    block.site = site_of(event.site);
    block.stream = stream_of(event.stream, event);
    block.resource = resource_of(event);
    const auto index = static_cast<std::uint32_t>(story_.blocks.size());
    story_.blocks.push_back(block);
    live_[event.block] = index;
    by_address_[event.address] = index;
    note_live(device_of(event), event.bytes, true);
  }
  void end_block(const MemoryEvent& event) {
    const auto known = live_.find(event.block);
    if (known == live_.end()) return end_earlier(event);
    Story::Block& block = story_.blocks[known->second];
    block.end = now_;
    block.free_site = site_of(event.site);
    block.free_stream = stream_of(event.stream, event);
    by_address_.erase(block.address);
    live_.erase(known);
    note_live(device_of(event), block.bytes, false);
  }
  /// The block was allocated before the trace began.
  void end_earlier(const MemoryEvent& event) {
    Story::Block block;
    block.end = now_;
    block.bytes = event.bytes;
    block.address = event.address;
    block.tag = tag_of(event.tag);
    block.free_site = site_of(event.site);
    block.stream = block.free_stream = stream_of(event.stream, event);
    block.resource = resource_of(event);
    earlier_.push_back(block);
  }
  void note_live(std::uint32_t device, std::uint64_t bytes, bool is_more) {
    if (devices_.size() <= device) devices_.resize(device + 1);
    DeviceMemory& memory = devices_[device];
    memory.has_events = true;
    memory.live = is_more ? memory.live + bytes : memory.live - std::min(memory.live, bytes);
    if (memory.live > memory.peak) {
      memory.peak = memory.live;
      memory.peak_time = now_;
    }
  }
  void add_hold(const MemoryEvent& event) {
    const std::uint32_t resource = resource_of(event);
    story_.holds.push_back({now_, event.bytes, resource});
    if (!has_first_hold_[resource]) {
      has_first_hold_[resource] = true;
      live_before_ += event.extra;
    }
  }
  void add_refusal(const MemoryEvent& event) {
    ++refusal_count_;
    if (story_.refusals.size() >= max_refusals) return;
    Story::Refusal refusal;
    refusal.time = now_;
    refusal.bytes = event.bytes;
    refusal.held = event.extra;
    refusal.device = device_of(event);
    refusal.resource = resource_of(event);
    refusal.tag = tag_of(event.tag);
    refusal.site = site_of(event.site);
    refusal.stream = stream_of(event.stream, event);
    refusal.error = error_of(event);
    if (event.kind == EventKind::budget_refuse) {
      const MemoryTrace::Name* budget =
          trace_.find(DefinitionKind::text, static_cast<std::uint32_t>(event.extra));
      refusal.held = 0;
      refusal.error =
          fmt::format("out_of_budget '{}'", budget != nullptr ? budget->text : "unknown");
    }
    Shares live;
    for (const auto& [number, index] : live_) {
      const Story::Block& block = story_.blocks[index];
      if (story_.resources[block.resource].device != refusal.device) continue;
      refusal.live += block.bytes;
      live.add(block.tag, 0, block.bytes);
    }
    refusal.tags = live.sorted();
    story_.refusals.push_back(std::move(refusal));
  }
  static std::string error_of(const MemoryEvent& event) {
    if (event.detail >= error_codes) return "unknown";
    return std::string(name(static_cast<ErrorCode>(event.detail)));
  }
  // --- Work

  /// Returns the device whose memory the address is in, or nothing for memory of the host.
  [[nodiscard]] std::optional<std::uint32_t> memory_at(std::uint64_t address) const {
    auto after = by_address_.upper_bound(address);
    if (after == by_address_.begin()) return std::nullopt;
    const Story::Block& block = story_.blocks[std::prev(after)->second];
    const Story::Resource& resource = story_.resources[block.resource];
    if (address - block.address >= block.bytes || !resource.is_device_memory) return std::nullopt;
    return resource.device;
  }
  [[nodiscard]] std::uint32_t tag_at(std::uint64_t address) const {
    const auto after = by_address_.upper_bound(address);
    if (after == by_address_.begin()) return 0;
    const Story::Block& block = story_.blocks[std::prev(after)->second];
    return address - block.address < block.bytes ? block.tag : 0;
  }
  void add_copy(const MemoryEvent& event) {
    const auto to = memory_at(event.address), from = memory_at(event.extra);
    using enum Story::Direction;
    Story::Copy copy;
    copy.time = now_;
    copy.took = event.block;
    copy.bytes = event.bytes;
    copy.stream = stream_of(event.stream, event);
    copy.site = site_of(event.site);
    copy.tag = tag_at(to ? event.address : event.extra);
    copy.direction = to && from ? (*to == *from ? within_device : between_devices)
                     : to       ? to_device
                     : from     ? to_host
                                : within_host;
    Story::Transfers& sum = story_.transfers[static_cast<std::size_t>(copy.direction)];
    ++sum.calls;
    sum.bytes += copy.bytes;
    sum.busy += copy.took;
    story_.copies.push_back(copy);
  }
  void add_move(const MemoryEvent& event) {
    const std::string reason(event.detail < transfer_reasons
                                 ? name(static_cast<TransferReason>(event.detail))
                                 : "unknown");
    auto same = std::ranges::find(story_.moves, reason, &Story::Moves::reason);
    if (same == story_.moves.end()) same = story_.moves.insert(same, {reason, 0, 0});
    ++same->calls;
    same->bytes += event.bytes;
  }
  void begin_range(const MemoryEvent& event, std::uint32_t thread) {
    auto& open = open_ranges_[thread];
    open.push_back(story_.ranges.size());
    story_.ranges.push_back(
        {now_, 0, static_cast<std::uint32_t>(open.size() - 1), thread, text_of(event.extra)});
  }
  void end_range(std::uint32_t thread) {
    auto& open = open_ranges_[thread];
    if (open.empty()) return;
    Story::Range& range = story_.ranges[open.back()];
    range.took = now_ - range.begin;
    open.pop_back();
  }
  void end_ranges() {
    for (auto& [thread, open] : open_ranges_) {
      for (const std::size_t index : open) {
        story_.ranges[index].took = story_.duration - story_.ranges[index].begin;
      }
    }
  }

  // --- Names

  std::uint32_t tag_of(std::uint32_t number) {
    if (number == 0) return 0;
    return tags_.of(number, [&] { add_name(story_.tags, DefinitionKind::tag, number, "tag"); });
  }
  std::uint32_t site_of(std::uint32_t number) {
    if (number == 0) return 0;
    return sites_.of(number, [&] {
      const MemoryTrace::Name* name = trace_.find(DefinitionKind::site, number);
      story_.sites.push_back(name != nullptr ? fmt::format("{}:{}", name->text, name->line)
                                             : fmt::format("line {}", number));
    });
  }
  std::uint32_t device_of(const MemoryEvent& event) {
    return device_indices_.of(event.device, [&] {
      add_name(story_.devices, DefinitionKind::device, event.device, "device");
    });
  }
  std::uint32_t resource_of(const MemoryEvent& event) {
    const std::uint32_t device = device_of(event);
    return resources_.of(event.resource, [&] {
      const MemoryTrace::Name* name = trace_.find(DefinitionKind::resource, event.resource);
      const bool is_pinned =
          name != nullptr && name->detail == static_cast<std::uint8_t>(MemoryKind::pinned);
      story_.resources.push_back({name != nullptr ? name->text : "resource", device, !is_pinned});
    });
  }
  std::uint32_t stream_of(std::uint64_t number, const MemoryEvent& event) {
    if (number == 0) return 0;
    const std::uint32_t device = device_of(event);
    return streams_.of(number, [&] {
      story_.streams.push_back({fmt::format("stream {}", story_.streams.size()), device});
    });
  }
  void name_stream(const MemoryEvent& event) {
    const std::uint32_t stream = stream_of(event.stream, event);
    const MemoryTrace::Name* name =
        trace_.find(DefinitionKind::text, static_cast<std::uint32_t>(event.extra));
    if (name != nullptr && !name->text.empty()) story_.streams[stream].name = name->text;
  }
  std::uint32_t kernel_of(std::uint64_t number) {
    return kernels_.of(number, [&] {
      add_name(story_.kernels, DefinitionKind::kernel, static_cast<std::uint32_t>(number),
               "kernel");
    });
  }
  std::uint32_t text_of(std::uint64_t number) {
    // Kernels and texts have numbers of their own.
    return kernels_.of(number | std::uint64_t{1} << 63, [&] {
      add_name(story_.kernels, DefinitionKind::text, static_cast<std::uint32_t>(number), "range");
    });
  }
  void add_name(std::vector<std::string>& names, DefinitionKind kind, std::uint32_t number,
                const char* what) {
    const MemoryTrace::Name* name = trace_.find(kind, number);
    names.push_back(name != nullptr ? name->text : fmt::format("{} {}", what, number));
  }

  // --- What follows

  void finish() {
    if (!earlier_.empty()) {
      // They were live from the beginning, so they come first, and the peaks are higher.
      story_.blocks.insert(story_.blocks.begin(), earlier_.begin(), earlier_.end());
      sweep();
    }
    find_peaks();
    find_leaks();
    write_notes();
  }
  void find_peaks() {
    for (std::uint32_t device = 0; device < devices_.size(); ++device) {
      if (!devices_[device].has_events) continue;
      Story::Peak peak;
      peak.device = device;
      peak.time = devices_[device].peak_time;
      peak.live = devices_[device].peak;
      Shares tags, sites;
      for (const Story::Block& block : story_.blocks) {
        if (block.begin > peak.time || block.end <= peak.time) continue;
        if (story_.resources[block.resource].device != device) continue;
        tags.add(block.tag, 0, block.bytes);
        sites.add(block.tag, block.site, block.bytes);
      }
      peak.tags = tags.sorted();
      peak.sites = sites.sorted(max_sites);
      peak.held = held_at(device, peak.time);
      peak.text = sentence_of(peak);
      story_.peaks.push_back(std::move(peak));
    }
    std::ranges::stable_sort(story_.peaks, std::ranges::greater(), &Story::Peak::live);
  }
  /// Finds the peaks from the blocks alone.
  void sweep() {
    for (DeviceMemory& memory : devices_) {
      memory.live = memory.peak = memory.peak_time = 0;
    }
    std::vector<std::uint32_t> by_end(story_.blocks.size());
    for (std::uint32_t i = 0; i < by_end.size(); ++i) by_end[i] = i;
    std::ranges::stable_sort(by_end, {}, [&](std::uint32_t i) { return story_.blocks[i].end; });
    std::size_t ended = 0;
    for (const Story::Block& block : story_.blocks) {
      for (; ended < by_end.size() && story_.blocks[by_end[ended]].end <= block.begin; ++ended) {
        const Story::Block& gone = story_.blocks[by_end[ended]];
        note_live(story_.resources[gone.resource].device, gone.bytes, false);
      }
      now_ = block.begin;
      note_live(story_.resources[block.resource].device, block.bytes, true);
    }
  }
  [[nodiscard]] std::uint64_t held_at(std::uint32_t device, std::uint64_t time) const {
    std::map<std::uint32_t, std::uint64_t> held;
    for (const Story::Hold& hold : story_.holds) {
      if (hold.time > time) break;
      if (story_.resources[hold.resource].device == device) held[hold.resource] = hold.bytes;
    }
    std::uint64_t sum = 0;
    for (const auto& [resource, bytes] : held) sum += bytes;
    return sum;
  }
  [[nodiscard]] std::string sentence_of(const Story::Peak& peak) const {
    std::string text = fmt::format("{}: at {}, {} were live", story_.devices[peak.device],
                                   time_text(peak.time), format_bytes(peak.live));
    if (peak.held > 0) text += fmt::format(" of {} held", format_bytes(peak.held));
    const std::size_t shown = std::min<std::size_t>(peak.tags.size(), 4);
    for (std::size_t i = 0; i < shown; ++i) {
      text += fmt::format("{} {:.0f} % {}", i == 0 ? ":" : ",",
                          100.0 * static_cast<double>(peak.tags[i].bytes) /
                              static_cast<double>(std::max<std::uint64_t>(peak.live, 1)),
                          story_.tags[peak.tags[i].tag]);
    }
    if (shown < peak.tags.size()) {
      text += fmt::format(", and {} other tags", peak.tags.size() - shown);
    }
    return text + '.';
  }
  void find_leaks() {
    std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, Story::Leak> leaks;
    for (const Story::Block& block : story_.blocks) {
      if (block.end != Story::never) continue;
      const std::uint32_t device = story_.resources[block.resource].device;
      Story::Leak& leak = leaks[{device, block.tag, block.site}];
      leak.device = device;
      leak.tag = block.tag;
      leak.site = block.site;
      leak.bytes += block.bytes;
      ++leak.blocks;
    }
    for (const auto& [key, leak] : leaks) story_.leaks.push_back(leak);
    std::ranges::stable_sort(story_.leaks, std::ranges::greater(), &Story::Leak::bytes);
  }
  void write_notes() {
    std::vector<std::string>& notes = story_.notes;
    if (story_.lost > 0) {
      notes.push_back(fmt::format(
          "{} events are missing: they were lost, or the ring replaced them by newer ones.",
          story_.lost));
    }
    if (!story_.is_complete) {
      notes.emplace_back(
          "The recording was not stopped: the program was killed, or it is still running.");
    }
    if (trace_.damaged_slabs > 0) {
      notes.push_back(
          fmt::format("{} parts of the file are damaged and were skipped.", trace_.damaged_slabs));
    }
    std::uint64_t seen = 0;
    for (const Story::Block& block : earlier_) seen += block.bytes;
    if (live_before_ > seen) {
      notes.push_back(fmt::format("{} were allocated before the recording began and are not shown.",
                                  format_bytes(live_before_ - seen)));
    }
    if (refusal_count_ > story_.refusals.size()) {
      notes.push_back(fmt::format("{} requests failed; the first {} are shown.", refusal_count_,
                                  story_.refusals.size()));
    }
  }

  const MemoryTrace& trace_;
  Story& story_;
  std::uint64_t now_ = 0;
  std::unordered_map<std::uint64_t, std::uint32_t> live_;  // blocks by generation
  std::map<std::uint64_t, std::uint32_t> by_address_;      // live blocks
  std::vector<Story::Block> earlier_;
  std::vector<DeviceMemory> devices_;
  std::unordered_map<std::uint32_t, bool> has_first_hold_;
  std::map<std::uint32_t, std::vector<std::size_t>> open_ranges_;  // by thread
  std::uint64_t live_before_ = 0, refusal_count_ = 0;
  Indices tags_{1}, sites_{1}, streams_{1}, device_indices_{0}, resources_{0}, kernels_{0};
};

}  // namespace

Story::Story(const trace::MemoryTrace& trace, std::string its_title) : title(std::move(its_title)) {
  program = trace.header.program;
  process = trace.header.process;
  events = trace.events.size();
  lost = trace.header.lost_events;
  is_complete = trace.header.is_closed != 0;
  const auto seconds = static_cast<std::time_t>(trace.header.start_unix_ns / 1'000'000'000);
  std::tm utc = {};
  char text[64] = "";
  if (gmtime_r(&seconds, &utc) != nullptr) {
    started.assign(text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc));
  }
  Teller(trace, *this).tell();
}

std::string_view name(Story::Direction direction) noexcept {
  switch (direction) {
    case Story::Direction::to_device:
      return "host to device";
    case Story::Direction::to_host:
      return "device to host";
    case Story::Direction::within_device:
      return "within a device";
    case Story::Direction::between_devices:
      return "between devices";
    case Story::Direction::within_host:
      break;
  }
  return "within the host";
}

std::string time_text(std::uint64_t ns) {
  const auto value = static_cast<double>(ns);
  if (ns < 1'000) return fmt::format("{} ns", ns);
  if (ns < 1'000'000) return fmt::format("{:.1f} us", value / 1e3);
  if (ns < 1'000'000'000) return fmt::format("{:.1f} ms", value / 1e6);
  return fmt::format("{:.2f} s", value / 1e9);
}

}  // namespace tern::tools
