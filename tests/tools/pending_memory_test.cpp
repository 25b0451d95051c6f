// Pending memory: what was freed on streams that were not seen to pass the free.

#include "tools/report/pending_memory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "support/made_trace.hpp"
#include "support/temporary_folder.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/pool_resource.hpp"
#include "tern/trace/recorder.hpp"
#include "tools/report/obstacles.hpp"
#include "tools/report/trace_summary.hpp"

namespace tern::tools {
namespace {

using trace::EventKind;

class PendingTest : public testing::Test {
 protected:
  void add(EventKind kind, std::uint64_t stream, std::uint64_t sequence, std::uint64_t address = 0,
           std::uint64_t bytes = 0, std::uint32_t device = 0) {
    trace::MemoryEvent event;
    event.kind = kind;
    event.stream = stream;
    event.address = address;
    event.bytes = bytes;
    (kind == EventKind::free ? event.extra : event.block) = sequence;
    ++now_;
    if (kind == EventKind::allocate) pending_.allocate(event, now_);
    if (kind == EventKind::free) pending_.free(event, now_, device, address);
    if (kind == EventKind::done_seen) pending_.done_seen(event, now_);
  }
  [[nodiscard]] std::uint64_t bytes(std::uint32_t device = 0) const {
    std::uint64_t found = 0;
    for (const PendingMemory::Change& one : pending_.changes(now_)) {
      if (one.device == device) found = one.bytes;
    }
    return found;
  }
  /// The addresses of the blocks that were passed since the last call.
  std::vector<std::uint64_t> passed() {
    std::vector<std::uint64_t> blocks;
    for (; seen_ < pending_.passed().size(); ++seen_) {
      blocks.push_back(pending_.passed()[seen_].block);
    }
    return blocks;
  }

