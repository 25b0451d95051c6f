#include "tools/replay/recorded_allocations.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "support/made_recording.hpp"
#include "tern/core/bytes.hpp"
#include "tern/core/error.hpp"
#include "tools/report/trace_summary.hpp"

namespace tern::tools {
namespace {

using bench::TraceStep;
using test::MadeRecording;

/// A block is allocated once, freed at most once and later, and no number is out of bounds.
void expect_sound_steps(const RecordedAllocations& recorded) {
  std::map<std::uint32_t, int> states;
  ASSERT_EQ(recorded.block_events.size(), recorded.trace.block_count);
  ASSERT_LE(recorded.trace.stream_count, RecordedAllocations::max_streams);
  for (const TraceStep& step : recorded.trace.steps) {
    ASSERT_LT(step.block, recorded.trace.block_count);
    ASSERT_LT(step.stream, recorded.trace.stream_count);
    ASSERT_EQ(states[step.block]++, step.bytes == 0 ? 1 : 0) << "block " << step.block;
  }
}

std::vector<std::size_t> sizes_of(const RecordedAllocations& recorded) {
  std::vector<std::size_t> sizes;
  for (const TraceStep& step : recorded.trace.steps) sizes.push_back(step.bytes);
  return sizes;
}

RecordedAllocations allocations_of(MadeRecording& made, std::string_view name = {}) {
  made.trace.sort();
  RecordedAllocations recorded = try_allocations_of(made.trace, name).value();
  expect_sound_steps(recorded);
  return recorded;
}

TEST(RecordedAllocationsTest, AreThoseOfTheProgram) {
  for (const bench::AllocationTrace& trace :
       {bench::checkerboard(), bench::train_varlen(), bench::growing_kv_cache(),
        bench::multi_stream_etl()}) {
    MadeRecording made = test::recording_of(trace);
    const RecordedAllocations recorded = allocations_of(made);
    ASSERT_EQ(recorded.trace.steps.size(), trace.steps.size());
    for (std::size_t i = 0; i < trace.steps.size(); ++i) {
      ASSERT_EQ(recorded.trace.steps[i].block, trace.steps[i].block);
      ASSERT_EQ(recorded.trace.steps[i].bytes, trace.steps[i].bytes);
    }
    EXPECT_EQ(recorded.streams, trace.stream_count);
    EXPECT_EQ(bench::facts_of(recorded.trace).peak_bytes, bench::facts_of(trace).peak_bytes);
    EXPECT_EQ(TraceSummary(made.trace, "").peaks.at(0).live, bench::facts_of(trace).peak_bytes);
    EXPECT_TRUE(recorded.notes().empty());
  }
}

TEST(RecordedAllocationsTest, RequestWhatTheProgramRequested) {
  MadeRecording made;
  made.allocate(1, 512).extra = 300;
  made.allocate(2, 512).extra = 0;
  made.allocate(3, 512).extra = 600;  // more than was granted: damaged
  EXPECT_EQ(sizes_of(allocations_of(made)), (std::vector<std::size_t>{300, 512, 512}));
}

TEST(RecordedAllocationsTest, AreInTheOrderOfTime) {
  MadeRecording made;
  made.allocate(1, 100).time_ns = 30;
  made.allocate(2, 200).time_ns = 10;
  made.free(2, 200).time_ns = 20;
  EXPECT_EQ(sizes_of(allocations_of(made)), (std::vector<std::size_t>{200, 0, 100}));
}

TEST(RecordedAllocationsTest, AFreeWithATimeBeforeItsAllocationEndsAnotherBlock) {
  MadeRecording made;
  made.allocate(1, 100).time_ns = 30;
  made.free(1, 100).time_ns = 20;
  const RecordedAllocations recorded = allocations_of(made);
  EXPECT_EQ(sizes_of(recorded), (std::vector<std::size_t>{100, 0, 100}));
  EXPECT_EQ(recorded.earlier_blocks, 1u);
}

TEST(RecordedAllocationsTest, BlocksFromBeforeTheRecordingAreThereWhenItBegins) {
  MadeRecording made;
  made.allocate(2, 100);
  made.free(7, 4096);
  made.free(2, 100);
  const RecordedAllocations recorded = allocations_of(made);
  EXPECT_EQ(sizes_of(recorded), (std::vector<std::size_t>{4096, 100, 0, 0}));
  EXPECT_EQ(recorded.earlier_blocks, 1u);
  EXPECT_EQ(bench::facts_of(recorded.trace).peak_bytes, 4196u);
  EXPECT_EQ(recorded.notes().size(), 1u);
}

TEST(RecordedAllocationsTest, LeaveOutDoubleFreesAndFreesOfNothing) {
  MadeRecording made;
  made.allocate(1, 100);
  made.free(1, 100);
  made.free(1, 100);
  made.free(1, 100);
  made.free(9, 0);
  const RecordedAllocations recorded = allocations_of(made);
  EXPECT_EQ(sizes_of(recorded), (std::vector<std::size_t>{100, 0}));
  EXPECT_EQ(recorded.double_frees, 2u);
}

TEST(RecordedAllocationsTest, ABlockEndsWhenItsAddressIsAllocatedAgain) {
  MadeRecording made;
  made.allocate(1, 100).address = 0x1000;
  made.allocate(2, 200).address = 0x1000;
  made.free(1, 100).address = 0x1000;  // late, and of no block by now
  made.free(2, 200).address = 0x1000;
  const RecordedAllocations recorded = allocations_of(made);
  EXPECT_EQ(sizes_of(recorded), (std::vector<std::size_t>{100, 0, 200, 0}));
  EXPECT_EQ(recorded.missing_frees, 1u);
  EXPECT_EQ(recorded.double_frees + recorded.earlier_blocks, 0u);
}

TEST(RecordedAllocationsTest, ANumberThatIsAllocatedAgainIsANewBlock) {
  MadeRecording made;
  made.allocate(1, 100);
  made.allocate(1, 200);
  made.free(1, 200);
  made.allocate(1, 300);
  made.free(1, 300);
  EXPECT_EQ(sizes_of(allocations_of(made)), (std::vector<std::size_t>{100, 0, 200, 0, 300, 0}));
}

TEST(RecordedAllocationsTest, BlocksOfZeroBytesAreLeftOut) {
  MadeRecording made;
  made.allocate(1, 0);
  made.allocate(2, 100);
  made.free(1, 0);
  const RecordedAllocations recorded = allocations_of(made);
  EXPECT_EQ(sizes_of(recorded), (std::vector<std::size_t>{100}));
  EXPECT_TRUE(recorded.notes().empty());
}

TEST(RecordedAllocationsTest, AreOfTheDeviceWithTheHighestPeak) {
  MadeRecording made;
  made.add_device(2, "sim:1");
  made.add_resource(2, 2, MemoryKind::device);
  made.add_resource(3, 1, MemoryKind::pinned);
  made.allocate(1, 100);
  made.device = made.resource = 2;
  made.allocate(2, 200);
  made.device = 1;
  made.resource = 3;
  made.allocate(3, 900);
  const RecordedAllocations recorded = allocations_of(made);
  EXPECT_EQ(recorded.name, "sim:1");
  EXPECT_EQ(sizes_of(recorded), (std::vector<std::size_t>{200}));
  ASSERT_EQ(recorded.others.size(), 2u);
  EXPECT_EQ(recorded.others[0].name, "sim:0");
  EXPECT_EQ(recorded.others[1].name, "page-locked memory of sim:0");
  EXPECT_EQ(recorded.others[1].peak_bytes, 900u);
  EXPECT_EQ(recorded.notes().size(), 2u);
  EXPECT_EQ(sizes_of(allocations_of(made, "page-locked memory of sim:0")),
            (std::vector<std::size_t>{900}));
  const Result<RecordedAllocations> none = try_allocations_of(made.trace, "sim:7");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.failure().text(),
            "the recording has no allocations in 'sim:7'. It has allocations in: sim:1, sim:0, "
            "page-locked memory of sim:0.");
}

TEST(RecordedAllocationsTest, RefusedRequestsAreCountedAndLeftOut) {
  MadeRecording made;
  made.allocate(1, 100);
  made.add(trace::EventKind::refuse).bytes = 1 << 20;
  const RecordedAllocations recorded = allocations_of(made);
  EXPECT_EQ(recorded.refused_requests, 1u);
  EXPECT_EQ(recorded.trace.steps.size(), 1u);
}

TEST(RecordedAllocationsTest, AMillionStreamsShareAFew) {
  MadeRecording made;
  for (std::uint64_t i = 1; i <= 1'000'000; ++i) made.allocate(i, 256, i * 0x10001);
  const RecordedAllocations recorded = allocations_of(made);
  EXPECT_EQ(recorded.streams, 1'000'000u);
  EXPECT_EQ(recorded.trace.stream_count, RecordedAllocations::max_streams);
  EXPECT_EQ(recorded.notes().at(0),
            "The 1000000 streams of the recording share 128 streams of the device.");
}

TEST(RecordedAllocationsTest, SizesThatNoDeviceHasAreRefused) {
  for (const bool is_earlier : {false, true}) {
    MadeRecording made;
    made.allocate(1, UINT64_MAX - 10);
    if (is_earlier) {
      made.free(2, 100);
    } else {
      made.allocate(2, 100);
    }
    const Result<RecordedAllocations> refused = try_allocations_of(made.trace);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.failure().code(), ErrorCode::invalid_argument);
    EXPECT_NE(refused.failure().text().find("16 EiB"), std::string::npos);
  }
}

TEST(RecordedAllocationsTest, ARecordingWithoutAllocationsIsRefused) {
  MadeRecording made;
  made.add(trace::EventKind::copy).bytes = 100;
  made.allocate(1, 0);
  EXPECT_FALSE(try_allocations_of(made.trace));
  EXPECT_FALSE(try_allocations_of(trace::MemoryTrace()));
}

TEST(RecordedAllocationsTest, RandomEventsAreASoundTrace) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    std::minstd_rand random(seed);
    MadeRecording made;
    for (int i = 0; i < 300; ++i) {
      trace::MemoryEvent& event =
          random() % 2 == 0 ? made.allocate(random() % 20, random() % 3 * (random() % 5000))
                            : made.free(random() % 20, random() % 100);
      event.address = random() % 8 * 4096;
      event.stream = random() % 5;
      event.device = event.resource = static_cast<std::uint32_t>(random() % 2 + 1);
      event.time_ns = random() % 1000;
      if (random() % 8 == 0) event.extra = random();
    }
    allocations_of(made);
  }
}

}  // namespace
}  // namespace tern::tools
