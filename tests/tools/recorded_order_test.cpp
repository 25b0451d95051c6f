// Recordings as the order checker sees them: which mistakes it finds, and that correct programs
// have no findings, however they order their work.

#include "tools/check/recorded_order.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "support/made_trace.hpp"
#include "support/temporary_folder.hpp"
#include "tern/backends/sim.hpp"
#include "tern/detail/trace/record.hpp"
#include "tern/device/event.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/pool_resource.hpp"
#include "tern/trace/recorder.hpp"
#include "tern/trace/trace_check.hpp"

namespace tern::tools {
namespace {

using trace::EventKind;
using trace::MemoryEvent;
using trace::MemoryTrace;

std::vector<Finding> findings_of(const MemoryTrace& trace) {
  const RecordedOrder order = order_of(trace);
  TraceReader reader = TraceReader::try_read_bytes(order.bytes).value();
  std::vector<Finding> found;
  const CheckSummary summary =
      check_trace(reader, [&](const Finding& finding) { found.push_back(finding); });
  EXPECT_FALSE(summary.failure) << summary.failure->text();
  return found;
}

constexpr std::uint64_t base = 0x7000'0000;
constexpr std::uint64_t first = StreamId(DeviceId{1}, 1, 1).value(),
                        second = StreamId(DeviceId{1}, 2, 2).value(),
                        third = StreamId(DeviceId{1}, 3, 3).value();

/// A recording of streams that share a block of 4096 bytes at `base`.
class RecordedOrderTest : public testing::Test {
 protected:
  RecordedOrderTest() {
    for (const std::uint64_t stream : {first, second, third}) begin(stream);
    block_ = story_.allocate_at(base, 4096, 1, 0, first);
    record(first, 1);
    wait(second, first, 1);
    wait(third, first, 1);
  }
  MemoryEvent& begin(std::uint64_t stream,
                     trace::StreamOrder order = trace::StreamOrder::independent) {
    MemoryEvent& event = story_.add(EventKind::stream_begin, 0);
    event.stream = stream;
    event.detail = static_cast<std::uint8_t>(order);
    return event;
  }
  MemoryEvent& fill(std::uint64_t stream, std::uint32_t line, std::uint64_t offset = 0,
                    std::uint64_t bytes = 4096) {
    MemoryEvent& event = story_.add(EventKind::fill, bytes, line);
    event.address = base + offset;
    event.stream = stream;
    return event;
  }
  /// The library records a device event for marks up to `sequence`.
  void record(std::uint64_t stream, std::uint64_t sequence, std::uint64_t event_of_program = 0) {
    MemoryEvent& event = story_.add(EventKind::event_recorded, 0);
    event.stream = stream;
    event.block = sequence;
    event.address = event_of_program;
  }
  void wait(std::uint64_t stream, std::uint64_t other, std::uint64_t sequence,
            std::uint64_t event_of_program = 0) {
    MemoryEvent& event = story_.add(EventKind::stream_wait, 0);
    event.stream = stream;
    event.extra = other;
    event.block = sequence;
    event.address = event_of_program;
  }
  MemoryEvent& see(EventKind kind, std::uint64_t stream, std::uint64_t sequence = 0) {
    MemoryEvent& event = story_.add(kind, 0);
    event.stream = stream;
    event.block = sequence;
    return event;
  }
  [[nodiscard]] std::vector<Finding> findings() const { return findings_of(story_.trace()); }
  void expect(FindingCode code, std::uint32_t line) const {
    const std::vector<Finding> found = findings();
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].code, code) << found[0].text();
    EXPECT_EQ(found[0].site.line, line) << found[0].text();
  }

  test::MadeTrace story_;
  std::uint64_t block_ = 0;
};

TEST_F(RecordedOrderTest, FindsAMissingWaitAndItsLines) {
  fill(first, 10);
  fill(second, 20);
  expect(FindingCode::missing_wait, 20);
  const Finding found = findings()[0];
  EXPECT_NE(found.text().find("code.cpp:10"), std::string::npos) << found.text();
}