  PendingMemory pending_;
  std::uint64_t now_ = 0;
  std::size_t seen_ = 0;
};

TEST_F(PendingTest, EndsWhenTheStreamIsSeenToPassTheFree) {
  add(EventKind::free, 1, 5, 0x1000, 100);
  add(EventKind::free, 1, 6, 0x2000, 200);
  add(EventKind::free, 2, 6, 0x3000, 400);
  EXPECT_EQ(bytes(), 700u);
  add(EventKind::done_seen, 1, 4);
  EXPECT_EQ(bytes(), 700u);
  add(EventKind::done_seen, 1, 5);
  EXPECT_EQ(bytes(), 600u);
  add(EventKind::done_seen, 1, 0);  // everything
  EXPECT_EQ(bytes(), 400u);
  add(EventKind::done_seen, 2, 0, 0xe1);  // an event of the program may be earlier
  EXPECT_EQ(bytes(), 400u);
  add(EventKind::done_seen, 2, 9);
  EXPECT_EQ(bytes(), 0u);
}

TEST_F(PendingTest, TheNewestFreeCountsForAdjacentRangesOfOneStream) {
  add(EventKind::free, 1, 5, 0x2000, 0x1000);
  add(EventKind::free, 1, 6, 0x1000, 0x1000);  // before it
  add(EventKind::free, 1, 7, 0x3000, 0x1000);  // behind it
  add(EventKind::free, 2, 3, 0x4000, 0x1000);  // of another stream
  add(EventKind::done_seen, 1, 6);
  EXPECT_EQ(bytes(), 0x4000u);
  add(EventKind::done_seen, 2, 3);
  EXPECT_EQ(bytes(), 0x3000u);
  EXPECT_EQ(passed(), std::vector<std::uint64_t>({0x4000}));
  // A free that fills a gap joins both sides.
  add(EventKind::free, 1, 8, 0x5000, 0x1000);
  add(EventKind::free, 1, 9, 0x4000, 0x1000);
  add(EventKind::done_seen, 1, 8);
  EXPECT_EQ(bytes(), 0x5000u);
  add(EventKind::done_seen, 1, 9);
  EXPECT_EQ(bytes(), 0u);
  EXPECT_EQ(passed(), std::vector<std::uint64_t>({0x1000, 0x2000, 0x3000, 0x4000, 0x5000}));
}

TEST_F(PendingTest, EndsWhenTheMemoryIsAllocatedAgain) {
  add(EventKind::free, 1, 5, 0x1000, 0x1000);
  add(EventKind::allocate, 1, 0, 0x1800, 0x100);
  EXPECT_EQ(bytes(), 0xf00u) << "the rest stays pending";
  add(EventKind::done_seen, 1, 5);
  EXPECT_EQ(bytes(), 0u);
  // The same place is freed twice before the first free is passed.
  add(EventKind::free, 1, 6, 0x1000, 0x1000);
  add(EventKind::allocate, 1, 0, 0x1000, 0x1000);
  add(EventKind::free, 1, 8, 0x1000, 0x1000);
  add(EventKind::done_seen, 1, 7);
  EXPECT_EQ(bytes(), 0x1000u);
}

TEST_F(PendingTest, WhatTheHostFreesIsNeverPending) {
  add(EventKind::free, 0, 5, 0x1000, 100);
  add(EventKind::free, 1, 0, 0x2000, 100);
  EXPECT_EQ(bytes(), 0u);
}

TEST_F(PendingTest, DevicesAreCountedSeparately) {
  add(EventKind::free, 1, 5, 0x1000, 100, 0);
  add(EventKind::free, 2, 5, 0x2000, 200, 1);
  EXPECT_EQ(bytes(0), 100u);
  EXPECT_EQ(bytes(1), 200u);
}

TEST_F(PendingTest, ManyChangesKeepTheHighestAndTheLastValue) {
  std::uint64_t highest = 0;
  std::mt19937 random(3);
  for (std::uint64_t i = 1; i <= 20'000; ++i) {
    add(EventKind::free, 1, i, i * 0x1000, 100 + random() % 100);
    if (i % 1000 == 0) highest = std::max(highest, bytes());
    if (i > 15) add(EventKind::done_seen, 1, i - 15);
  }
  const std::vector<PendingMemory::Change> changes = pending_.changes(now_);
  EXPECT_LE(changes.size(), 8192u);
  EXPECT_GT(changes.size(), 1000u);
  std::uint64_t most = 0;
  for (std::size_t i = 0; i < changes.size(); ++i) {
    most = std::max(most, changes[i].bytes);
    EXPECT_LE(changes[i == 0 ? 0 : i - 1].time, changes[i].time);
  }
  EXPECT_GE(most, highest);
}

TEST_F(PendingTest, HostileNumbersAreHarmless) {
  std::mt19937_64 random(5);
  const auto number = [&] {
    const std::uint64_t value = random();
    return value % 3 == 0 ? value : value % 3 == 1 ? value % 8 : ~(value % 8);
  };
  for (int i = 0; i < 20'000; ++i) {
    const EventKind kinds[] = {EventKind::allocate, EventKind::free, EventKind::done_seen};
    add(kinds[random() % 3], number(), number(), number(), number(),
        static_cast<std::uint32_t>(number()));
  }
  static_cast<void>(pending_.changes(0));
  static_cast<void>(pending_.changes(~std::uint64_t{0}));
}

TEST(PendingMemoryOfASummary, IsTheSameInTheChartAndInFindings) {
  test::MadeTrace story;
  std::mt19937 random(11);
  std::vector<Moment> moments;
  // Places of 100 bytes, so that memory is freed beside other free memory and allocated again.
  std::vector<std::uint64_t> block_at(32);
  for (int i = 0; i < 2000; ++i) {
    const std::uint64_t place = random() % block_at.size();
    if (std::uint64_t& block = block_at[place]; block == 0) {
      const std::uint64_t bytes = random() % 2 == 0 ? 100 : 50;
      block = story.allocate_at(0x10000 + place * 100, bytes, 1, 0, 1 + random() % 3);
    } else {
      story.free(std::exchange(block, 0), 1 + random() % 3);
    }
    if (random() % 8 == 0) story.pass(1 + random() % 3);
    if (i % 10 == 0) {
      const std::uint64_t time = story.add(EventKind::range_end, 0).time_ns;
      moments.push_back({time, 0, 0, Moment::no_stream});
    }
  }
  const TraceSummary seen(story.trace(), "made");
  const std::vector<Obstacles> obstacles = obstacles_at(seen, moments);
  std::uint64_t most = 0;
  for (std::size_t i = 0; i < moments.size(); ++i) {
    std::uint64_t in_chart = 0, in_findings = 0;
    for (const PendingMemory::Change& one : seen.pending) {
      if (one.time < moments[i].time) in_chart = one.bytes;
    }
    for (const Obstacles::Pending& one : obstacles[i].pending) in_findings += one.bytes;
    EXPECT_EQ(in_chart, in_findings) << "at " << moments[i].time;
    most = std::max(most, in_chart);
  }
  EXPECT_GT(most, 500u);
}

TEST(PendingMemoryOfAPool, IsWhatItsStreamHasNotPassed) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "run.trace";
  trace::start(path);
  {
    const Device device = open_device("sim:0?schedule=lazy");
    PoolResource pool(device);
    const Stream stream(device);
    const Block block = pool.allocate({.bytes = 3 * mib, .stream = stream});
    stream.fill(static_cast<std::byte*>(block.address), block.bytes, std::byte{1});
    pool.deallocate(block, stream);
    stream.synchronize();
  }
  trace::stop();
  const TraceSummary seen(trace::MemoryTrace::try_read(path).value(), "run.trace");
  ASSERT_EQ(seen.pending.size(), 2u);
  EXPECT_EQ(seen.pending[0].bytes, 3 * mib);
  EXPECT_EQ(seen.pending[1].bytes, 0u);
}

TEST(PendingMemoryOfAPool, IsWhatThePoolCountsWhenItGrows) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "run.trace";
  trace::start(path);
  {
    const Device device = open_device("sim:0?schedule=lazy");
    PoolResource pool(device);
    const Stream early(device), late(device);
    std::vector<Mark> marks;
    for (std::size_t step = 0; step < 40; ++step) {
      const Block block = pool.allocate({.bytes = 4 * mib, .stream = early});
      early.fill(static_cast<std::byte*>(block.address), block.bytes, std::byte{1});
      late.wait(early.mark());
      pool.deallocate(block, late);
      // The stream passes its frees, but some are always open.
      marks.push_back(late.mark());
      if (step >= 6 && step % 3 == 0) Device::wait(marks[step - 6]);
    }
    device.synchronize();
  }
  trace::stop();
  const TraceSummary seen(trace::MemoryTrace::try_read(path).value(), "run.trace");
  ASSERT_GT(seen.holds.size(), 30u);
  for (const TraceSummary::Hold& hold : seen.holds) {
    std::uint64_t pending = 0;
    for (const PendingMemory::Change& one : seen.pending) {
      if (one.time < hold.time) pending = one.bytes;
    }
    // The pool does not count the last two blocks, which are in a cache of the stream.
    EXPECT_GE(pending, hold.pending) << "at " << hold.time;
    EXPECT_LE(pending, hold.pending + 8 * mib) << "at " << hold.time;
  }
}

}  // namespace
}  // namespace tern::tools
