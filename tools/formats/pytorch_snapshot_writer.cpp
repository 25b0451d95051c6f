#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tern/device/device_info.hpp"
#include "tools/formats/pickle_writer.hpp"
#include "tools/formats/pytorch_snapshot.hpp"

namespace tern::tools {
namespace {

using trace::DefinitionKind;
using trace::EventKind;
using trace::MemoryEvent;
using trace::MemoryTrace;

constexpr std::size_t never = SIZE_MAX;
constexpr std::uint64_t max_small_segment_bytes = std::uint64_t{2} << 20;
constexpr std::uint64_t max_time_us = std::uint64_t{1} << 53;

/// A block from its allocation to its free. Both are indices of events.
struct Life {
  std::size_t begin = 0, end = never;
  bool is_earlier = false;  // allocated before the first event
  std::uint64_t address = 0, bytes = 0, requested = 0, stream = 0, free_stream = 0;
  std::uint32_t site = 0, free_site = 0, resource = 0;
  std::uint16_t tag = 0;
};

/// Addresses that blocks have used without a gap.
struct Segment {
  std::uint64_t address = 0, bytes = 0, stream = 0;
  std::size_t begin = never, end = 0;  // indices of events
  bool is_earlier = false;             // exists before the first event
  bool is_held = false;                // exists after the last event
};

/// What a device did.
struct Device {
  std::string name;
  std::vector<Life> lives = {};
  std::vector<std::size_t> refusals = {};            // indices of events
  std::map<std::uint64_t, std::size_t> live = {};    // lives by address, while they are read
  std::map<std::uint64_t, std::uint64_t> used = {};  // ends of used ranges by their beginnings
  std::map<std::uint64_t, Segment> segments = {};    // by address
};

/// Finds out which blocks a trace has on each device. A trace may have lost events: no two lives of
/// a device overlap in memory at the same time.
class LivesReader {
 public:
  explicit LivesReader(const MemoryTrace& trace) : trace_(trace) {}

  std::vector<Device> read() {
    for (std::size_t i = 0; i < trace_.events.size(); ++i) {
      const MemoryEvent& event = trace_.events[i];
      if (event.kind == EventKind::allocate) begin(event, i);
      if (event.kind == EventKind::free) end(event, i);
      // A budget may refuse a request before a device is known.
      const bool is_refusal =
          event.kind == EventKind::refuse || event.kind == EventKind::budget_refuse;
      if (is_refusal && event.device != 0) device_of(event).refusals.push_back(i);
      if (event.kind == EventKind::hold) held_[event.resource] = event.bytes;
    }
    for (Device& device : devices_) find_segments(device);
    return std::move(devices_);
  }

 private:
  Device& device_of(const MemoryEvent& event) { return devices_[slot_of(event)]; }
  std::size_t slot_of(const MemoryEvent& event) {
    const MemoryTrace::Name* const resource = trace_.find(DefinitionKind::resource, event.resource);
    // Page-locked memory is memory of the host.
    const bool is_pinned =
        resource != nullptr && resource->detail == static_cast<std::uint8_t>(MemoryKind::pinned);
    const auto [at, is_new] = slots_.try_emplace({event.device, is_pinned}, devices_.size());
    if (is_new) {
      const MemoryTrace::Name* const name = trace_.find(DefinitionKind::device, event.device);
      std::string text = name != nullptr ? name->text : fmt::format("device {}", event.device);
      devices_.push_back({is_pinned ? "page-locked memory of " + text : std::move(text)});
    }
    return at->second;
  }