TEST_F(RecordedOrderTest, AWaitCoversTheWorkBeforeTheDeviceEvent) {
  fill(first, 10);
  record(first, 2);
  wait(second, first, 2);
  fill(second, 20);
  EXPECT_TRUE(findings().empty());
  // Work after the event is not covered.
  fill(first, 11, 0, 8);
  wait(third, second, 0);
  wait(third, first, 2);
  fill(third, 30);
  const std::vector<Finding> found = findings();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].site.line, 11u);
  EXPECT_EQ(found[1].site.line, 30u);
}

TEST_F(RecordedOrderTest, AMarkIsCoveredByALaterDeviceEvent) {
  fill(first, 10);
  record(first, 7);
  wait(second, first, 5);
  fill(second, 20);
  EXPECT_TRUE(findings().empty());
}

TEST_F(RecordedOrderTest, AMarkWhoseEventTheRecordingLacksCoversAllWorkSoFar) {
  fill(first, 10);
  wait(second, first, 9);
  fill(second, 20);
  EXPECT_TRUE(findings().empty());
}

TEST_F(RecordedOrderTest, AWaitForAnEventOfTheProgramCoversWhatIsBeforeTheEvent) {
  fill(first, 10, 0, 8);
  record(first, 0, 0xe1);
  fill(first, 11, 8, 8);
  wait(second, first, 0, 0xe1);
  fill(second, 20, 0, 8);
  EXPECT_TRUE(findings().empty());
  fill(second, 21, 8, 8);
  expect(FindingCode::missing_wait, 21);
}

TEST_F(RecordedOrderTest, WhatTheHostHasSeenCompleteNeedsNoWait) {
  std::uint64_t mark = 1;
  for (const EventKind kind : {EventKind::host_wait, EventKind::done_seen}) {
    fill(first, 10);
    record(first, ++mark);
    see(kind, first, mark);
    fill(second, 20);
    see(kind, second);
    fill(third, 30);
    see(kind, 0);
  }
  fill(first, 10);
  see(EventKind::host_call, first);
  fill(second, 20);
  EXPECT_TRUE(findings().empty());
}

TEST_F(RecordedOrderTest, AStreamThatOnlyWaitedTellsTheHostWhatItWaitedFor) {
  for (const EventKind kind : {EventKind::host_wait, EventKind::done_seen}) {
    fill(first, 10);
    record(first, 2);
    wait(second, first, 2);
    see(kind, second);
    fill(third, 30);
    see(kind, third);
  }
  EXPECT_TRUE(findings().empty());
}

TEST_F(RecordedOrderTest, WorkAfterWhatTheHostHasSeenNeedsAWait) {
  fill(first, 10);
  record(first, 2);
  fill(first, 11);
  see(EventKind::done_seen, first, 2);
  fill(second, 20);
  expect(FindingCode::missing_wait, 20);
}

TEST_F(RecordedOrderTest, AWaitOfTheHostCountsWhenItEnds) {
  fill(first, 10);
  MemoryEvent& waited = see(EventKind::host_wait, first);
  waited.extra = 5'000;  // another thread submits meanwhile
  fill(second, 20);
  expect(FindingCode::missing_wait, 20);
}

TEST_F(RecordedOrderTest, AWaitForOneDeviceCoversNoOtherDevice) {
  const std::uint64_t other = StreamId(DeviceId{2}, 1, 1).value();
  begin(other);
  wait(other, first, 1);
  fill(other, 10);
  see(EventKind::host_wait, 0);  // of device 1
  fill(second, 20);
  expect(FindingCode::missing_wait, 20);
}

TEST_F(RecordedOrderTest, ABlockingStreamIsOrderedWithTheDefaultStream) {
  const std::uint64_t ordinary = StreamId(DeviceId{1}, 0, 0).value(),
                      blocking = StreamId(DeviceId{1}, 4, 4).value();
  begin(blocking, trace::StreamOrder::blocking);
  wait(ordinary, first, 1);
  fill(ordinary, 10);
  fill(blocking, 20);
  EXPECT_TRUE(findings().empty());
  fill(first, 30);
  EXPECT_EQ(findings().size(), 1u);
}

