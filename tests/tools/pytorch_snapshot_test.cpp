// PyTorch memory snapshots as memory traces, and memory traces as snapshots.

#include "tools/formats/pytorch_snapshot.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "support/random_memory_trace.hpp"
#include "support/written_bytes.hpp"
#include "tools/formats/pickle_writer.hpp"
#include "tools/report/trace_summary.hpp"

namespace tern::tools {
namespace {

using trace::DefinitionKind;
using trace::EventKind;
using trace::MemoryEvent;
using trace::MemoryTrace;

/// A value of Python.
struct Value {
  using List = std::vector<Value>;
  using Dict = std::vector<std::pair<std::string, Value>>;
  Value(int number) : data(static_cast<std::uint64_t>(number)) {}
  Value(std::uint64_t number) : data(number) {}
  Value(const char* text) : data(std::string(text)) {}
  Value(List list) : data(std::move(list)) {}
  Value(Dict dict) : data(std::move(dict)) {}
  std::variant<std::uint64_t, std::string, List, Dict> data;
};
using List = Value::List;
using Dict = Value::Dict;

void write_value(PickleWriter& writer, const Value& value) {
  if (const auto* number = std::get_if<std::uint64_t>(&value.data)) return writer.number(*number);
  if (const auto* text = std::get_if<std::string>(&value.data)) return writer.text(*text);
  if (const auto* list = std::get_if<List>(&value.data)) {
    writer.begin_list();
    for (const Value& one : *list) write_value(writer, one);
    return writer.end();
  }
  writer.begin_dict();
  for (const auto& [key, one] : std::get<Dict>(value.data)) {
    writer.text(key);
    write_value(writer, one);
  }
  writer.end();
}

Dict event(const char* action, std::uint64_t address, int size, int time, Dict more = {}) {
  Dict made = {{"action", action}, {"addr", address}, {"size", size}, {"stream", 0}};
  if (time >= 0) made.emplace_back("time_us", time);
  for (auto& entry : more) made.push_back(std::move(entry));
  return made;
}
Dict frame(const char* file, int line, const char* name) {
  return {{"filename", file}, {"line", line}, {"name", name}};
}
Dict block(int size, int requested, const char* state) {
  return {{"size", size}, {"requested_size", requested}, {"state", state}, {"frames", List{}}};
}
Dict segment(int device, std::uint64_t address, int size, List blocks) {
  return {{"device", device},
          {"address", address},
          {"total_size", size},
          {"stream", 0},
          {"blocks", std::move(blocks)}};
}
/// Each trace is a list of events.
Dict snapshot(List segments, std::initializer_list<List> traces) {
  List all;
  for (const List& one : traces) all.emplace_back(one);
  return {{"segments", std::move(segments)}, {"device_traces", std::move(all)}};
}

class PytorchSnapshot : public testing::Test {
 protected:
  std::string bytes_of(const Value& value) {
    return test::written_bytes([&](Output& out) {
      PickleWriter writer(out);
      write_value(writer, value);
      writer.finish();
    });
  }
  Result<MemoryTrace> read(const Value& value) {
    return try_parse_pytorch_snapshot(bytes_of(value));
  }
  std::string failure_of(const Value& value) {
    const Result<MemoryTrace> trace = read(value);
    return trace ? "" : trace.failure().text();
  }
  std::string written(const MemoryTrace& trace) {
    return test::written_bytes([&](Output& out) { write_pytorch_snapshot(trace, out); });
  }
};

TEST_F(PytorchSnapshot, BecomesATrace) {
  const List frames = {frame("??", 0, "c10::cuda::CUDACachingAllocator::malloc"),
                       frame("/usr/lib/python3/dist-packages/torch/nn/linear.py", 100, "forward"),
                       frame("model.py", 42, "forward"), frame("train.py", 7, "main")};
  const Result<MemoryTrace> trace = read(snapshot(
      {segment(0, 0x1000, 0x4000,
               {block(0x1000, 1000, "active_allocated"), block(0x3000, 0, "inactive")})},
      {List{event("segment_alloc", 0x1000, 0x4000, 10),
            event("alloc", 0x1000, 1000, 11, {{"frames", frames}, {"user_metadata", "weights"}}),
            event("alloc", 0x2000, 2000, 12), event("free_requested", 0x2000, 2000, 14),
            event("free_completed", 0x2000, 2000, 20),
            Dict{{"action", "oom"},
                 {"device_free", 5},
                 {"size", 99'999},
                 {"stream", 7},
                 {"time_us", 30}},
            event("snapshot", 0, 0, 31), event("annotate", 0x1000, 0, 31)}}));
  ASSERT_TRUE(trace) << trace.failure().text();
  const TraceSummary seen(*trace, "snapshot.pickle");
  ASSERT_EQ(seen.blocks.size(), 2u);
  EXPECT_EQ(seen.blocks[0].begin, 1000u);
  EXPECT_EQ(seen.blocks[0].bytes, 1000u);
  EXPECT_EQ(seen.sites[seen.blocks[0].site], "model.py:42");
  EXPECT_EQ(seen.tags[seen.blocks[0].tag], "weights");
  EXPECT_EQ(seen.blocks[1].begin, 2000u);
  EXPECT_EQ(seen.blocks[1].end, 4000u);
  ASSERT_EQ(seen.peaks.size(), 1u);
  EXPECT_EQ(seen.devices[seen.peaks[0].device], "cuda:0");
  EXPECT_EQ(seen.peaks[0].live, 3000u);
  EXPECT_EQ(seen.peaks[0].held, 0x4000u);
  ASSERT_EQ(seen.refusals.size(), 1u);
  EXPECT_EQ(seen.refusals[0].bytes, 99'999u);
  EXPECT_EQ(seen.refusals[0].live, 1000u);
  EXPECT_EQ(seen.refusals[0].held, 0x4000u);
  EXPECT_EQ(seen.refusals[0].error, "out_of_memory");
  EXPECT_EQ(seen.streams[seen.refusals[0].stream].name, "stream 0x7");
  EXPECT_EQ(seen.streams[seen.blocks[0].stream].name, "default");
  EXPECT_TRUE(seen.notes.empty()) << seen.notes[0];
}

TEST_F(PytorchSnapshot, BlocksFromBeforeTheEventsAreLiveFromTheBeginning) {
  // The ring has lost the allocations of four blocks, two of which are freed later. One that was
  // freed before, but that a stream still uses, is not live.
  const Result<MemoryTrace> trace = read(snapshot(
      {segment(0, 0x1000, 0x7000,
               {block(0x1000, 4000, "active_allocated"), block(0x1000, 0, "inactive"),
                block(0x1000, 3000, "active_allocated"), block(0x1000, 100, "active_allocated"),
                block(0x1000, 50, "active_pending_free"), block(0x1000, 0, "inactive"),
                block(0x1000, 600, "active_pending_free")})},
      {List{event("free_requested", 0x2000, 2000, 100), event("free_completed", 0x2000, 2000, 100),
            event("free_completed", 0x6000, 77, 101), event("alloc", 0x4000, 100, 102),
            event("free_requested", 0x5000, 50, 103)}}));
  ASSERT_TRUE(trace) << trace.failure().text();
  const TraceSummary seen(*trace, "snapshot.pickle");
  EXPECT_EQ(seen.peaks.at(0).live, 4000u + 2000 + 3000 + 50);
  EXPECT_EQ(seen.peaks.at(0).time, 0u);
  std::uint64_t leaked = 0;
  for (const TraceSummary::Leak& one : seen.leaks) leaked += one.bytes;
  EXPECT_EQ(leaked, 4000u + 3000 + 100);
  EXPECT_TRUE(seen.notes.empty()) << seen.notes[0];
}

TEST_F(PytorchSnapshot, HeldBytesFollowTheSegments) {
  const Result<MemoryTrace> trace = read(
      snapshot({segment(0, 0x1000, 500, {}), segment(0, 0x9000, 700, {})},
               {List{event("segment_free", 0x5000, 100, 1), event("segment_alloc", 0x9000, 700, 2),
                     event("segment_map", 0xa000, 40, 3), event("segment_unmap", 0xa000, 30, 4)}}));
  ASSERT_TRUE(trace) << trace.failure().text();
  std::vector<std::uint64_t> held;
  for (const MemoryEvent& one : trace->events) {
    if (one.kind == EventKind::hold) held.push_back(one.bytes);
  }
  EXPECT_EQ(held, (std::vector<std::uint64_t>{590, 490, 1190, 1230, 1200}));
}

TEST_F(PytorchSnapshot, DevicesAndStreamsAreSeparate) {
  const Result<MemoryTrace> trace =
      read(snapshot({}, {List{event("alloc", 0x1000, 10, 5)}, List{},
                         List{event("alloc", 0x9000, 20, 4), event("alloc", 0xa000, 20, 6)}}));
  ASSERT_TRUE(trace) << trace.failure().text();
  const TraceSummary seen(*trace, "snapshot.pickle");
  EXPECT_EQ(seen.streams.size(), 3u);
  ASSERT_EQ(seen.peaks.size(), 2u);
  EXPECT_EQ(seen.devices[seen.peaks[0].device], "cuda:2");
  EXPECT_EQ(seen.peaks[0].live, 40u);
  EXPECT_EQ(seen.devices[seen.peaks[1].device], "cuda:0");
  EXPECT_EQ(seen.duration, 2000u);
}

TEST_F(PytorchSnapshot, WithoutTimesTheOrderIsTheTime) {
  const Result<MemoryTrace> trace =
      read(snapshot({}, {List{event("alloc", 0x1000, 10, -1), event("alloc", 0x2000, 10, 4),
                              event("free_requested", 0x1000, 10, -1), event("dance", 0, 0, -1)}}));
  ASSERT_TRUE(trace) << trace.failure().text();
  const TraceSummary seen(*trace, "snapshot.pickle");
  EXPECT_EQ(seen.blocks.at(0).end, 2000u);
  ASSERT_EQ(seen.notes.size(), 2u);
  EXPECT_EQ(seen.notes[0], "1 events of unknown kinds were skipped.");
  EXPECT_EQ(seen.notes[1], "The snapshot has no timestamps. Events are shown 1 us apart.");
}

TEST_F(PytorchSnapshot, ASnapshotWithoutEventsShowsWhatWasLive) {
  const List segments = {segment(1, 0x1000, 100, {block(100, 90, "active_allocated")})};
  // torch.cuda.memory_snapshot() returns the list alone.
  for (const Value& value : {Value(segments), Value(snapshot(segments, {}))}) {
    const Result<MemoryTrace> trace = read(value);
    ASSERT_TRUE(trace) << trace.failure().text();
    const TraceSummary seen(*trace, "snapshot.pickle");
    EXPECT_EQ(seen.devices[seen.peaks.at(0).device], "cuda:1");
    EXPECT_EQ(seen.peaks[0].live, 90u);
    EXPECT_EQ(seen.peaks[0].held, 100u);
    ASSERT_EQ(seen.notes.size(), 1u);
    EXPECT_NE(seen.notes[0].find("_record_memory_history()"), std::string::npos);
  }
}

TEST_F(PytorchSnapshot, OldVersionsHaveTheFramesInAHistory) {
  const Dict old = {{"size", 512},
                    {"state", "active_allocated"},
                    {"history", List{Dict{{"addr", 0x1000},
                                          {"real_size", 300},
                                          {"frames", List{frame("old.py", 3, "f")}}}}}};
  const Result<MemoryTrace> trace = read(snapshot({segment(0, 0x1000, 512, {old})}, {}));
  ASSERT_TRUE(trace) << trace.failure().text();
  const TraceSummary seen(*trace, "snapshot.pickle");
  EXPECT_EQ(seen.blocks.at(0).bytes, 300u);
  EXPECT_EQ(seen.sites[seen.blocks[0].site], "old.py:3");
}

TEST_F(PytorchSnapshot, TheSiteIsTheInnermostFrameOfTheProgram) {
  const std::pair<List, const char*> cases[] = {
      {{frame("/p/site-packages/torch/a.py", 1, "a"), frame("/p/site-packages/hf/b.py", 2, "b"),
        frame("c.py", 3, "c")},
       "/p/site-packages/hf/b.py:2"},
      {{frame("/p/site-packages/torch/a.py", 1, "a"), frame("/p/site-packages/torch/b.py", 2, "b")},
       "/p/site-packages/torch/a.py:1"},
      {{frame("??", 0, "c10::cuda::CUDACachingAllocator::Native::malloc"),
        frame("/src/ops.cu", 9, "run"), frame("<ipython-input-3>", 4, "<module>")},
       "<ipython-input-3>:4"},
      {{frame("??", 0, "unwind::unwind"), frame("??", 0, "my_extension::run")},
       "my_extension::run:0"},
      {{frame("/tmp/torchinductor_me/x/y.py", 1, "call"), frame("train.py", 5, "step")},
       "train.py:5"},
      {{}, "unknown"}};
  for (const auto& [frames, site] : cases) {
    const Result<MemoryTrace> trace =
        read(snapshot({}, {List{event("alloc", 0x1000, 10, 1, {{"frames", frames}})}}));
    ASSERT_TRUE(trace);
    const TraceSummary seen(*trace, "snapshot.pickle");
    EXPECT_EQ(seen.sites[seen.blocks.at(0).site], site);
  }
}

TEST_F(PytorchSnapshot, OfEqualKeysTheLastCounts) {
  const Result<MemoryTrace> trace =
      read(snapshot({}, {List{event("alloc", 0x1000, 10, 1, {{"size", 20}})}}));
  ASSERT_TRUE(trace);
  EXPECT_EQ(TraceSummary(*trace, "x").blocks.at(0).bytes, 20u);
}

TEST_F(PytorchSnapshot, WhatIsWrongIsNamed) {
  EXPECT_NE(failure_of(Dict{{"a", 1}}).find("not a PyTorch memory snapshot"), std::string::npos);
  EXPECT_NE(failure_of(7).find("not a PyTorch memory snapshot"), std::string::npos);
  const auto bad_event = [&](Dict one) {
    return failure_of(snapshot({}, {List{event("snapshot", 0, 0, 1), std::move(one)}}));
  };
  EXPECT_NE(
      bad_event({{"action", "alloc"}, {"size", 1}}).find("event 1 of '?' has no valid 'addr'"),
      std::string::npos);
  EXPECT_NE(bad_event({{"action", "alloc"}, {"addr", 1}}).find("no valid 'size'"),
            std::string::npos);
  EXPECT_NE(bad_event(event("alloc", 1, 1, 1, {{"size", UINT64_MAX}})).find("no valid 'size'"),
            std::string::npos);
  EXPECT_NE(bad_event(event("alloc", 1, 1, 1, {{"time_us", UINT64_MAX}})).find("'time_us'"),
            std::string::npos);
  EXPECT_NE(
      failure_of(List{Dict{{"total_size", 1}}}).find("segment 0 of '?' has no valid 'address'"),
      std::string::npos);
  EXPECT_NE(failure_of(List{Dict{{"address", UINT64_MAX}, {"total_size", 2}}})
                .find("no valid 'total_size'"),
            std::string::npos);
  EXPECT_NE(failure_of(List{segment(0, 16, 10, {block(6, 6, "inactive"), block(6, 6, "inactive")})})
                .find("no valid 'blocks'"),
            std::string::npos);
}

/// Bytes of a pickle that refers to one list many times.
std::string repeated(std::string_view list, std::size_t times, std::string_view key) {
  std::string bytes = "\x80\x02";
  bytes += list;  // leaves its value on the stack
  bytes +=
      "q\x01"
      "0}X";
  const auto length = static_cast<char>(key.size());
  bytes += std::string{length, '\0', '\0', '\0'};
  bytes += key;
  bytes += "](";
  for (std::size_t i = 0; i < times; ++i) bytes += "h\x01";
  return bytes + "es.";
}

TEST(HostileSnapshots, RepeatedListsEndSoon) {
  // 100,000 devices with the same 100,000 events.
  const std::string traces =
      repeated("](" + std::string(100'000, '}') + "e", 100'000, "device_traces");
  const Result<MemoryTrace> many = try_parse_pytorch_snapshot(traces);
  ASSERT_FALSE(many);
  EXPECT_NE(many.failure().text().find("refers to the same lists so often"), std::string::npos);
  // 100,000 segments with the same 100,000 blocks.
  std::string segment(
      "}(U\x07"
      "addressK\0U\x0atotal_sizeK\0U\x06"
      "blocks](",
      35);
  segment += std::string(100'000, '}') + "eu";
  const Result<MemoryTrace> blocks =
      try_parse_pytorch_snapshot(repeated(segment, 100'000, "segments"));
  ASSERT_FALSE(blocks);
}

TEST(HostileSnapshots, LongNamesAreNotCopiedForEachUse) {
  // One file name of a megabyte, and 20,000 lines in it.
  const std::size_t lines = 20'000;
  std::string bytes = "\x80\x02X";
  bytes += std::string("\0\0\x10\0", 4) + std::string(std::size_t{1} << 20, 'x') +
           "q\x01"
           "0}";
  bytes +=
      "U\x0d"
      "device_traces]](";
  for (std::size_t i = 0; i < lines; ++i) {
    bytes += std::string(
                 "}(U\x06"
                 "actionU\x05"
                 "allocU\x04"
                 "addrK\x01U\x04sizeK\x01U\x06") +
             "frames](}(U\x08"
             "filenameh\x01U\x04lineJ";
    for (int k = 0; k < 4; ++k) bytes += static_cast<char>(i >> (8 * k) & 0xFF);
    bytes += "ueu";
  }
  bytes += "eas.";
  const Result<MemoryTrace> trace = try_parse_pytorch_snapshot(bytes);
  ASSERT_TRUE(trace) << trace.failure().text();
  EXPECT_EQ(trace->events.size(), lines + 1);
  std::size_t copied = 0;
  for (const auto& [number, name] : trace->names(DefinitionKind::site)) copied += name.text.size();
  EXPECT_GT(copied, trace::max_text_bytes);
  EXPECT_LE(copied, bytes.size() + (1U << 20));
}

TEST_F(PytorchSnapshot, LiveBytesSurviveARoundTrip) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    const test::RandomMemoryTrace random(seed, 50 * seed);
    const Result<MemoryTrace> back = try_parse_pytorch_snapshot(written(random.trace()));
    ASSERT_TRUE(back) << back.failure().text();
    EXPECT_TRUE(back->notes.empty());
    const auto before = test::live_bytes(random.trace()), after = test::live_bytes(*back);
    for (const auto& [device, values] : before) {
      ASSERT_TRUE(after.contains(device)) << device;
      const std::vector<std::uint64_t>& read = after.at(device);
      // Blocks from before the trace are events of a snapshot.
      ASSERT_GE(read.size(), values.size());
      EXPECT_TRUE(std::equal(values.rbegin(), values.rend(), read.rbegin())) << device;
    }
    const TraceSummary first(random.trace(), "x"), second(*back, "x");
    ASSERT_EQ(first.peaks.size(), second.peaks.size());
    for (std::size_t i = 0; i < first.peaks.size(); ++i) {
      EXPECT_EQ(first.peaks[i].live, second.peaks[i].live);
    }
    EXPECT_EQ(first.refusals.size(), second.refusals.size());
    // A snapshot of a snapshot has the same events.
    EXPECT_EQ(test::live_bytes(*try_parse_pytorch_snapshot(written(*back))), after);
  }
}

TEST_F(PytorchSnapshot, LostFreesDoNotOverlapInASnapshot) {
  MemoryTrace trace;
  trace.define(DefinitionKind::device, 1, {"cuda:0", 0, 0, 0});
  const auto add = [&](EventKind kind, std::uint64_t number, std::uint64_t address,
                       std::uint64_t bytes) {
    MemoryEvent made;
    made.kind = kind;
    made.time_ns = 1000 * (trace.events.size() + 1);
    made.block = number;
    made.address = address;
    made.bytes = bytes;
    made.device = made.resource = 1;
    trace.events.push_back(made);
    trace.threads.push_back(1);
  };
  add(EventKind::allocate, 1, 0x1000, 0x100);
  add(EventKind::allocate, 2, 0x1100, 0x100);
  add(EventKind::allocate, 3, 0x1080, 0x100);  // the frees of 1 and 2 are lost
  add(EventKind::free, 2, 0x1100, 0x100);
  add(EventKind::free, 9, 0x1000, 0x100);  // cannot have been there from the beginning
  add(EventKind::free, 8, 0x9000, 0x100);  // was
  add(EventKind::allocate, 4, 0x2000, 0);
  add(EventKind::allocate, 5, UINT64_MAX - 10, 100);
  const Result<MemoryTrace> back = try_parse_pytorch_snapshot(written(trace));
  ASSERT_TRUE(back) << back.failure().text();
  EXPECT_EQ(test::live_bytes(*back).at("cuda:0"),
            (std::vector<std::uint64_t>{0, 0x100, 0x200, 0x300, 0x200, 0x100, 0x200, 0x100}));
}

TEST(SnapshotFiles, ThatCannotBeReadAreFailures) {
  const Result<MemoryTrace> none = try_read_pytorch_snapshot("/no/such/file");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.failure().code(), ErrorCode::file);
}

}  // namespace
}  // namespace tern::tools
