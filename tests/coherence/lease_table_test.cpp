#include "coherence/lease_table.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <vector>

#include "core/thread_number.hpp"
#include "support/thread.hpp"

namespace tern::test {
namespace {

constexpr CallSite site{"file.cpp", "f", 1};

LeaseTable::Request read(ByteRange range) { return {.range = range, .access = Access::read}; }
LeaseTable::Request write(ByteRange range) {
  return {.range = range, .access = Access::read_write};
}

TEST(LeaseTable, ReusesTheNumberOfAReleasedLease) {
  LeaseTable table;
  EXPECT_TRUE(table.is_empty());
  const std::uint32_t first = table.open(read({0, 10}), site);
  const std::uint32_t second = table.open(read({0, 10}), site);
  EXPECT_NE(first, second);
  EXPECT_EQ(table.count(), 2u);
  EXPECT_FALSE(table.has_free_slot());
  table.release(first);
  ASSERT_TRUE(table.has_free_slot());
  EXPECT_EQ(table.open_free(write({20, 30}), 7, site), first);
  EXPECT_EQ(table[first].thread, 7u);
  EXPECT_EQ(table[first].range, (ByteRange{20, 30}));
  EXPECT_EQ(table.number_of(table[first]), first);
  table.release(first);
  table.release(second);
  EXPECT_TRUE(table.is_empty());
}

TEST(LeaseTable, WritesConflictWithEverythingAndReadsWithWrites) {
  LeaseTable table;
  const std::uint32_t reader = table.open(read({0, 10}), site);
  EXPECT_EQ(table.conflict({0, 10}, Access::read), nullptr);
  EXPECT_EQ(table.conflict({9, 20}, Access::read_write), &table[reader]);
  EXPECT_EQ(table.conflict({9, 20}, Access::discard), &table[reader]);
  EXPECT_EQ(table.conflict({10, 20}, Access::discard), nullptr);
  const std::uint32_t writer = table.open(write({50, 60}), site);
  EXPECT_EQ(table.conflict({55, 56}, Access::read), &table[writer]);
  EXPECT_EQ(table.conflict_with_thread(this_thread(), {55, 56}, Access::read), &table[writer]);
  EXPECT_EQ(table.conflict_with_thread(this_thread() + 1, {55, 56}, Access::read), nullptr);
  table.release(writer);
  EXPECT_EQ(table.conflict({55, 56}, Access::read), nullptr);
}

TEST(LeaseTable, AnUntrackedWriterLetsReadersIn) {
  LeaseTable table;
  const std::uint32_t slot = table.open(write({0, 10}), site);
  table.set_untracked_writer(table[slot]);
  EXPECT_TRUE(table.has_untracked_writers());
  EXPECT_EQ(table.conflict({0, 10}, Access::read), nullptr);
  EXPECT_EQ(table.conflict({0, 10}, Access::read_write), &table[slot]);
  table.clear_untracked_writer(table[slot]);
  table.clear_untracked_writer(table[slot]);  // again
  EXPECT_FALSE(table.has_untracked_writers());
  table.set_untracked_writer(table[slot]);
  table.release(slot);
  EXPECT_FALSE(table.has_untracked_writers());
}

TEST(LeaseTable, VisitsOpenLeasesOnly) {
  LeaseTable table;
  const std::uint32_t a = table.open(read({0, 1}), site);
  const std::uint32_t b = table.open(read({1, 2}), site);
  const std::uint32_t c = table.open(read({2, 3}), site);
  table.release(b);
  std::vector<std::size_t> begins;
  for (const LeaseTable::Slot& slot : table.all()) begins.push_back(slot.range.begin);
  EXPECT_EQ(begins, (std::vector<std::size_t>{0, 2}));
  const auto any = [](const LeaseTable::Slot&) { return true; };
  EXPECT_EQ(table.find_other(a, any), &table[c]);
  table.release(c);
  EXPECT_EQ(table.find_other(a, any), nullptr);
}

TEST(LeaseTable, AWaitEndsWithARelease) {
  LeaseTable table;
  SpinLock mutex;
  ReleaseSignal signal;
  const std::uint32_t slot = table.open(write({0, 10}), site);
  Thread waiter([&] {
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(table.wait(mutex, signal, {}));
    EXPECT_EQ(table.conflict({0, 10}, Access::read), nullptr);
  });
  for (bool is_waiting = false; !is_waiting;) {
    const std::lock_guard lock(mutex);
    is_waiting = table.has_waiters();
  }
  {
    const std::lock_guard lock(mutex);
    table.release(slot);
    table.note_release();
  }
  signal.wake();
  waiter.join();
  EXPECT_FALSE(table.has_waiters());
}

TEST(LeaseTable, AWaitEndsAtItsDeadline) {
  LeaseTable table;
  SpinLock mutex;
  ReleaseSignal signal;
  const std::lock_guard lock(mutex);
  EXPECT_FALSE(table.wait(mutex, signal, std::chrono::steady_clock::time_point()));
  EXPECT_FALSE(table.has_waiters());
}

}  // namespace
}  // namespace tern::test