TEST_F(RecordedOrderTest, LeavesOutWhatItCannotJudge) {
  const std::uint64_t borrowed = StreamId(DeviceId{1}, 4, 4).value();
  begin(borrowed, trace::StreamOrder::borrowed);
  fill(first, 10);
  fill(borrowed, 20);
  MemoryEvent& rows = story_.add(EventKind::copy, 4096, 30);
  rows.stream = second;
  rows.address = base;
  rows.detail = static_cast<std::uint8_t>(trace::CopyShape::rows);
  fill(second, 40, 8192);
  EXPECT_TRUE(findings().empty());
  const RecordedOrder order = order_of(story_.trace());
  EXPECT_EQ(order.judged, 1u);
  EXPECT_EQ(order.on_borrowed_streams, 1u);
  EXPECT_EQ(order.in_rows, 1u);
  EXPECT_EQ(order.outside_of_blocks, 1u);
  EXPECT_EQ(order.live_blocks, 1u);
  EXPECT_EQ(order.live_bytes, 4096u);
  // Another library may have ordered the borrowed stream after any other.
  wait(second, borrowed, 3);
  fill(second, 50);
  EXPECT_TRUE(findings().empty());
  fill(first, 60);
  EXPECT_EQ(findings().size(), 1u);
  wait(second, first, 0);
  fill(second, 61);
  wait(third, 0, 0);
  fill(third, 62);
  EXPECT_EQ(findings().size(), 1u);
}

TEST_F(RecordedOrderTest, FindsAFreeDuringAUse) {
  fill(second, 20);
  story_.free(block_, first, 30);
  expect(FindingCode::free_while_in_use, 30);
}

TEST_F(RecordedOrderTest, FindsAUseAfterTheFree) {
  story_.hold(8192, 0);
  story_.free(block_, first, 30);
  fill(first, 40);
  expect(FindingCode::use_after_free, 40);
}

TEST_F(RecordedOrderTest, MemoryThatTheDriverGotBackMayBelongToSomebodyElse) {
  story_.free(block_, first, 30);  // of a resource that is no pool
  fill(second, 40);
  story_.hold(8192, 0);
  story_.free(story_.allocate_at(base, 4096, 50, 0, first), first, 60);
  story_.hold(4096, 0);
  fill(second, 70);
  EXPECT_TRUE(findings().empty());
}

TEST_F(RecordedOrderTest, DoesNotJudgeHowMemoryIsReused) {
  fill(first, 10);
  story_.free(block_, first, 30);
  // The pool has ordered this by means that a recording need not show.
  story_.allocate_at(base + 1024, 1024, 40, 0, second);
  fill(second, 50, 1024, 1024);
  EXPECT_TRUE(findings().empty());
  // A block that a borrowed stream frees is forgotten.
  const std::uint64_t borrowed = StreamId(DeviceId{1}, 4, 4).value();
  begin(borrowed, trace::StreamOrder::borrowed);
  story_.free(2, borrowed);
  fill(first, 60, 1024, 1024);
  EXPECT_TRUE(findings().empty());
}

TEST_F(RecordedOrderTest, ABlockInsideALiveBlockIsPartOfIt) {
  const std::uint64_t inner = story_.allocate_at(base + 256, 256, 20, 0, second);
  story_.free(inner, second);
  fill(first, 30);
  EXPECT_TRUE(findings().empty());
  EXPECT_EQ(order_of(story_.trace()).live_blocks, 1u);
}

TEST_F(RecordedOrderTest, ReadsDoNotConflictWithReads) {
  constexpr std::uint8_t read = 0, read_write = 1;
  const auto use = [&](std::uint64_t stream, std::uint8_t access, std::uint32_t line) {
    MemoryEvent& event = story_.add(EventKind::use, 4096, line);
    event.address = base;
    event.stream = stream;
    event.detail = access;
  };
  use(first, read, 10);
  use(second, read, 20);
  MemoryEvent& copy = story_.add(EventKind::copy, 4096, 25);
  copy.stream = third;
  copy.address = 1;
  copy.extra = base;
  EXPECT_TRUE(findings().empty());
  use(third, read_write, 30);
  const std::vector<Finding> found = findings();
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found[0].site.line, 30u);
}

