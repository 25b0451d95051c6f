// Traces for Perfetto: counters agree with the summary, and slices nest.

#include "tools/formats/perfetto_writer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/random_memory_trace.hpp"
#include "support/written_bytes.hpp"

namespace tern::tools {
namespace {

/// The fields of a message. A number is in `number`, and everything else in `bytes`.
struct Field {
  std::uint32_t name = 0;
  std::uint64_t number = 0;
  std::string_view bytes = {};
};

std::uint64_t take_varint(std::string_view& from) {
  std::uint64_t value = 0;
  for (unsigned shift = 0; !from.empty(); shift += 7) {
    const auto byte = static_cast<std::uint8_t>(from.front());
    from.remove_prefix(1);
    value |= std::uint64_t{byte & 0x7FU} << shift;
    if (byte < 0x80) return value;
  }
  ADD_FAILURE() << "a number has no end";
  return 0;
}

std::vector<Field> fields_of(std::string_view from) {
  std::vector<Field> fields;
  while (!from.empty()) {
    const std::uint64_t key = take_varint(from);
    Field field{static_cast<std::uint32_t>(key >> 3)};
    if (key % 8 == 0) {
      field.number = take_varint(from);
    } else {
      const std::uint64_t length = key % 8 == 1 ? 8 : take_varint(from);
      EXPECT_TRUE(key % 8 <= 2 && length <= from.size());
      field.bytes = from.substr(0, length);
      from.remove_prefix(field.bytes.size());
    }
    fields.push_back(field);
  }
  return fields;
}

Field field_of(std::string_view message, std::uint32_t name) {
  for (const Field& field : fields_of(message)) {
    if (field.name == name) return field;
  }
  return {};
}

struct TrackEvent {
  std::uint64_t time = 0, type = 0, track = 0, value = 0, name = 0;
};

/// What a trace for Perfetto has.
struct Parsed {
  explicit Parsed(std::string_view bytes) {
    for (const Field& packet : fields_of(bytes)) {
      EXPECT_EQ(packet.name, 1u);
      const std::uint64_t time = field_of(packet.bytes, 8).number;
      const std::string_view track = field_of(packet.bytes, 60).bytes;
      if (!track.empty()) {
        tracks[field_of(track, 1).number] = {std::string(field_of(track, 2).bytes),
                                             field_of(track, 5).number};
      }
      for (const Field& interned : fields_of(field_of(packet.bytes, 12).bytes)) {
        if (interned.name == 2) {
          names[field_of(interned.bytes, 1).number] = field_of(interned.bytes, 2).bytes;
        }
      }
      const std::string_view event = field_of(packet.bytes, 11).bytes;
      if (event.empty()) continue;
      events.push_back({time, field_of(event, 9).number, field_of(event, 11).number,
                        field_of(event, 30).number, field_of(event, 10).number});
    }
  }
  /// The values of a counter of a device.
  [[nodiscard]] std::vector<std::uint64_t> counter(const std::string& device,
                                                   const std::string& name) const {
    std::vector<std::uint64_t> values;
    for (const TrackEvent& event : events) {
      const auto& [its_name, parent] = tracks.at(event.track);
      if (event.type == 4 && its_name == name && tracks.at(parent).first == device) {
        values.push_back(event.value);
      }
    }
    return values;
  }

