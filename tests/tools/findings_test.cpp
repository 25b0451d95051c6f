// The rules behind "What stands out": each finds what it is for, and nothing else.

#include "tools/report/findings.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "bench/allocation_trace.hpp"
#include "support/made_trace.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/core/bytes.hpp"
#include "tern/memory/pool_resource.hpp"
#include "tern/trace/recorder.hpp"
#include "tools/report/comparison.hpp"

namespace tern::tools {
namespace {

using trace::EventKind;

class Story : public test::MadeTrace {
 public:
  [[nodiscard]] TraceSummary summary() const { return TraceSummary(trace(), "made"); }
  [[nodiscard]] Findings findings() const { return Findings(summary()); }
};

bool has(const std::string& text, std::string_view part) { return text.find(part) != text.npos; }

TEST(Unsafe, WhatTheCheckerReportedComesFirst) {
  Story story;
  story.refuse(100, 0, 3);
  for (const std::uint32_t text : {7u, 8u}) {
    story.trace().define(trace::DefinitionKind::text, text,
                         {"text " + std::to_string(text), 0, 0, 0});
    story.add(EventKind::finding, 0, text).extra = text;
  }
  const Findings found = story.findings();
  ASSERT_EQ(found.all.size(), 2u);
  EXPECT_EQ(found.all[0].kind, Finding::Kind::unsafe);
  EXPECT_EQ(found.all[0].text, "The checker reported at code.cpp:7: text 7 (and 1 more)");
}

// --- Lines that keep growing

/// `steps` steps, each with a temporary of line 1, and what `each` does.
template <class Each>
Story loop(int steps, Each each) {
  Story story;
  for (int step = 0; step < steps; ++step) {
    const std::uint64_t temporary = story.allocate(1000, 1, 1);
    each(story, step);
    story.free(temporary);
  }
  return story;
}

TEST(KeepsGrowing, FindsALineThatNeverFrees) {
  const Story story = loop(40, [](Story& one, int) { one.allocate(100, 2, 2); });
  const Findings found = story.findings();
  ASSERT_EQ(found.all.size(), 1u);
  EXPECT_EQ(found.all[0].kind, Finding::Kind::keeps_growing);
  EXPECT_TRUE(has(found.all[0].text, "gpu: memory tagged 'tag 2' that code.cpp:2 allocates"));
  EXPECT_TRUE(
      has(found.all[0].text,
          "keeps growing: from 500 B in 5 blocks at 14.0 us to 3.9 KiB in 40 blocks, and none "
          "of it was freed."))
      << found.all[0].text;
  // The moment with the most memory, and what to highlight.
  EXPECT_EQ(found.all[0].time, 119'000u);
  EXPECT_EQ(found.all[0].line, (Finding::Line{2, 2}));
}

TEST(KeepsGrowing, FindsALineThatFreesEverythingAtTheEnd) {
  std::vector<std::uint64_t> kept;
  Story story = loop(40, [&](Story& one, int) { kept.push_back(one.allocate(100, 2, 2)); });
  for (const std::uint64_t block : kept) story.free(block);
  const Findings found = story.findings();
  ASSERT_EQ(found.all.size(), 1u);
  EXPECT_TRUE(has(found.all[0].text,
                  "to 3.9 KiB in 40 blocks, and was freed only at the end, at 160.0 us."))
      << found.all[0].text;
}

TEST(KeepsGrowing, CountsTheBlocksThatWereNotFreed) {
  std::vector<std::uint64_t> kept;
  Story story = loop(40, [&](Story& one, int) { kept.push_back(one.allocate(100, 2, 2)); });
  kept.pop_back();
  for (const std::uint64_t block : kept) story.free(block);
  EXPECT_TRUE(has(story.findings().all.at(0).text, "in 40 blocks, and 1 block was not freed."));
}

TEST(KeepsGrowing, FindsALineThatFreesEverythingBeforeAnotherDeviceEnds) {
  std::vector<std::uint64_t> kept;
  Story story = loop(40, [&](Story& one, int) { kept.push_back(one.allocate(100, 2, 2)); });
  for (const std::uint64_t block : kept) story.free(block);
  story.allocate(1, 3);
  story.trace().events.back().device = story.trace().events.back().resource = 2;
  EXPECT_EQ(story.findings().all.size(), 1u);
}

TEST(KeepsGrowing, IgnoresStepsThatNeedMoreAndFreeAll) {
  Story story;
  // 800 allocations, so that each eighth begins in the middle of a step, with live blocks.
  for (int i = 0; i < 45; ++i) story.free(story.allocate(1, 1));
  for (std::uint64_t step = 1; step <= 75; ++step) {
    std::vector<std::uint64_t> blocks;
    for (int i = 0; i < 10; ++i) blocks.push_back(story.allocate(10 * step, 2, 2));
    if (step == 75) break;
    for (const std::uint64_t block : blocks) story.free(block);
  }
  for (int i = 0; i < 5; ++i) story.free(story.allocate(1, 1));
  EXPECT_TRUE(story.findings().all.empty());
}

TEST(KeepsGrowing, FindsALineThatFreesMostOfItsBlocks) {
  const Story story = loop(80, [](Story& one, int step) {
    const std::uint64_t block = one.allocate(100, 2, 2);
    if (step % 4 != 0) one.free(block);
  });
  ASSERT_EQ(story.findings().all.size(), 1u);
}

TEST(KeepsGrowing, IgnoresMemoryThatIsAllocatedOnce) {
  Story story;
  for (int i = 0; i < 100; ++i) story.allocate(1000, 3);
  for (int step = 0; step < 300; ++step) story.free(story.allocate(100, 1));
  EXPECT_TRUE(story.findings().all.empty());
}

TEST(KeepsGrowing, IgnoresACacheThatIsFull) {
  std::vector<std::uint64_t> cache;
  const Story story = loop(200, [&](Story& one, int step) {
    cache.push_back(one.allocate(100, 2, 2));
    if (step >= 100) one.free(cache[static_cast<std::size_t>(step - 100)]);
  });
  EXPECT_TRUE(story.findings().all.empty());
}

TEST(KeepsGrowing, IgnoresAProgramThatBuildsUpAndFreesAll) {
  Story story;
  std::vector<std::uint64_t> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(story.allocate(1000, 3));
  for (const std::uint64_t block : blocks) story.free(block);
  EXPECT_TRUE(story.findings().all.empty());
  EXPECT_TRUE(story.findings().growing.empty());
}

TEST(KeepsGrowing, ARecordingThatWasNotStoppedDoesNotKnowWhatIsNeverFreed) {
  Story story;
  for (int i = 0; i < 100; ++i) story.allocate(1000, 3);
  EXPECT_EQ(story.findings().all.size(), 1u);
  story.trace().header.is_closed = 0;
  EXPECT_TRUE(story.findings().all.empty());
}

TEST(KeepsGrowing, IgnoresWhatIsSmallBesideThePeak) {
  Story story = loop(40, [](Story& one, int) { one.allocate(100, 2, 2); });
  story.allocate(10'000'000, 4);
  EXPECT_TRUE(story.findings().all.empty());
  EXPECT_EQ(story.findings().growing.size(), 1u) << "the table lists it";
}

// --- Refused requests

/// Blocks of 1000 bytes, every second one freed.
Story checkerboard(int pairs) {
  Story story;
  std::vector<std::uint64_t> freed;
  for (int i = 0; i < pairs; ++i) {
    freed.push_back(story.allocate(1000, 1, 1));
    story.allocate(1000, 2, 2);
  }
  for (const std::uint64_t block : freed) story.free(block);
  return story;
}

TEST(Fragmented, NamesTheBlocksBetweenTheFreeRanges) {
  Story story = checkerboard(5);
  story.refuse(3000, 10'000, 7, 7);
  const Findings found = story.findings();
  ASSERT_EQ(found.all.size(), 1u);
  EXPECT_EQ(found.all[0].kind, Finding::Kind::fragmented);
  const std::string& text = found.all[0].text;
  EXPECT_TRUE(has(text, "code.cpp:7 requested 2.9 KiB tagged 'tag 7' and was refused although"));
  EXPECT_TRUE(has(text, "4.9 KiB of 9.8 KiB held were free: the largest free range had 1000 B"));
  // The last live block has free memory on one side only.
  EXPECT_TRUE(has(text, "4 blocks (3.9 KiB) tagged 'tag 2', allocated at code.cpp:2, lay between"));
}

TEST(Fragmented, ShowsTheBlocksAndTheLargestRequest) {
  Story story = checkerboard(5);
  story.refuse(2500, 10'000, 7, 7);
  const std::uint64_t time = story.refuse(3000, 10'000, 7, 7).time_ns;
  story.refuse(2500, 10'000, 7, 7);
  const Finding found = story.findings().all.at(0);
  EXPECT_EQ(found.time, time);
  EXPECT_EQ(found.line, (Finding::Line{2, 2}));
}

TEST(Fragmented, AndAGrowingLineBetweenTheFreeRangesAreOneFinding) {
  std::vector<std::uint64_t> freed;
  Story story = loop(40, [&](Story& one, int) {
    freed.push_back(one.allocate(1000, 3, 3));
    one.allocate(100, 2, 2);
    if (freed.size() > 1) one.free(freed[freed.size() - 2], 1, 3);
  });
  story.refuse(3000, 50'000, 7, 7);
  const Findings found = story.findings();
  ASSERT_EQ(found.all.size(), 1u);
  EXPECT_EQ(found.all[0].kind, Finding::Kind::fragmented);
  EXPECT_TRUE(has(found.all[0].text,
                  "tagged 'tag 2', allocated at code.cpp:2, lay between free ranges. The memory "
                  "tagged 'tag 2' keeps growing: from "))
      << found.all[0].text;
  EXPECT_EQ(found.growing.size(), 1u) << "the table lists it";
}

TEST(Fragmented, BelievesTheLargestFreeRangeOfThePool) {
  Story story = checkerboard(5);
  story.refuse(3000, 10'000, 7).address = 2048;
  EXPECT_TRUE(has(story.findings().all.at(0).text, "the largest free range had 2.0 KiB"));
}

TEST(Fragmented, IsNotWhatALimitRefuses) {
  Story story = checkerboard(5);
  story.refuse(6000, 10'000, 7);
  const Findings found = story.findings();
  ASSERT_EQ(found.all.size(), 1u);
  EXPECT_EQ(found.all[0].kind, Finding::Kind::refused);
  EXPECT_TRUE(has(found.all[0].text, "4.9 KiB were live, 9.8 KiB held, most of it tagged 'tag 2'"));
}

TEST(Refused, IsOneFindingForALine) {
  Story story;
  story.allocate(1000, 1, 1);
  for (int i = 0; i < 20; ++i) story.refuse(6000, 1000, 7);
  const Findings found = story.findings();
  ASSERT_EQ(found.all.size(), 1u);
  EXPECT_TRUE(has(found.all[0].text,
                  "code.cpp:7 requested 5.9 KiB without a tag and was refused 20 times"));
}

TEST(Refused, SaysWhyThePoolDidNotGrow) {
  const auto text_of = [](std::uint64_t limit, trace::Backing backing) {
    Story story;
    story.allocate(1000, 1, 1);
    story.add(EventKind::limit, limit).detail = static_cast<std::uint8_t>(backing);
    story.refuse(6000, 1024, 7);
    story.refuse(9000, 1024, 8);  // no limit is known for this one
    const Findings found = story.findings();
    EXPECT_FALSE(has(found.all.at(1).text, "limit"));
    return found.all.at(0).text;
  };
  EXPECT_TRUE(has(text_of(2048, trace::Backing::segments),
                  "The pool could grow by 1.0 KiB only, because of its limit of 2.0 KiB. It holds "
                  "segments, which it can return to the driver only as a whole."));
  EXPECT_TRUE(has(text_of(1024, trace::Backing::pages),
                  "The pool could not grow because of its limit of 1.0 KiB."));
  EXPECT_TRUE(has(text_of(1 << 20, trace::Backing::pages),
                  "The pool has a limit of 1.0 MiB, but the driver rejected more memory."));
  EXPECT_TRUE(has(text_of(trace::no_limit, trace::Backing::pages),
                  "The pool has no limit, but the driver rejected more memory."));
  EXPECT_FALSE(has(text_of(trace::no_limit, trace::Backing::pages), "segments"));
}

TEST(Refused, NamesTheSmallestAndTheLargestRequest) {
  Story story;
  story.allocate(1000, 1, 1);
  for (const std::uint64_t bytes : {6000U, 9000U, 3000U}) story.refuse(bytes, 1000, 7);
  const Findings found = story.findings();
  ASSERT_EQ(found.all.size(), 1u);
  EXPECT_TRUE(has(found.all[0].text, "requested 2.9 KiB to 8.8 KiB without a tag"))
      << found.all[0].text;
}

TEST(Refused, IsNoFindingIfTheThreadGetsTheMemoryLater) {
  Story story;
  const std::uint64_t block = story.allocate(1000, 1, 1);
  story.refuse(6000, 1000, 7);
  story.free(block);
  story.allocate(6000, 7);
  EXPECT_TRUE(story.findings().all.empty());
  EXPECT_TRUE(story.summary().refusals.at(0).is_served_later);
  EXPECT_EQ(story.summary().served_later, 1u);
}

TEST(Refused, WhilePendingNamesTheStream) {
  Story story;
  for (int i = 0; i < 4; ++i) story.free(story.allocate(2000, 1, 1), 2, 3);
  story.refuse(6000, 8000, 7).block = 8000;
  const Findings found = story.findings();
  ASSERT_EQ(found.all.size(), 1u);
  EXPECT_EQ(found.all[0].kind, Finding::Kind::refused_pending);
  EXPECT_TRUE(has(found.all[0].text, "while 7.8 KiB of 7.8 KiB held were pending: freed, but"));
  EXPECT_TRUE(has(found.all[0].text,
                  "The largest part was freed on stream 'stream 2': mostly memory tagged 'tag 1', "
                  "allocated at code.cpp:1 and freed at code.cpp:3."))
      << found.all[0].text;
}

// --- Streams that block reuse

/// A pool that grows by 1000 bytes in each of `steps` steps. Blocks are freed on stream 2 at
/// line 3.
Story pipeline(int steps, std::uint64_t pending_share, std::uint64_t request = 1000) {
  Story story;
  for (int step = 0; step < steps; ++step) {
    const auto done = static_cast<std::uint64_t>(step);
    story.hold(1000 * (done + 1), 1000 * done * pending_share);
    story.free(story.allocate(request, 1, 1), 2, 3);
  }
  return story;
}

TEST(BlockedReuse, NamesTheStreamAndTheLines) {
  const Findings found = pipeline(10, 1).findings();
  ASSERT_EQ(found.all.size(), 1u);
  EXPECT_EQ(found.all[0].kind, Finding::Kind::blocked_reuse);
  EXPECT_EQ(
      found.all[0].text,
      "gpu: memory freed on stream 'stream 2' could not be reused because 'stream 2' was still "
      "behind. At 28.0 us, 8.8 KiB of 9.8 KiB held were pending on it: mostly memory tagged "
      "'tag 1', allocated at code.cpp:1 and freed at code.cpp:3. For requests at code.cpp:1, the "
      "pool grew 9 times, by 8.8 KiB in total.");
  // The moment with the most pending memory, and what to highlight.
  EXPECT_EQ(found.all[0].time, 28'000u);
  EXPECT_EQ(found.all[0].line, (Finding::Line{1, 1}));
}

TEST(BlockedReuse, NamesWhatTheStreamWasWaitingFor) {
  Story story = pipeline(5, 1);
  const auto wait = [&](std::uint64_t stream, std::uint64_t other, std::uint32_t line) {
    trace::MemoryEvent& event = story.add(EventKind::stream_wait, 0, line);
    event.stream = stream;
    event.extra = other;
    event.block = 1;
  };
  story.add(EventKind::host_call, 0, 40).stream = 3;
  wait(4, 3, 30);
  wait(2, 4, 20);
  wait(2, 4, 20);
  story.hold(10'000, 5000);
  story.allocate(1000, 1, 1);
  EXPECT_TRUE(
      has(story.findings().all.at(0).text,
          " 'stream 2' was waiting for 'stream 4' at code.cpp:20 (2 times in the recording), "
          "and 'stream 4' was waiting for 'stream 3' at code.cpp:30, and 'stream 3' had to "
          "call a host function, submitted at code.cpp:40."))
      << story.findings().all.at(0).text;
}

TEST(BlockedReuse, CountsManyGrowths) {
  const Findings found = pipeline(200, 1).findings();
  ASSERT_EQ(found.blocked.size(), 1u);
  EXPECT_EQ(found.blocked[0].times, 199u);
  EXPECT_EQ(found.blocked[0].grown, 199'000u);
}

TEST(BlockedReuse, MayBeOneGrowth) {
  EXPECT_TRUE(has(pipeline(2, 1).findings().all.at(0).text, "the pool grew by 1000 B."));
}

TEST(BlockedReuse, CountsOnlySomeOfVeryManyGrowths) {
  const Findings found = pipeline(20'000, 1).findings();
  EXPECT_TRUE(has(found.all.at(0).text, "the pool grew at least 100 times, by 97.7 KiB in total."))
      << found.all.at(0).text;
}

TEST(BlockedReuse, NeedsMemoryThatThePoolSaysIsPending) {
  EXPECT_TRUE(pipeline(10, 0).findings().all.empty());
}

TEST(BlockedReuse, IsNotTheStreamOfTheRequest) {
  Story story;
  for (std::uint64_t step = 0; step < 10; ++step) {
    story.hold(1000 * (step + 1), 1000 * step);
    story.free(story.allocate(1000, 1, 1, 2), 2, 3);
  }
  EXPECT_TRUE(story.findings().all.empty());
}

TEST(BlockedReuse, EndsWhenTheStreamIsSeenToPassTheFree) {
  Story story;
  for (std::uint64_t step = 0; step < 10; ++step) {
    story.hold(1000 * (step + 1), 1000 * step);
    story.free(story.allocate(1000, 1, 1), 2, 3);
    story.pass(2);
  }
  EXPECT_TRUE(story.findings().all.empty());
}

TEST(BlockedReuse, DoesNotCountPiecesThatAreTooSmall) {
  Story story;
  // Pieces of 1000 bytes with live blocks between them, and requests of 1500 bytes.
  std::vector<std::uint64_t> pieces;
  for (int i = 0; i < 10; ++i) {
    pieces.push_back(story.allocate(1000, 1, 1));
    story.allocate(1000, 2, 2);
  }
  for (const std::uint64_t piece : pieces) story.free(piece, 2, 3);
  story.hold(20'000, 0);
  story.hold(21'500, 10'000);
  story.allocate(1500, 4);
  EXPECT_TRUE(story.findings().blocked.empty());
}

TEST(BlockedReuse, CountsMemoryOnce) {
  Story story;
  story.hold(1000, 0);
  story.free(story.allocate(1000, 1, 1), 2, 3);
  // Ten growths, and 1000 bytes that could have served one of them.
  for (std::uint64_t step = 1; step <= 10; ++step) {
    story.hold(1000 * (step + 1), 1000);
    story.allocate(1000, 4);
  }
  const Findings found = story.findings();
  ASSERT_EQ(found.blocked.size(), 1u);
  EXPECT_EQ(found.blocked[0].times, 10u);
  EXPECT_EQ(found.blocked[0].avoidable(), 1000u);
  // Less than 10 % of the peak of the pool.
  for (const Finding& one : found.all) EXPECT_NE(one.kind, Finding::Kind::blocked_reuse);
}

// --- All rules

TEST(Findings, AreAtMostFiveAndTwoOfAKindComeFirst) {
  Story story = checkerboard(5);
  for (std::uint32_t line = 20; line < 30; ++line) story.refuse(3000, 10'000, line);
  for (std::uint32_t line = 30; line < 40; ++line) story.refuse(9000, 10'000, line);
  const Findings found = story.findings();
  ASSERT_EQ(found.all.size(), Findings::max_findings);
  EXPECT_EQ(found.all[1].kind, Finding::Kind::fragmented);
  EXPECT_EQ(found.all[2].kind, Finding::Kind::refused);
  EXPECT_EQ(found.all[4].kind, Finding::Kind::fragmented);
}

TEST(Findings, NameTheLineThatWaitsForItsBudget) {
  Story story;
  story.free(story.allocate(1000, 1));
  story.add(EventKind::budget_wait, 1000, 9, 9).extra = 400;
  const Findings found = story.findings();
  ASSERT_EQ(found.all.size(), 1u);
  EXPECT_TRUE(
      has(found.all[0].text, "the longest waits were at code.cpp:9 (tagged 'tag 9', 400 ns)"));
  story.free(story.allocate(1000, 1));
  for (int i = 0; i < 20; ++i) story.free(story.allocate(1000, 1));
  EXPECT_TRUE(story.findings().all.empty()) << "400 ns of 47 us";
}

TEST(Findings, NameTheLineThatEvictsAgainAndAgain) {
  Story story;
  story.free(story.allocate(1000, 1));
  story.add(EventKind::evict, 1000, 9, 9);
  EXPECT_TRUE(story.findings().all.empty());
  story.add(EventKind::evict, 1500, 9, 9);
  const Findings found = story.findings();
  ASSERT_EQ(found.all.size(), 1u);
  EXPECT_TRUE(has(found.all[0].text, "2 copies (2.4 KiB), 2.5 times")) << found.all[0].text;
  EXPECT_TRUE(has(found.all[0].text, "code.cpp:9"));
}

/// Runs an allocation trace on a pool, records it, and returns the summary.
TraceSummary record(const bench::AllocationTrace& trace, const std::string& device_spec) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("tern_findings_" + std::to_string(getpid())))
          .string();
  const Device device = open_device(device_spec);
  trace::start(path);
  {
    PoolResource pool(device);
    std::vector<Stream> streams;
    for (std::uint32_t i = 0; i < trace.stream_count; ++i) streams.emplace_back(device);
    std::vector<Block> blocks(trace.block_count);
    std::vector<std::uint32_t> stream_of(trace.block_count);
    for (const bench::TraceStep& step : trace.steps) {
      Block& block = blocks[step.block];
      if (step.bytes == 0) {
        pool.deallocate(std::exchange(block, {}), streams[step.stream]);
      } else {
        block = pool.allocate({.bytes = step.bytes, .stream = streams[step.stream]});
        stream_of[step.block] = step.stream;
      }
    }
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (blocks[i]) pool.deallocate(blocks[i], streams[stream_of[i]]);
    }
  }
  trace::stop();
  TraceSummary summary(trace::MemoryTrace::try_read(path).value(), "run");
  std::filesystem::remove(path);
  return summary;
}

TEST(Findings, AreNoneInHealthyPrograms) {
  for (const bench::AllocationTrace& trace :
       {bench::train_varlen(4), bench::train_varlen(), bench::growing_kv_cache(),
        bench::multi_stream_etl(), bench::checkerboard()}) {
    const Findings found(record(trace, "sim?check=off"));
    for (const Finding& one : found.all) ADD_FAILURE() << trace.name << ": " << one.text;
  }
}

TEST(Findings, AndReportsOfRandomEventsDoNoHarm) {
  std::mt19937_64 random(7);
  const auto number = [&]() -> std::uint64_t {
    switch (random() % 4) {
      case 0:
        return random() % 8;
      case 1:
        return random() % 5 * 4096;
      case 2:
        return UINT64_MAX - random() % 3;
      default:
        return random();
    }
  };
  TraceSummary last(trace::MemoryTrace{}, "none");
  for (int round = 0; round < 60; ++round) {
    trace::MemoryTrace made;
    made.header.is_closed = static_cast<std::uint32_t>(round % 2);
    for (int i = 0; i < 200; ++i) {
      trace::MemoryEvent event;
      event.kind = static_cast<EventKind>(1 + random() % (trace::event_kinds - 1));
      event.time_ns = random() % 8 == 0 ? number() : static_cast<std::uint64_t>(i);
      event.stream = number();
      event.block = number();
      event.address = number();
      event.bytes = number();
      event.extra = number();
      event.site = static_cast<std::uint32_t>(number());
      event.resource = static_cast<std::uint32_t>(random() % 4);
      event.device = static_cast<std::uint32_t>(random() % 3);
      event.tag = static_cast<std::uint16_t>(number());
      event.detail = static_cast<std::uint8_t>(number());
      made.events.push_back(event);
      made.threads.push_back(static_cast<std::uint32_t>(random() % 3));
    }
    made.sort();
    TraceSummary now(made, "now");
    EXPECT_LE(Findings(now).all.size(), Findings::max_findings) << "round " << round;
    EXPECT_FALSE(text_report(now).empty());
    const Comparison comparison(last, now);
    EXPECT_FALSE(text_report(comparison).empty());
    EXPECT_FALSE(page_report(comparison, last, now).empty());
    last = std::move(now);
  }
}

TEST(Findings, TakeLittleTimeWhateverTheTrace) {
  Story story;
  for (std::uint64_t i = 0; i < 100'000; ++i) {
    story.hold(i, i);
    story.free(story.allocate(16, 1 + static_cast<std::uint32_t>(i % 1000)), 2, 3);
    story.refuse(16, 1u << 30, static_cast<std::uint32_t>(i));
  }
  EXPECT_LE(story.findings().all.size(), Findings::max_findings);
}

}  // namespace
}  // namespace tern::tools