TEST_F(RecordedOrderTest, HostileNumbersAreHarmless) {
  std::mt19937_64 random(7);
  for (int run = 0; run < 300; ++run) {
    test::MadeTrace story;
    for (int i = 0; i < 200; ++i) {
      MemoryEvent& event = story.add(EventKind{static_cast<std::uint8_t>(random() % 40)}, 0);
      const auto number = [&] {
        const std::uint64_t value = random();
        return value % 3 == 0 ? value : value % 3 == 1 ? value % 16 : ~(value % 16);
      };
      event.stream = number();
      event.block = number();
      event.address = number();
      event.bytes = number();
      event.extra = number();
      event.detail = static_cast<std::uint8_t>(number());
      event.time_ns = number();
      event.device = static_cast<std::uint32_t>(number());
      event.tag = static_cast<std::uint16_t>(number());
    }
    static_cast<void>(findings_of(story.trace()));
  }
}

TEST_F(RecordedOrderTest, TheTraceIsNotMuchLargerThanTheRecording) {
  constexpr std::uint64_t streams = 500;
  const auto id = [](std::uint64_t i) {
    return StreamId(DeviceId{1}, static_cast<std::uint32_t>(i % streams) + 10,
                    static_cast<std::uint32_t>(i % streams) + 10)
        .value();
  };
  for (std::uint64_t i = 0; i < 1000; ++i) {
    story_.allocate_at(base + 4096 * (i + 1), 4096, 1, 0, id(i));
  }
  for (std::uint64_t i = 0; i < 1000; ++i) {
    fill(id(i), 10, 0, std::uint64_t{1} << 40);  // of all blocks
    wait(first, 0, 0, 5);                        // for an event of another library
  }
  const MemoryTrace& trace = story_.trace();
  EXPECT_LT(order_of(trace).bytes.size(), 8 * trace.events.size() * sizeof(MemoryEvent));
}

TEST_F(RecordedOrderTest, AWaitForAnotherLibraryCoversManyStreams) {
  constexpr std::uint32_t streams = 40;
  const auto id = [](std::uint32_t i) { return StreamId(DeviceId{1}, i + 10, i + 10).value(); };
  for (std::uint32_t i = 0; i < streams; ++i) {
    begin(id(i));
    wait(id(i), first, 1);
    fill(id(i), 10, 64 * i, 64);
  }
  wait(second, 0, 0, 5);
  fill(second, 20);
  EXPECT_TRUE(findings().empty());
}

TEST_F(RecordedOrderTest, AnyNumberOfStreamsIsCheckedIfTheyEnd) {
  constexpr std::uint32_t streams = 3 * max_actors;
  std::uint64_t before = first, mark_before = 1;
  for (std::uint32_t i = 0; i < streams; ++i) {
    const std::uint64_t stream = StreamId(DeviceId{1}, i % 100 + 10, i + 10).value();
    begin(stream);
    wait(stream, before, mark_before);
    fill(stream, 10);
    record(stream, 5);
    // The host learns of the end in several ways, before and after the stream is destroyed.
    if (i % 3 == 0) see(EventKind::host_wait, stream);
    if (i % 3 == 1) see(EventKind::done_seen, stream, 5);
    see(EventKind::stream_end, stream);
    if (i % 3 == 2) see(EventKind::done_seen, stream, 5);
    before = stream, mark_before = 5;
  }
  EXPECT_TRUE(findings().empty());
  const RecordedOrder order = order_of(story_.trace());
  EXPECT_EQ(order.judged, streams);
  EXPECT_EQ(order.on_borrowed_streams, 0u);
  EXPECT_EQ(order.streams, streams + 3);
}

TEST_F(RecordedOrderTest, TheWorkOfADestroyedStreamNeedsAWaitUntilTheHostKnowsItsEnd) {
  fill(first, 10);
  record(first, 2);
  see(EventKind::stream_end, first);
  const std::uint64_t next = StreamId(DeviceId{1}, 1, 9).value();
  begin(next);
  fill(next, 20);
  expect(FindingCode::missing_wait, 20);
}

