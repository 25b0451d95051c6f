#include "tools/formats/perfetto_writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tern/core/bytes.hpp"
#include "tools/formats/protobuf.hpp"
#include "tools/formats/utf8.hpp"

namespace tern::tools {
namespace {

// Numbers of the fields of perfetto_trace.proto.
namespace in_trace {
constexpr std::uint32_t packet = 1;
}
namespace in_packet {
constexpr std::uint32_t clock_snapshot = 6, timestamp = 8, sequence_id = 10, track_event = 11,
                        interned_data = 12, sequence_flags = 13, track_descriptor = 60;
}
namespace in_clocks {
constexpr std::uint32_t clock = 1, clock_id = 1, clock_time = 2;
constexpr std::uint64_t realtime = 1, monotonic = 3, boottime = 6;
}  // namespace in_clocks
namespace in_track {
constexpr std::uint32_t uuid = 1, name = 2, process = 3, parent_uuid = 5, counter = 8;
constexpr std::uint32_t process_pid = 1, process_name = 6;
constexpr std::uint32_t counter_unit = 3;
constexpr std::uint64_t unit_bytes = 3;
}  // namespace in_track
namespace in_event {
constexpr std::uint32_t category_iids = 3, debug_annotations = 4, type = 9, name_iid = 10,
                        track_uuid = 11, counter_value = 30, flow_ids = 47,
                        terminating_flow_ids = 48;
constexpr std::uint64_t slice_begin = 1, slice_end = 2, instant = 3, counter = 4;
constexpr std::uint32_t annotation_name_iid = 1, annotation_number = 3, annotation_text = 6;
}  // namespace in_event
namespace in_interned {
constexpr std::uint32_t categories = 1, names = 2, annotation_names = 3;
constexpr std::uint32_t iid = 1, text = 2;
}  // namespace in_interned

constexpr std::uint64_t only_sequence = 1;
constexpr std::uint64_t state_cleared = 1, needs_state = 2;

/// Numbers texts. The first use of a text writes it into the packet.
class Interned {
 public:
  explicit Interned(std::uint32_t field) : field_(field) {}
  std::uint64_t of(const std::string& text, ProtoMessage& data) {
    const auto [at, is_new] = numbers_.try_emplace(text, numbers_.size() + 1);
    if (is_new) {
      data.message(field_, ProtoMessage()
                               .number(in_interned::iid, at->second)
                               .text(in_interned::text, valid_utf8(text)));
    }
    return at->second;
  }

 private:
  const std::uint32_t field_;
  std::unordered_map<std::string, std::uint64_t> numbers_;
};

/// Something with a length on a track.
struct Slice {
  std::uint64_t begin = 0, end = 0;
  std::string name = {};
  const char* category = "";
  std::uint64_t bytes = 0;  // 0: it has none
  std::uint32_t site = 0;
  std::uint64_t flow = 0, flow_end = 0;  // 0: no arrow begins or ends here
};

class PerfettoWriter {
 public:
  PerfettoWriter(const TraceSummary& summary, std::uint64_t start_unix_ns, Output& out)
      : summary_(summary), start_unix_ns_(start_unix_ns), out_(out) {}

  void write() {
    write_clocks();
    write_process();
    for (std::size_t i = 0; i < summary_.devices.size(); ++i) {
      device_tracks_.push_back(add_track(summary_.devices[i], process_track_));
    }
    write_live();
    write_held();
    write_refusals();
    write_streams();
    write_threads();
  }

 private:
  // --- Packets

  void put(const ProtoMessage& packet) {
    out_.write(ProtoMessage().message(in_trace::packet, packet).bytes());
  }
  [[nodiscard]] ProtoMessage packet_at(std::uint64_t time) const {
    ProtoMessage packet;
    packet.number(in_packet::timestamp, summary_.start + time)
        .number(in_packet::sequence_id, only_sequence);
    return packet;
  }
  /// Relates the clock of the events to the time of the day.
  void write_clocks() {
    ProtoMessage clocks;
    for (const auto& [clock, time] : {std::pair(in_clocks::boottime, summary_.start),
                                      std::pair(in_clocks::monotonic, summary_.start),
                                      std::pair(in_clocks::realtime, start_unix_ns_)}) {
      clocks.message(
          in_clocks::clock,
          ProtoMessage().number(in_clocks::clock_id, clock).number(in_clocks::clock_time, time));
    }
    ProtoMessage packet = packet_at(0);
    packet.message(in_packet::clock_snapshot, clocks)
        .number(in_packet::sequence_flags, state_cleared);
    put(packet);
  }
  void write_process() {
    ProtoMessage process;
    process.number(in_track::process_pid, summary_.process & INT32_MAX)
        .text(in_track::process_name,
              valid_utf8(summary_.program.empty() ? summary_.title : summary_.program));
    process_track_ = ++last_track_;
    ProtoMessage packet = packet_at(0);
    packet.message(
        in_packet::track_descriptor,
        ProtoMessage().number(in_track::uuid, process_track_).message(in_track::process, process));
    put(packet);
  }
  std::uint64_t add_track(const std::string& name, std::uint64_t parent, bool is_counter = false) {
    ProtoMessage track;
    track.number(in_track::uuid, ++last_track_)
        .text(in_track::name, valid_utf8(name))
        .number(in_track::parent_uuid, parent);
    if (is_counter) {
      track.message(in_track::counter,
                    ProtoMessage().number(in_track::counter_unit, in_track::unit_bytes));
    }
    ProtoMessage packet = packet_at(0);
    packet.message(in_packet::track_descriptor, track);
    put(packet);
    return last_track_;
  }