  static Life life_of(const MemoryEvent& event) {
    Life life;
    life.address = event.address;
    life.bytes = event.bytes;
    life.stream = life.free_stream = event.stream;
    life.resource = event.resource;
    life.tag = event.tag;
    return life;
  }
  static bool can_exist(const MemoryEvent& event) {
    return event.bytes > 0 && event.bytes <= INT64_MAX && event.address <= INT64_MAX;
  }
  void begin(const MemoryEvent& event, std::size_t index) {
    known_.insert(event.block);
    if (!can_exist(event)) return;
    const std::size_t slot = slot_of(event);
    Device& device = devices_[slot];
    end_overlapping(device, event, index);
    Life life = life_of(event);
    life.begin = index;
    life.requested = event.extra > 0 ? std::min(event.extra, event.bytes) : event.bytes;
    life.site = event.site;
    live_[event.block] = {slot, device.lives.size()};
    device.live[event.address] = device.lives.size();
    device.lives.push_back(life);
    use(device, event.address, event.address + event.bytes);
  }
  /// The frees of these blocks are missing.
  static void end_overlapping(Device& device, const MemoryEvent& event, std::size_t index) {
    auto at = device.live.lower_bound(event.address);
    if (at != device.live.begin()) {
      const Life& before = device.lives[std::prev(at)->second];
      if (event.address - before.address < before.bytes) --at;
    }
    while (at != device.live.end() && at->first < event.address + event.bytes) {
      device.lives[at->second].end = index;
      at = device.live.erase(at);
    }
  }
  void end(const MemoryEvent& event, std::size_t index) {
    const auto known = live_.find(event.block);
    if (known == live_.end()) {
      if (known_.insert(event.block).second && can_exist(event)) end_earlier(event, index);
      return;
    }
    Device& device = devices_[known->second.first];
    Life& life = device.lives[known->second.second];
    live_.erase(known);
    if (life.end != never) return;
    life.end = index;
    life.free_stream = event.stream;
    life.free_site = event.site;
    device.live.erase(life.address);
  }
  /// The block was live from the beginning, unless another one has been at its address.
  void end_earlier(const MemoryEvent& event, std::size_t index) {
    Device& device = device_of(event);
    const auto after = device.used.lower_bound(event.address + event.bytes);
    if (after != device.used.begin() && std::prev(after)->second > event.address) return;
    Life life = life_of(event);
    life.is_earlier = true;
    life.end = index;
    life.requested = event.bytes;
    life.free_site = event.site;
    device.lives.push_back(life);
    use(device, event.address, event.address + event.bytes);
  }
  /// Adds addresses to those that were used, and joins ranges that touch.
  static void use(Device& device, std::uint64_t first, std::uint64_t last) {
    auto at = device.used.upper_bound(last);
    while (at != device.used.begin() && std::prev(at)->second >= first) {
      --at;
      first = std::min(first, at->first);
      last = std::max(last, at->second);
      at = device.used.erase(at);
    }
    device.used[first] = last;
  }

  void find_segments(Device& device) {
    for (const auto& [first, last] : device.used) {
      device.segments[first] = {first, last - first};
    }
    for (const Life& life : device.lives) {
      Segment& segment = std::prev(device.segments.upper_bound(life.address))->second;
      if (life.is_earlier || life.begin < segment.begin) segment.stream = life.stream;
      segment.is_earlier |= life.is_earlier;
      segment.begin = std::min(segment.begin, life.begin);
      segment.end = std::max(segment.end, life.end);
      // A pool keeps its memory.
      const auto held = held_.find(life.resource);
      segment.is_held |= life.end == never || (held != held_.end() && held->second > 0);
    }
  }

  const MemoryTrace& trace_;
  std::vector<Device> devices_;
  std::map<std::pair<std::uint32_t, bool>, std::size_t> slots_;  // by device and kind of memory
  std::unordered_map<std::uint64_t, std::pair<std::size_t, std::size_t>> live_;  // slot, life
  std::unordered_set<std::uint64_t> known_;                                      // blocks
  std::unordered_map<std::uint32_t, std::uint64_t> held_;  // by resource, at last
};

class SnapshotWriter {
 public:
  SnapshotWriter(const MemoryTrace& trace, Output& out)
      : trace_(trace), devices_(LivesReader(trace).read()), pickle_(out) {
    for (const MemoryEvent& event : trace.events) has_tags_ |= event.tag != 0;
    place_devices();
  }

  void write() {
    pickle_.begin_dict();
    pickle_.text("segments");
    pickle_.begin_list();
    for (std::size_t i = 0; i < places_.size(); ++i) {
      if (places_[i] != nullptr) write_segments(*places_[i], i);
    }
    pickle_.end();
    pickle_.text("device_traces");
    pickle_.begin_list();
    for (const Device* const device : places_) {
      pickle_.begin_list();
      if (device != nullptr) write_events(*device);
      pickle_.end();
    }
    pickle_.end();
    // Only Tern reads the names.
    pickle_.text("tern_devices");
    pickle_.begin_list();
    for (const Device* const device : places_) pickle_.text(device != nullptr ? device->name : "");
    pickle_.end();
    pickle_.end();
    pickle_.finish();
  }