  std::map<std::uint64_t, std::pair<std::string, std::uint64_t>> tracks;  // name and parent
  std::map<std::uint64_t, std::string_view> names;
  std::vector<TrackEvent> events;
};

TEST(PerfettoTraces, CountersAgreeWithTheSummary) {
  for (unsigned seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    const TraceSummary summary(test::RandomMemoryTrace(seed, 100 * seed).trace(), "run.trace");
    const std::string bytes =
        test::written_bytes([&](Output& out) { write_perfetto_trace(summary, 5, out); });
    const Parsed parsed(bytes);
    for (const TraceSummary::Peak& peak : summary.peaks) {
      const std::string& device = summary.devices[peak.device];
      const std::vector<std::uint64_t> live = parsed.counter(device, "live");
      ASSERT_FALSE(live.empty());
      EXPECT_EQ(std::ranges::max(live), peak.live);
      std::uint64_t leaked = 0;
      for (const TraceSummary::Leak& leak : summary.leaks) {
        if (leak.device == peak.device) leaked += leak.bytes;
      }
      EXPECT_EQ(live.back(), leaked);
      std::uint64_t held = 0;
      for (const TraceSummary::Hold& hold : summary.holds) {
        if (summary.resources[hold.resource].device == peak.device) held = hold.bytes;
      }
      const std::vector<std::uint64_t> counted = parsed.counter(device, "held");
      EXPECT_EQ(counted.empty() ? 0 : counted.back(), held);
    }
  }
}

TEST(PerfettoTraces, SlicesOfATrackNest) {
  for (unsigned seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    const TraceSummary summary(test::RandomMemoryTrace(seed, 1000).trace(), "run.trace");
    const std::string bytes =
        test::written_bytes([&](Output& out) { write_perfetto_trace(summary, 5, out); });
    const Parsed parsed(bytes);
    std::map<std::uint64_t, int> depths;
    std::map<std::uint64_t, std::uint64_t> times;
    std::size_t slices = 0;
    for (const TrackEvent& event : parsed.events) {
      EXPECT_TRUE(parsed.tracks.contains(event.track));
      EXPECT_GE(event.time, times[event.track]);
      times[event.track] = event.time;
      if (event.type == 1) ++depths[event.track];
      if (event.type == 2) --depths[event.track];
      EXPECT_GE(depths[event.track], 0);
      if (event.type == 1 || event.type == 3) {
        ++slices;
        EXPECT_TRUE(parsed.names.contains(event.name));
      }
    }
    for (const auto& [track, depth] : depths) EXPECT_EQ(depth, 0);
    std::size_t between = 0;
    for (const TraceSummary::Wait& wait : summary.waits) between += wait.stream != 0;
    // A wait between streams is on both of them.
    EXPECT_EQ(slices, summary.ranges.size() + summary.copies.size() + summary.launches.size() +
                          summary.waits.size() + between + summary.refusals.size());
  }
}

/// Types and times of the events of a trace.
std::vector<std::pair<std::uint64_t, std::uint64_t>> types_and_times(
    const trace::MemoryTrace& trace) {
  const TraceSummary summary(trace, "made");
  const std::string bytes =
      test::written_bytes([&](Output& out) { write_perfetto_trace(summary, 0, out); });
  std::vector<std::pair<std::uint64_t, std::uint64_t>> seen;
  for (const TrackEvent& event : Parsed(bytes).events) seen.emplace_back(event.type, event.time);
  return seen;
}

TEST(PerfettoTraces, ASliceEndsWithTheOneAroundIt) {
  trace::MemoryTrace made;
  const auto add = [&](trace::EventKind kind, std::uint64_t time, std::uint64_t took) {
    trace::MemoryEvent event;
    event.kind = kind;
    event.time_ns = time;
    event.extra = took;
    made.events.push_back(event);
    made.threads.push_back(1);
  };
  add(trace::EventKind::range_begin, 1000, 0);
  add(trace::EventKind::host_wait, 1200, 100);
  add(trace::EventKind::host_wait, 1500, 1000);  // longer than the range
  add(trace::EventKind::range_end, 2000, 0);
  const std::vector<std::pair<std::uint64_t, std::uint64_t>> expected = {
      {1, 1000}, {1, 1200}, {2, 1300}, {1, 1500}, {2, 2000}, {2, 2000}};
  EXPECT_EQ(types_and_times(made), expected);
}

TEST(PerfettoTraces, CopiesOfAStreamFollowEachOther) {
  trace::MemoryTrace made;
  for (std::uint64_t i = 0; i < 2; ++i) {
    trace::MemoryEvent copy;
    copy.kind = trace::EventKind::copy;
    copy.time_ns = 1000 + i;  // both are submitted at once
    copy.block = i + 1;
    copy.bytes = 64;
    copy.stream = 7;
    made.events.push_back(copy);
    made.threads.push_back(1);
    trace::MemoryEvent time;
    time.kind = trace::EventKind::copy_time;
    time.time_ns = copy.time_ns;
    time.block = copy.block;
    time.extra = 500;
    made.events.push_back(time);
    made.threads.push_back(1);
  }
  const std::vector<std::pair<std::uint64_t, std::uint64_t>> expected = {
      {1, 1000}, {2, 1500}, {1, 1500}, {2, 2000}};
  EXPECT_EQ(types_and_times(made), expected);
}

}  // namespace
}  // namespace tern::tools