  // --- Counters

  void put_counter(std::uint64_t time, std::uint64_t track, std::uint64_t value) {
    ProtoMessage packet = packet_at(time);
    packet.message(in_packet::track_event,
                   ProtoMessage()
                       .number(in_event::type, in_event::counter)
                       .number(in_event::track_uuid, track)
                       .number(in_event::counter_value, std::min<std::uint64_t>(value, INT64_MAX)));
    put(packet);
  }
  /// A counter whose changes at one time are one packet.
  struct Counter {
    std::uint64_t track = 0, value = 0;
    bool is_changed = false;
  };
  void write_live() {
    // The time, whether the block begins, and the block.
    struct Change {
      std::uint64_t time;
      bool begins;
      std::uint32_t block;
    };
    std::vector<Change> changes;
    for (std::uint32_t i = 0; i < summary_.blocks.size(); ++i) {
      const TraceSummary::Block& block = summary_.blocks[i];
      changes.push_back({block.begin, true, i});
      if (block.end != TraceSummary::never) changes.push_back({block.end, false, i});
    }
    // Stable: a block whose life is 0 begins before it ends.
    std::ranges::stable_sort(changes, {}, &Change::time);
    std::map<std::pair<std::uint32_t, std::uint32_t>, Counter> counters;  // by device and tag
    std::vector<Counter*> changed;
    const auto change = [&](std::uint32_t device, std::uint32_t tag, const std::string& name,
                            const TraceSummary::Block& block, bool begins) {
      Counter& counter = counters[{device, tag}];
      if (counter.track == 0) counter.track = add_track(name, device_tracks_[device], true);
      if (!std::exchange(counter.is_changed, true)) changed.push_back(&counter);
      counter.value += begins ? block.bytes : 0 - block.bytes;
    };
    for (std::size_t i = 0; i < changes.size(); ++i) {
      const TraceSummary::Block& block = summary_.blocks[changes[i].block];
      const std::uint32_t device = summary_.resources[block.resource].device;
      change(device, all_tags, "live", block, changes[i].begins);
      change(device, block.tag, "live: " + summary_.tags[block.tag], block, changes[i].begins);
      if (i + 1 < changes.size() && changes[i + 1].time == changes[i].time) continue;
      for (Counter* const counter : changed) {
        put_counter(changes[i].time, counter->track, counter->value);
        counter->is_changed = false;
      }
      changed.clear();
    }
  }
  void write_held() {
    std::vector<std::uint64_t> by_resource(summary_.resources.size());
    std::map<std::uint32_t, Counter> counters;  // by device
    for (const TraceSummary::Hold& hold : summary_.holds) {
      const std::uint32_t device = summary_.resources[hold.resource].device;
      Counter& counter = counters[device];
      if (counter.track == 0) counter.track = add_track("held", device_tracks_[device], true);
      counter.value += hold.bytes - std::exchange(by_resource[hold.resource], hold.bytes);
      put_counter(hold.time, counter.track, counter.value);
    }
  }

  // --- Slices