 private:
  /// PyTorch numbers devices. cuda:1 gets 1, and devices that are not CUDA devices get what is
  /// left.
  void place_devices() {
    constexpr std::size_t max_index = 63;
    std::vector<const Device*> others;
    for (const Device& device : devices_) {
      std::size_t index = max_index + 1;
      if (device.name.starts_with("cuda:")) {
        std::from_chars(device.name.data() + 5, device.name.data() + device.name.size(), index);
      }
      if (index <= max_index && places_.size() <= index) places_.resize(index + 1);
      if (index > max_index || places_[index] != nullptr) {
        others.push_back(&device);
      } else {
        places_[index] = &device;
      }
    }
    std::size_t next = 0;
    for (const Device* const device : others) {
      while (next < places_.size() && places_[next] != nullptr) ++next;
      if (next == places_.size()) places_.push_back(nullptr);
      places_[next] = device;
    }
  }

  void field(std::string_view name, std::uint64_t value) {
    pickle_.text(name);
    pickle_.number(value);
  }
  void field(std::string_view name, std::string_view value) {
    pickle_.text(name);
    pickle_.text(value);
  }
  [[nodiscard]] std::string_view tag_text(std::uint16_t tag) const {
    const MemoryTrace::Name* const name = trace_.find(DefinitionKind::tag, tag);
    return tag == 0 || name == nullptr ? std::string_view("unknown") : name->text;
  }
  /// A stack of one frame, whose function is the tag. Many blocks share it.
  void write_frames(std::uint32_t site, std::uint16_t tag) {
    pickle_.text("frames");
    const MemoryTrace::Name* const name = trace_.find(DefinitionKind::site, site);
    if (name == nullptr) site = tag = 0;
    const auto [at, is_new] = frames_.try_emplace({site, tag}, 0);
    if (!is_new) return pickle_.repeat(at->second);
    pickle_.begin_list();
    if (name != nullptr) {
      pickle_.begin_dict();
      field("filename", name->text);
      field("line", name->line);
      field("name", tag_text(tag));
      pickle_.end();
    }
    pickle_.end();
    at->second = pickle_.keep();
  }

  void write_segments(const Device& device, std::size_t index) {
    std::map<std::uint64_t, const Life*> live;
    for (const Life& life : device.lives) {
      if (life.end == never) live[life.address] = &life;
    }
    for (const auto& [address, segment] : device.segments) {
      if (!segment.is_held) continue;
      const auto first = live.lower_bound(address),
                 last = live.lower_bound(address + segment.bytes);
      std::uint64_t bytes = 0, requested = 0;
      for (auto at = first; at != last; ++at) {
        bytes += at->second->bytes;
        requested += at->second->requested;
      }
      pickle_.begin_dict();
      field("device", index);
      field("address", address);
      field("total_size", segment.bytes);
      field("allocated_size", bytes);
      field("active_size", bytes);
      field("requested_size", requested);
      field("stream", std::min<std::uint64_t>(segment.stream, INT64_MAX));
      field("segment_type", segment.bytes > max_small_segment_bytes ? "large" : "small");
      pickle_.text("segment_pool_id");
      pickle_.pair(0, 0);
      pickle_.text("is_expandable");
      pickle_.boolean(false);
      write_frames(0, 0);
      pickle_.text("blocks");
      pickle_.begin_list();
      std::uint64_t next = address;
      for (auto at = first; at != last; ++at) {
        const Life& life = *at->second;
        write_gap(next, life.address);
        write_block(life.address, life.bytes, life.requested, "active_allocated", life.site,
                    life.tag);
        next = life.address + life.bytes;
      }
      write_gap(next, address + segment.bytes);
      pickle_.end();
      pickle_.end();
    }
  }
  /// Blocks fill their segment.
  void write_gap(std::uint64_t from, std::uint64_t to) {
    if (from < to) write_block(from, to - from, 0, "inactive", 0, 0);
  }
  void write_block(std::uint64_t address, std::uint64_t bytes, std::uint64_t requested,
                   std::string_view state, std::uint32_t site, std::uint16_t tag) {
    pickle_.begin_dict();
    field("address", address);
    field("size", bytes);
    field("requested_size", requested);
    field("state", state);
    write_frames(site, tag);
    pickle_.end();
  }