TEST_F(RecordedOrderTest, TheMarkOfADestroyedBlockingStreamCoversTheDefaultStream) {
  const std::uint64_t ordinary = StreamId(DeviceId{1}, 0, 0).value(),
                      blocking = StreamId(DeviceId{1}, 4, 4).value();
  wait(ordinary, first, 1);
  fill(ordinary, 10);
  begin(blocking, trace::StreamOrder::blocking);
  record(blocking, 1);
  see(EventKind::stream_end, blocking);
  wait(second, blocking, 1);
  fill(second, 20);
  EXPECT_TRUE(findings().empty());
}

TEST_F(RecordedOrderTest, AStreamInThePlaceOfADestroyedOneIsJudgedByItself) {
  fill(first, 10);
  see(EventKind::host_wait, first);
  see(EventKind::stream_end, first);
  const std::uint64_t next = StreamId(DeviceId{1}, 1, 9).value();
  begin(next);
  fill(next, 20);
  wait(second, first, 2);  // it has ended, and says nothing about the new stream
  fill(second, 30);
  expect(FindingCode::missing_wait, 30);
}

// --- Random programs, compared with the checker of the simulated device

/// Runs a random program on a simulated device with streams, pool memory, waits of all kinds and
/// polls. `omit_one_in`: every so many of the necessary waits are left out; 0: none.
class RandomProgram {
 public:
  RandomProgram(std::uint64_t seed, unsigned omit_one_in)
      : random_(seed),
        omit_one_in_(omit_one_in),
        device_(sim::open({.seed = seed,
                           .mode = sim::Mode::collect,
                           .print_findings = false,
                           .memory_bytes = std::size_t{64} << 20})),
        pool_(device_) {
    for (int i = 0; i < 4; ++i) streams_.emplace_back(device_, StreamOptions{.blocking = i == 3});
  }

  void run(int steps) {
    for (int i = 0; i < steps; ++i) step();
    for (Shared& one : blocks_) free(one);
    blocks_.clear();
    device_.synchronize();
  }
  [[nodiscard]] std::vector<Finding> findings() const { return sim::findings(device_); }

 private:
  static constexpr std::size_t stream_count = 4;

  struct Shared {
    Block block;
    /// The last use of each stream, and whether it wrote.
    std::array<Mark, stream_count> uses = {};
    std::array<bool, stream_count> writes = {};
  };

  std::size_t pick(std::size_t count) { return random_() % count; }

  /// Orders the stream after the mark in one of the ways that a program has.
  void order(std::size_t stream, std::size_t other, Mark mark) {
    if (omit_one_in_ != 0 && pick(omit_one_in_) == 0) return;
    switch (pick(7)) {
      case 0:
        return device_.wait(mark);
      case 1: {
        Event event(device_);
        streams_[other].record(event);
        return streams_[stream].wait(event);
      }
      case 2:
        return streams_[other].synchronize();
      case 3:
        if (Device::try_is_done(mark).value()) return;
        break;
      case 4: {
        Event event(device_);
        streams_[other].record(event);
        if (event.is_done()) return;
        return event.synchronize();
      }
      case 5:
        if (streams_[other].try_is_idle().value()) return;
        break;
      default:
        break;
    }
    streams_[stream].wait(mark);
  }
  void order_uses(Shared& one, std::size_t stream, bool writes) {
    for (std::size_t other = 0; other < stream_count; ++other) {
      if (other == stream || !one.uses[other]) continue;
      if (writes || one.writes[other]) order(stream, other, one.uses[other]);
    }
  }
  void note_use(Shared& one, std::size_t stream, bool writes) {
    if (writes) one.uses = {}, one.writes = {};
    one.uses[stream] = streams_[stream].mark();
    one.writes[stream] = one.writes[stream] || writes;
  }
  void free(Shared& one) {
    const std::size_t stream = pick(stream_count);
    order_uses(one, stream, true);
    static_cast<void>(pool_.try_deallocate(one.block, streams_[stream]));
  }