  ProtoMessage annotation(const char* name, ProtoMessage& data) {
    ProtoMessage made;
    made.number(in_event::annotation_name_iid, annotation_names_.of(name, data));
    return made;
  }
  void put_begin(std::uint64_t track, const Slice& slice, std::uint64_t type) {
    ProtoMessage data, event;
    event.number(in_event::type, type)
        .number(in_event::track_uuid, track)
        .number(in_event::category_iids, categories_.of(slice.category, data))
        .number(in_event::name_iid, names_.of(slice.name, data));
    if (slice.bytes > 0) {
      event.message(in_event::debug_annotations,
                    annotation("bytes", data).number(in_event::annotation_number, slice.bytes));
    }
    if (slice.site > 0) {
      event.message(in_event::debug_annotations,
                    annotation("line", data)
                        .text(in_event::annotation_text, valid_utf8(summary_.sites[slice.site])));
    }
    if (slice.flow > 0) event.fixed64(in_event::flow_ids, slice.flow);
    if (slice.flow_end > 0) event.fixed64(in_event::terminating_flow_ids, slice.flow_end);
    ProtoMessage packet = packet_at(slice.begin);
    packet.message(in_packet::track_event, event).number(in_packet::sequence_flags, needs_state);
    if (!data.bytes().empty()) packet.message(in_packet::interned_data, data);
    put(packet);
  }
  void put_end(std::uint64_t track, std::uint64_t time) {
    ProtoMessage packet = packet_at(time);
    packet.message(in_packet::track_event, ProtoMessage()
                                               .number(in_event::type, in_event::slice_end)
                                               .number(in_event::track_uuid, track));
    put(packet);
  }
  /// Slices of a track nest: one that begins inside another also ends there.
  void put_nested(std::uint64_t track, std::vector<Slice>& slices) {
    std::ranges::stable_sort(slices, [](const Slice& a, const Slice& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
    std::vector<std::uint64_t> open;  // ends
    const auto close_until = [&](std::uint64_t time) {
      while (!open.empty() && open.back() <= time) {
        put_end(track, open.back());
        open.pop_back();
      }
    };
    for (const Slice& slice : slices) {
      close_until(slice.begin);
      if (slice.end == slice.begin) {
        put_begin(track, slice, in_event::instant);
        continue;
      }
      put_begin(track, slice, in_event::slice_begin);
      open.push_back(open.empty() ? slice.end : std::min(slice.end, open.back()));
    }
    close_until(UINT64_MAX);
  }

  void write_refusals() {
    std::map<std::uint32_t, std::vector<Slice>> by_device;
    for (const TraceSummary::Refusal& one : summary_.refusals) {
      by_device[one.device].push_back({one.time, one.time,
                                       fmt::format("{}: {}", one.error, summary_.tags[one.tag]),
                                       "refusal", one.bytes, one.site});
    }
    for (auto& [device, slices] : by_device) {
      put_nested(add_track("refused requests", device_tracks_[device]), slices);
    }
  }
  void write_streams() {
    std::vector<std::vector<Slice>> streams(summary_.streams.size());
    std::vector<std::uint64_t> busy_until(streams.size());
    for (const TraceSummary::Copy& copy : summary_.copies) {
      // The time is that of the call. A stream does one copy after another.
      std::uint64_t& until = busy_until[copy.stream];
      const std::uint64_t begin = copy.took > 0 ? std::max(copy.time, until) : copy.time;
      const std::uint64_t end = begin + std::min(copy.took, max_took);
      if (copy.took > 0) until = end;
      streams[copy.stream].push_back({begin, end, "copy, " + std::string(name(copy.direction)),
                                      "copy", copy.bytes, copy.site});
    }
    for (const TraceSummary::Launch& one : summary_.launches) {
      streams[one.stream].push_back(
          {one.time, one.time, summary_.kernels[one.kernel], "launch", 0, one.site});
    }
    std::uint64_t flow = 0;
    for (const TraceSummary::Wait& wait : summary_.waits) {
      if (wait.stream == 0) continue;  // the host, see write_threads()
      ++flow;
      const std::string &waits = summary_.streams[wait.stream].name,
                        &other = summary_.streams[wait.waits_for].name;
      streams[wait.waits_for].push_back(
          {wait.time, wait.time, waits + " waits for this", "wait", 0, wait.site, flow, 0});
      streams[wait.stream].push_back(
          {wait.time, wait.time, "wait for " + other, "wait", 0, wait.site, 0, flow});
    }
    for (std::size_t i = 0; i < streams.size(); ++i) {
      if (streams[i].empty()) continue;
      const TraceSummary::Stream& stream = summary_.streams[i];
      // The host has no device.
      put_nested(add_track(stream.name, i == 0 ? process_track_ : device_tracks_[stream.device]),
                 streams[i]);
    }
  }
  void write_threads() {
    std::map<std::uint32_t, std::vector<Slice>> threads;
    for (const TraceSummary::Range& one : summary_.ranges) {
      threads[one.thread].push_back(
          {one.begin, one.begin + one.took, summary_.kernels[one.name], "range"});
    }
    for (const TraceSummary::Wait& one : summary_.waits) {
      if (one.stream != 0) continue;
      threads[one.thread].push_back({one.time, one.time + std::min(one.took, max_took),
                                     one.waits_for == 0
                                         ? "wait for the device"
                                         : "wait for " + summary_.streams[one.waits_for].name,
                                     "wait", 0, one.site});
    }
    for (auto& [thread, slices] : threads) {
      put_nested(add_track(fmt::format("thread {}", thread), process_track_), slices);
    }
  }

  static constexpr std::uint32_t all_tags = UINT32_MAX;
  /// A damaged trace may have any duration.
  static constexpr std::uint64_t max_took = std::uint64_t{86'400} * 1'000'000'000;

  const TraceSummary& summary_;
  const std::uint64_t start_unix_ns_;
  Output& out_;
  std::uint64_t last_track_ = 0, process_track_ = 0;
  std::vector<std::uint64_t> device_tracks_;
  Interned categories_{in_interned::categories}, names_{in_interned::names},
      annotation_names_{in_interned::annotation_names};
};

}  // namespace

void write_perfetto_trace(const TraceSummary& summary, std::uint64_t start_unix_ns, Output& out) {
  PerfettoWriter(summary, start_unix_ns, out).write();
}

}  // namespace tern::tools
