#include "tern/detail/buffer/use_record.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "support/thread.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/device/device.hpp"
#include "tern/device/stream.hpp"

namespace tern {
namespace {

/// Two streams that stand still, and a record of what they are said to do.
class UseRecordTest : public testing::Test {
 protected:
  void use(StreamRef stream, Access access) {
    const Result<UseRecord::Ticket> ticket = record.try_begin(stream, access);
    ASSERT_TRUE(ticket) << ticket.failure().text();
    record.end(*ticket, stream, stream.next_mark(), access);
  }
  std::uint64_t waits() { return sim::calls(device, "wait"); }
  /// How many waits a use on `b` queues behind one on `a`.
  std::uint64_t waits_between(Access first, Access then) {
    use(a, first);
    const std::uint64_t before = waits();
    use(b, then);
    return waits() - before;
  }

  Device device = sim::open({.policy = sim::Policy::lazy});
  Stream a{device}, b{device}, c{device};
  std::uint64_t hold_a = sim::hold(a), hold_b = sim::hold(b);
  UseRecord record;

  void TearDown() override {
    sim::resume(device, hold_a);
    sim::resume(device, hold_b);
  }
};

TEST_F(UseRecordTest, ReadersDoNotWaitForEachOther) {
  EXPECT_EQ(waits_between(Access::read, Access::read), 0u);
}
TEST_F(UseRecordTest, AReaderWaitsForTheWriter) {
  EXPECT_EQ(waits_between(Access::read_write, Access::read), 1u);
}
TEST_F(UseRecordTest, AReaderWaitsForADiscard) {
  EXPECT_EQ(waits_between(Access::discard, Access::read), 1u);
}
TEST_F(UseRecordTest, AWriterWaitsForTheReader) {
  EXPECT_EQ(waits_between(Access::read, Access::read_write), 1u);
}
TEST_F(UseRecordTest, ADiscardWaitsForTheReader) {
  EXPECT_EQ(waits_between(Access::read, Access::discard), 1u);
}
TEST_F(UseRecordTest, AWriterWaitsForTheWriter) {
  EXPECT_EQ(waits_between(Access::read_write, Access::discard), 1u);
}

TEST_F(UseRecordTest, AStreamNeverWaitsForItself) {
  for (const Access first : {Access::read, Access::read_write, Access::discard}) {
    for (const Access then : {Access::read, Access::read_write, Access::discard}) {
      use(a, first);
      use(a, then);
    }
  }
  EXPECT_EQ(waits(), 0u);
}

TEST_F(UseRecordTest, AStreamWaitsOnceForTheSameUse) {
  use(a, Access::read_write);
  use(b, Access::read);
  use(b, Access::read);
  EXPECT_EQ(waits(), 1u);
  use(b, Access::read_write);
  EXPECT_EQ(waits(), 1u) << "what it wrote behind, it has waited for before";
}

TEST_F(UseRecordTest, ReadersThatTakeTurnsWaitOnceEach) {
  use(a, Access::read_write);
  for (int round = 0; round < 3; ++round) {
    use(b, Access::read);
    use(c, Access::read);
  }
  EXPECT_EQ(waits(), 2u);
  use(a, Access::read_write);
  use(b, Access::read);
  EXPECT_EQ(waits(), 5u) << "two for the readers, one for the new write";
}

TEST_F(UseRecordTest, AReadThatBeganBeforeAWriteHasNotWaitedForIt) {
  use(c, Access::read_write);
  const Result<UseRecord::Ticket> read = record.try_begin(b, Access::read);
  ASSERT_TRUE(read);
  use(a, Access::read_write);
  record.end(*read, b, b.next_mark(), Access::read);
  EXPECT_EQ(waits(), 2u) << "both for the first write";
  use(b, Access::read);
  EXPECT_EQ(waits(), 3u);
}

TEST_F(UseRecordTest, AWriterWaitsOnceForAStreamThatReadAndWrote) {
  use(a, Access::read_write);
  use(a, Access::read);
  use(b, Access::discard);
  EXPECT_EQ(waits(), 1u);
}

TEST(MarkSet, KeepsTheLatestOfEachStream) {
  MarkSet marks;
  for (std::uint32_t round = 1; round <= 3; ++round) {
    for (std::uint32_t i = 0; i < 20; ++i) {
      ASSERT_TRUE(marks.try_add({StreamId({}, i, i + 1), i == 0 ? 10 - round : round}));
    }
  }
  ASSERT_EQ(marks.all().size(), 20u);
  EXPECT_EQ(marks.all()[0].sequence, 9u);
  EXPECT_EQ(marks.all()[19].sequence, 3u);
}

TEST_F(UseRecordTest, KeepsOneMarkPerStreamHoweverOftenItReads) {
  for (int i = 0; i < 1000; ++i) use(a, Access::read);
  EXPECT_EQ(record.size(), 1u);
  EXPECT_EQ(sim::calls(device, "record"), 0u) << "no event until somebody waits";
}

TEST_F(UseRecordTest, AWriteForgetsWhatItWaitedFor) {
  use(a, Access::read);
  use(b, Access::read);
  use(c, Access::read_write);
  EXPECT_EQ(waits(), 2u);
  std::array<UseRecord::Entry, 4> left;
  ASSERT_EQ(record.list(left), 1u);
  EXPECT_EQ(left[0].stream, c);
  EXPECT_TRUE(left[0].is_write());
}

TEST_F(UseRecordTest, AWriteKeepsWhatBeganBetweenItsBeginningAndItsEnd) {
  const Result<UseRecord::Ticket> write = record.try_begin(a, Access::read_write);
  ASSERT_TRUE(write);
  use(b, Access::read);
  record.end(*write, a, a.next_mark(), Access::read_write);
  std::array<UseRecord::Entry, 4> left;
  ASSERT_EQ(record.list(left), 2u);
  EXPECT_TRUE(left[0].stream == b || left[1].stream == b) << "the read is still under way";
}

TEST_F(UseRecordTest, ACancelledUseLeavesNothing) {
  const Result<UseRecord::Ticket> ticket = record.try_begin(a, Access::read_write);
  ASSERT_TRUE(ticket);
  record.cancel(*ticket);
  EXPECT_EQ(record.size(), 0u);
}

TEST_F(UseRecordTest, AWaitThatCannotBeQueuedLeavesTheRecordAsItWas) {
  use(a, Access::read_write);
  sim::set_faults(device, "wait#1=fail");
  const Result<UseRecord::Ticket> refused = record.try_begin(b, Access::read);
  ASSERT_FALSE(refused);
  EXPECT_EQ(record.size(), 1u);
  sim::set_faults(device, "");
  use(b, Access::read);
  EXPECT_EQ(waits(), 1u) << "it is queued when it is tried again";
}

TEST_F(UseRecordTest, HoldsMoreStreamsThanItsInlineEntries) {
  std::vector<Stream> many;
  std::vector<std::uint64_t> holds;
  for (int i = 0; i < 40; ++i) {
    holds.push_back(sim::hold(many.emplace_back(device)));
    use(many.back(), Access::read);
  }
  EXPECT_EQ(record.size(), 40u);
  use(c, Access::discard);
  EXPECT_EQ(waits(), 40u);
  EXPECT_EQ(record.size(), 1u);
  for (const std::uint64_t hold : holds) sim::resume(device, hold);
}

TEST_F(UseRecordTest, ForgetsUsesThatAreDoneBeforeItGrows) {
  for (int i = 0; i < 100; ++i) {
    Stream stream(device);
    use(stream, Access::read);
    stream.synchronize();
  }
  EXPECT_LE(record.size(), 3u);
}

TEST_F(UseRecordTest, TheHostWaitsForWritersToReadAndForAllToWrite) {
  sim::set_patience(device, 20);
  use(a, Access::read);
  EXPECT_TRUE(*record.try_is_ready(Access::read));
  EXPECT_FALSE(*record.try_is_ready(Access::read_write));
  EXPECT_TRUE(record.try_wait(Access::read));
  use(b, Access::read_write);
  EXPECT_FALSE(*record.try_is_ready(Access::read));
  sim::resume(device, hold_a);
  sim::resume(device, hold_b);
  EXPECT_TRUE(record.try_wait(Access::read_write));
  EXPECT_TRUE(*record.try_is_ready(Access::discard));
  hold_a = sim::hold(a);
  hold_b = sim::hold(b);
}

TEST_F(UseRecordTest, TheHostWaitsWhereNoStreamCan) {
  const Device host = open_device("host");
  const Stream other(host);
  use(c, Access::read_write);
  const std::uint64_t before = waits();
  use(other, Access::read);
  EXPECT_EQ(waits(), before) << "a stream of another backend cannot wait for it";
  EXPECT_TRUE(*record.try_is_ready(Access::read)) << "so the host has";
}

TEST_F(UseRecordTest, OfTwoMarksOfAStreamTheLaterOneStaysWhicheverComesLast) {
  const UseRecord::Ticket first = record.try_begin(a, Access::read).value();
  const UseRecord::Ticket second = record.try_begin(a, Access::read).value();
  const Mark earlier = a.mark(), later = a.mark();
  record.end(second, a, later, Access::read);
  record.end(first, a, earlier, Access::read);
  std::array<UseRecord::Entry, 4> left;
  ASSERT_EQ(record.list(left), 1u);
  EXPECT_EQ(left[0].mark(), later);
}

TEST_F(UseRecordTest, WhatIsStillToComeIsCoveredWhoeverMarksItsStreamMeanwhile) {
  record.end(record.try_begin(c, Access::read_write).value(), c, {}, Access::read_write);
  ASSERT_TRUE(Device::try_wait(c.mark())) << "somebody marks it, and waits";
  const std::uint64_t hold = sim::hold(c);  // the work comes now
  EXPECT_FALSE(*record.try_is_ready(Access::read));
  sim::resume(device, hold);
  EXPECT_TRUE(record.try_wait(Access::read));
  const std::uint64_t other = sim::hold(c);
  EXPECT_TRUE(*record.try_is_ready(Access::read)) << "work after that is other work";
  sim::resume(device, other);
}

TEST_F(UseRecordTest, WhatIsSettledIsNotBehindLaterWork) {
  const std::uint64_t early = sim::hold(c);
  record.end(record.try_begin(c, Access::read_write).value(), c, {}, Access::read_write);
  record.settle();
  ASSERT_TRUE(device.try_record_mark(c.id()));
  const std::uint64_t later = sim::hold(c);
  EXPECT_FALSE(*record.try_is_ready(Access::read));
  sim::resume(device, early);
  EXPECT_TRUE(record.try_wait(Access::discard));
  sim::resume(device, later);
}

TEST_F(UseRecordTest, WhatIsStillToComeIsNotForgottenUntilItsStreamHasEnded) {
  const Device eager = sim::open({});
  {
    const Stream idle(eager);
    record.end(record.try_begin(idle, Access::read).value(), idle, {}, Access::read);
    record.prune();
    EXPECT_EQ(record.size(), 1u);
    for (StreamRef stream : {StreamRef(a), StreamRef(b), StreamRef(c)}) use(stream, Access::read);
    EXPECT_EQ(record.size(), 4u) << "it grew instead";
  }
  eager.synchronize();
  record.prune();
  EXPECT_EQ(record.size(), 3u);
}

TEST_F(UseRecordTest, ForgetsWhatADeviceDidThatIsClosed) {
  {
    const Device other = sim::open({});
    const Stream stream(other);
    record.end(record.try_begin(stream, Access::read).value(), stream, {}, Access::read);
    use(stream, Access::discard);
    record.end(record.try_begin(stream, Access::read).value(), stream, {}, Access::read);
  }
  EXPECT_TRUE(*record.try_is_ready(Access::read));
  record.prune();
  EXPECT_EQ(record.size(), 0u);
}

TEST_F(UseRecordTest, PruningForgetsWhatIsDone) {
  use(c, Access::read);
  use(a, Access::read);
  c.synchronize();
  record.prune();
  std::array<UseRecord::Entry, 4> left;
  ASSERT_EQ(record.list(left), 1u);
  EXPECT_EQ(left[0].stream, a);
}

TEST_F(UseRecordTest, ForgetsALostDeviceOnceSomebodyWasTold) {
  const Device other = sim::open({});
  const Stream lost(other);
  use(lost, Access::discard);
  sim::set_faults(other, "record#1=fault");
  EXPECT_EQ(record.try_wait(Access::read).failure().code(), ErrorCode::device_lost);
  record.prune();
  EXPECT_EQ(record.try_wait(Access::read).failure().code(), ErrorCode::device_lost);
  record.forget_lost();
  EXPECT_TRUE(record.try_wait(Access::read));
}

// --- Several threads

/// Begins in another thread; true if that was over before this one's use ended.
bool begins_beside(UseRecord& record, StreamRef stream, Access access, const auto& end_own,
                   MarkSet& waits) {
  std::atomic<bool> has_begun = false;
  test::Thread other([&] {
    const Result<UseRecord::Ticket> ticket =
        record.try_begin(stream, access, waits, UseRecord::LockMode::wait);
    has_begun = true;
    if (ticket) record.cancel(*ticket);
    EXPECT_TRUE(ticket);
  });
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
  while (!has_begun && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  const bool was_beside = has_begun;
  end_own();
  other.join();
  return was_beside;
}

TEST_F(UseRecordTest, AThreadWaitsForAConflictingUseThatAnotherHasBegun) {
  constexpr Access ways[] = {Access::read, Access::read_write, Access::discard};
  for (const Access first : ways) {
    for (const Access then : ways) {
      UseRecord own;
      const UseRecord::Ticket ticket = own.try_begin(a, first).value();
      MarkSet waits;
      const bool was_beside = begins_beside(
          own, b, then, [&] { own.end(ticket, a, a.next_mark(), first); }, waits);
      const bool conflicts = is_write(first) || is_write(then);
      EXPECT_EQ(was_beside, !conflicts);
      EXPECT_EQ(waits.all().size(), conflicts ? 1u : 0u);
    }
  }
}

TEST_F(UseRecordTest, AThreadWaitsUntilAnotherHasCancelled) {
  const UseRecord::Ticket ticket = record.try_begin(a, Access::discard).value();
  MarkSet waits;
  EXPECT_FALSE(begins_beside(
      record, b, Access::read, [&] { record.cancel(ticket); }, waits));
  EXPECT_TRUE(waits.all().empty());
}

TEST_F(UseRecordTest, AThreadDoesNotWaitForItself) {
  const UseRecord::Ticket write = record.try_begin(a, Access::discard).value();
  const UseRecord::Ticket read = record.try_begin(b, Access::read).value();
  record.end(read, b, b.next_mark(), Access::read);
  record.end(write, a, a.next_mark(), Access::discard);
  EXPECT_EQ(record.size(), 2u);
}

TEST_F(UseRecordTest, AReaderMayWriteOnceTheOtherReadersHaveEnded) {
  const UseRecord::Ticket read = record.try_begin(a, Access::read).value();
  test::Thread([&] { use(b, Access::read); }).join();
  const Result<UseRecord::Ticket> write = record.try_begin(a, Access::read_write);
  ASSERT_TRUE(write) << write.failure().text();
  record.end(*write, a, a.next_mark(), Access::read_write);
  record.end(read, a, a.next_mark(), Access::read);
}

TEST_F(UseRecordTest, TheSecondReaderMayWriteOnceTheFirstHasEnded) {
  const UseRecord::Ticket first = record.try_begin(a, Access::read).value();
  std::atomic<int> step = 0;
  test::Thread second([&] {
    const Result<UseRecord::Ticket> begun = record.try_begin(b, Access::read);
    step = 1;
    const UseRecord::Ticket read = begun.value();
    while (step < 2) std::this_thread::yield();
    const Result<UseRecord::Ticket> write = record.try_begin(b, Access::read_write);
    EXPECT_TRUE(write) << write.failure().text();
    if (write) record.end(*write, b, b.next_mark(), Access::read_write);
    record.end(read, b, b.next_mark(), Access::read);
  });
  while (step < 1) std::this_thread::yield();
  record.end(first, a, a.next_mark(), Access::read);
  step = 2;
  second.join();
}

TEST_F(UseRecordTest, AReaderThatWritesWaitsForTheOtherReaders) {
  const UseRecord::Ticket other = record.try_begin(b, Access::read).value();
  std::atomic<bool> is_reading = false, has_begun = false;
  test::Thread writer([&] {
    const Result<UseRecord::Ticket> begun = record.try_begin(a, Access::read);
    is_reading = true;
    const UseRecord::Ticket read = begun.value();
    const Result<UseRecord::Ticket> write = record.try_begin(a, Access::discard);
    has_begun = true;
    EXPECT_TRUE(write) << write.failure().text();
    if (write) record.cancel(*write);
    record.cancel(read);
  });
  while (!is_reading) std::this_thread::yield();
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
  while (!has_begun && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_FALSE(has_begun);
  record.end(other, b, b.next_mark(), Access::read);
  writer.join();
  use(c, Access::discard);
}

TEST_F(UseRecordTest, OfTwoReadersThatBothWriteTheSecondIsRefusedAtOnce) {
  std::atomic<int> reading = 0, written = 0, refused = 0;
  const auto read_and_write = [&](StreamRef stream) {
    const Result<UseRecord::Ticket> begun = record.try_begin(stream, Access::read);
    ++reading;
    const UseRecord::Ticket read = begun.value();
    while (reading < 2) std::this_thread::yield();
    const Result<UseRecord::Ticket> write = record.try_begin(stream, Access::discard);
    if (write) {
      ++written;
      record.cancel(*write);
    } else {
      ++refused;
      EXPECT_EQ(write.failure().code(), ErrorCode::access_conflict);
      const std::string text(write.failure().text());
      EXPECT_NE(text.find("each would wait for the other"), std::string::npos) << text;
      EXPECT_NE(text.find("End or cancel the read"), std::string::npos) << text;
    }
    record.cancel(read);  // the way out that the sentence names: the other thread goes on
  };
  const auto begun = std::chrono::steady_clock::now();
  test::Thread other([&] { read_and_write(b); });
  read_and_write(a);
  other.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(30));
  EXPECT_EQ(written, 1);
  EXPECT_EQ(refused, 1);
  use(a, Access::discard);
}

TEST_F(UseRecordTest, MoreReadersThanAreToldApartStillKeepAWriterOut) {
  constexpr int readers = 100;
  std::atomic<int> reading = 0;
  std::atomic<bool> is_over = false;
  std::vector<test::Thread> threads;
  for (int i = 0; i < readers; ++i) {
    threads.emplace_back([&] {
      const Result<UseRecord::Ticket> begun = record.try_begin(b, Access::read);
      ++reading;
      const UseRecord::Ticket read = begun.value();
      while (!is_over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      record.end(read, b, b.next_mark(), Access::read);
    });
  }
  while (reading < readers) std::this_thread::yield();
  MarkSet waits;
  EXPECT_FALSE(
      record.try_begin(a, Access::discard, waits, UseRecord::LockMode::if_free).value().has_turn());
  is_over = true;
  for (test::Thread& thread : threads) thread.join();
  use(a, Access::discard);
}

TEST_F(UseRecordTest, WithoutATurnNobodyWaits) {
  const UseRecord::Ticket write = record.try_begin(a, Access::discard).value();
  test::Thread([&] {
    MarkSet waits;
    const UseRecord::Ticket beside =
        record.try_begin(b, Access::discard, waits, UseRecord::LockMode::none).value();
    EXPECT_FALSE(beside.has_turn());
    record.cancel(beside);
    // It says that it would have to wait, and has begun nothing.
    EXPECT_FALSE(record.try_begin(b, Access::discard, waits, UseRecord::LockMode::if_free)
                     .value()
                     .has_turn());
  }).join();
  record.end(write, a, a.next_mark(), Access::discard);
}

TEST_F(UseRecordTest, ManyOpenUsesOfAThreadAreRefusedAndEndedOnesMakeRoom) {
  std::vector<UseRecord::Ticket> open;
  for (;;) {
    const Result<UseRecord::Ticket> ticket = record.try_begin(a, Access::discard);
    if (!ticket) {
      EXPECT_EQ(ticket.failure().code(), ErrorCode::capacity);
      break;
    }
    open.push_back(*ticket);
  }
  EXPECT_EQ(open.size(), 255u);
  for (const UseRecord::Ticket& ticket : open) record.cancel(ticket);
  use(a, Access::discard);
}

// --- Pauses

class UseRecordPauseTest : public UseRecordTest {
 protected:
  Result<UseRecord::Ticket> pause() { return record.try_pause("weights", uses, CallSite::here()); }
  void expect_paused(const Failure& failure) {
    EXPECT_EQ(failure.code(), ErrorCode::access_conflict);
    EXPECT_EQ(failure.string("tag"), "weights");
  }
  MarkSet uses;
};

TEST_F(UseRecordPauseTest, CollectsAllUses) {
  use(a, Access::discard);
  use(b, Access::read);
  use(c, Access::read);
  const UseRecord::Ticket ticket = pause().value();
  EXPECT_EQ(uses.all().size(), 3u);
  record.cancel(ticket);
  EXPECT_EQ(record.size(), 3u) << "as if nothing had happened";
}

TEST_F(UseRecordPauseTest, RefusesUsesWithAndWithoutTheTurn) {
  const UseRecord::Ticket ticket = pause().value();
  EXPECT_TRUE(record.is_paused());
  const CallSite site = CallSite::here();
  for (const Access access : {Access::read, Access::discard}) {
    for (const auto turn :
         {UseRecord::LockMode::wait, UseRecord::LockMode::if_free, UseRecord::LockMode::none}) {
      const Result<UseRecord::Ticket> begun = record.try_begin(a, access, site, turn);
      ASSERT_FALSE(begun);
      expect_paused(begun.failure());
    }
    expect_paused(record.try_begin_on_host(access, site).failure());
    expect_paused(record.try_order(a, access).failure());
  }
  expect_paused(record.check_not_paused(site).failure());
  expect_paused(pause().failure());
  record.end(ticket, a, a.next_mark(), Access::discard);
  EXPECT_FALSE(record.is_paused());
  const std::uint64_t before = waits();
  use(b, Access::read);
  EXPECT_EQ(waits(), before + 1) << "behind the end of the pause";
}

TEST_F(UseRecordPauseTest, DoesNotBeginWhileAUseIsOpen) {
  const CallSite site = CallSite::here();
  for (const auto turn : {UseRecord::LockMode::wait, UseRecord::LockMode::none}) {
    const UseRecord::Ticket open = record.try_begin(a, Access::read, site, turn).value();
    expect_paused(pause().failure());
    EXPECT_FALSE(record.is_paused());
    record.cancel(open);
  }
  const UseRecord::Ticket on_host = record.try_begin_on_host(Access::read, site).value();
  expect_paused(pause().failure());
  record.cancel(on_host);
  record.cancel(pause().value());
}

TEST_F(UseRecordPauseTest, RefusesThreadsThatWaitedForTheTurn) {
  const UseRecord::Ticket open = record.try_begin(a, Access::discard).value();
  std::atomic<bool> is_about_to = false;
  test::Thread writer([&] {
    is_about_to = true;
    // The pause can also come before the use.
    const Result<UseRecord::Ticket> begun = record.try_begin(b, Access::discard);
    if (begun) {
      record.cancel(*begun);
    } else {
      expect_paused(begun.failure());
    }
  });
  while (!is_about_to) std::this_thread::yield();
  record.end(open, a, a.next_mark(), Access::discard);
  Result<UseRecord::Ticket> ticket = pause();
  while (!ticket) ticket = pause();
  writer.join();
  record.cancel(*ticket);
}

}  // namespace
}  // namespace tern