  /// Destroys a stream, whose work may still run, and creates another one that is ordered after it.
  void replace(std::size_t stream) {
    const Mark last = streams_[stream].mark();
    const std::size_t how = omit_one_in_ != 0 && pick(omit_one_in_) == 0 ? 3 : pick(3);
    if (how == 0) device_.wait(last);
    streams_[stream] = Stream(device_, StreamOptions{.blocking = stream == 3});
    if (how == 1) device_.wait(last);
    if (how == 2) streams_[stream].wait(last);
  }

  void step() {
    const std::size_t stream = pick(stream_count);
    if (pick(12) == 0) return replace(stream);
    const std::size_t bytes = 256 * (1 + pick(8));
    if (blocks_.size() < 3 || (blocks_.size() < 12 && pick(4) == 0)) {
      Shared one{pool_.allocate({.bytes = bytes, .stream = streams_[stream]})};
      note_use(one, stream, true);
      streams_[stream].fill(static_cast<std::byte*>(one.block.address), one.block.bytes,
                            std::byte{1});
      note_use(one, stream, true);
      blocks_.push_back(one);
      return;
    }
    Shared& one = blocks_[pick(blocks_.size())];
    switch (pick(6)) {
      case 0:
        free(one);
        std::swap(one, blocks_.back());
        blocks_.pop_back();
        return;
      case 1:
      case 2: {
        Shared& other = blocks_[pick(blocks_.size())];
        if (&other == &one) return;
        order_uses(one, stream, true);
        order_uses(other, stream, false);
        static_cast<void>(streams_[stream].try_copy(one.block.address, other.block.address,
                                                    std::min(one.block.bytes, other.block.bytes)));
        note_use(one, stream, true);
        note_use(other, stream, false);
        return;
      }
      default:
        order_uses(one, stream, true);
        static_cast<void>(streams_[stream].try_fill(static_cast<std::byte*>(one.block.address),
                                                    one.block.bytes, std::byte{2}));
        note_use(one, stream, true);
        return;
    }
  }

  std::mt19937_64 random_;
  unsigned omit_one_in_;
  Device device_;
  PoolResource pool_;
  std::vector<Stream> streams_;
  std::vector<Shared> blocks_;
};

struct Findings {
  std::vector<Finding> of_device, of_recording;
};

Findings findings_of_program(std::uint64_t seed, unsigned omit_one_in) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "run.trace";
  Findings found;
  trace::start(path);
  {
    RandomProgram program(seed, omit_one_in);
    program.run(60);
    found.of_device = program.findings();
  }
  trace::stop();
  const MemoryTrace trace = MemoryTrace::try_read(path).value();
  found.of_recording = findings_of(trace);
  for (Finding& finding : found.of_recording) finding.site = {};  // refers to the recording
  return found;
}

TEST(RecordedPrograms, CorrectProgramsHaveNoFindings) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const Findings found = findings_of_program(seed, 0);
    ASSERT_TRUE(found.of_device.empty()) << "seed " << seed << "\n" << found.of_device[0].text();
    ASSERT_TRUE(found.of_recording.empty()) << "seed " << seed << "\n"
                                            << found.of_recording[0].text();
  }
}

TEST(RecordedPrograms, MissingWaitsAreFoundWhereTheSimulatedDeviceFindsThem) {
  int wrong = 0, found_by_both = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const Findings found = findings_of_program(seed, 30);
    if (found.of_device.empty()) {
      ASSERT_TRUE(found.of_recording.empty()) << "seed " << seed << "\n"
                                              << found.of_recording[0].text();
      continue;
    }
    ++wrong;
    if (!found.of_recording.empty()) ++found_by_both;
  }
  EXPECT_GT(wrong, 100);
  // A wait that is left out may be hidden by one that covers more than it must.
  EXPECT_GE(found_by_both, wrong * 9 / 10) << wrong;
  std::printf("%d programs with findings, %d of them by their recordings, too\n", wrong,
              found_by_both);
}

}  // namespace
}  // namespace tern::tools
