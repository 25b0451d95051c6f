// Pending memory: what was freed on streams that were not seen to pass the free.

#include "tools/report/pending_memory.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "support/temporary_folder.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/core/bytes.hpp"
#include "tern/device/stream.hpp"
#include "tern/memory/pool_resource.hpp"
#include "tern/trace/recorder.hpp"
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
    pending_.add(event, ++now_, device);
  }
  [[nodiscard]] std::uint64_t bytes(std::uint32_t device = 0) const {
    std::uint64_t found = 0;
    for (const PendingMemory::Change& one : pending_.changes(now_)) {
      if (one.device == device) found = one.bytes;
    }
    return found;
  }

  PendingMemory pending_;
  std::uint64_t now_ = 0;
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

TEST_F(PendingTest, EndsWhenTheMemoryIsAllocatedAgain) {
  add(EventKind::free, 1, 5, 0x1000, 0x1000);
  add(EventKind::allocate, 1, 0, 0x1800, 0x100);
  EXPECT_EQ(bytes(), 0u);
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

}  // namespace
}  // namespace tern::tools