  /// What happens at an event of the trace, in this order.
  enum class Step : std::uint8_t { free, grow, allocate, refuse, shrink };

  void write_events(const Device& device) {
    // The index of the event, the step, and the life or segment.
    std::vector<std::tuple<std::size_t, Step, std::uint64_t>> steps;
    for (std::size_t i = 0; i < device.lives.size(); ++i) {
      const Life& life = device.lives[i];
      if (!life.is_earlier) steps.emplace_back(life.begin, Step::allocate, i);
      if (life.end != never) steps.emplace_back(life.end, Step::free, i);
    }
    for (const auto& [address, segment] : device.segments) {
      if (!segment.is_earlier) steps.emplace_back(segment.begin, Step::grow, address);
      if (!segment.is_held) steps.emplace_back(segment.end, Step::shrink, address);
    }
    for (const std::size_t index : device.refusals) steps.emplace_back(index, Step::refuse, 0);
    std::ranges::sort(steps);
    for (const auto& [index, step, what] : steps) {
      if (step == Step::refuse) {
        write_refusal(index);
      } else if (step == Step::allocate || step == Step::free) {
        write_step(device.lives[what], step, index);
      } else {
        const Segment& segment = device.segments.at(what);
        write_event(step == Step::grow ? "segment_alloc" : "segment_free", index, segment.address,
                    segment.bytes, segment.stream, 0, 0);
      }
    }
    if (!trace_.events.empty()) write_event("snapshot", trace_.events.size() - 1, 0, 0, 0, 0, 0);
  }
  void write_step(const Life& life, Step step, std::size_t index) {
    if (step == Step::allocate) {
      return write_event("alloc", index, life.address, life.bytes, life.stream, life.site,
                         life.tag);
    }
    // A trace does not say when the stream has passed the free.
    for (const std::string_view action : {"free_requested", "free_completed"}) {
      write_event(action, index, life.address, life.bytes, life.free_stream, life.free_site,
                  life.tag);
    }
  }
  void write_event(std::string_view action, std::size_t index, std::uint64_t address,
                   std::uint64_t bytes, std::uint64_t stream, std::uint32_t site,
                   std::uint16_t tag) {
    pickle_.begin_dict();
    field("action", action);
    field("addr", address);
    write_rest(index, bytes, stream, site, tag);
  }
  void write_refusal(std::size_t index) {
    const MemoryEvent& event = trace_.events[index];
    pickle_.begin_dict();
    field("action", "oom");
    // A trace does not have what the driver had left.
    field("device_free", 0);
    write_rest(index, event.bytes, event.stream, event.site, event.tag);
  }
  void write_rest(std::size_t index, std::uint64_t bytes, std::uint64_t stream, std::uint32_t site,
                  std::uint16_t tag) {
    // A damaged trace may have any numbers, but a snapshot has signed ones.
    field("size", std::min<std::uint64_t>(bytes, INT64_MAX));
    field("stream", std::min<std::uint64_t>(stream, INT64_MAX));
    const std::uint64_t time = trace_.events[index].time_ns, start = trace_.header.start_ns;
    const std::uint64_t us = (trace_.header.start_unix_ns + (time - std::min(time, start))) / 1000;
    field("time_us", std::min(us, max_time_us));
    write_frames(site, tag);
    // The viewer colours blocks by category. It fails if a snapshot has categories and no
    // "unknown", which the last event has.
    if (has_tags_) field("category", tag_text(tag));
    pickle_.end();
  }

  const MemoryTrace& trace_;
  const std::vector<Device> devices_;
  PickleWriter pickle_;
  std::vector<const Device*> places_;                                        // by PyTorch's index
  std::map<std::pair<std::uint32_t, std::uint16_t>, std::uint32_t> frames_;  // by site and tag
  bool has_tags_ = false;
};

}  // namespace

void write_pytorch_snapshot(const MemoryTrace& trace, Output& out) {
  SnapshotWriter(trace, out).write();
}

}  // namespace tern::tools
