#include "tern/device/event.hpp"

#include <gtest/gtest.h>

#include "support/fake_backend.hpp"
#include "support/forked_child.hpp"
#include "support/gate.hpp"
#include "tern/device/stream.hpp"

namespace tern {
namespace {

using test::Call;
using test::FakeDevice;
using test::Gate;

class EventTest : public testing::Test {
 protected:
  ~EventTest() override { EXPECT_EQ(fake.ledger->violations(), 0u); }

  FakeDevice fake;
  Stream stream{fake.device};
};

TEST_F(EventTest, ComesFromAPoolAndGoesBackThere) {
  for (int i = 0; i < 100; ++i) {
    const Event a(fake.device);
    const Event b(fake.device);
  }
  EXPECT_EQ(fake.ledger->count(Call::create_event), 2u);
  EXPECT_EQ(fake.ledger->live_events(), 2u);
}

TEST_F(EventTest, SharesItsPoolWithMarks) {
  { const Event event(fake.device); }
  Gate gate;
  gate.hold(stream);
  EXPECT_FALSE(Device::is_done(stream.mark()));
  EXPECT_EQ(fake.ledger->count(Call::create_event), 1u);
}

TEST_F(EventTest, ABorrowedEventIsWaitedForAndNotDestroyed) {
  Event theirs(fake.device);
  stream.record(theirs);
  const std::size_t live = fake.ledger->live_events();
  {
    Event borrowed = Event::try_borrow(fake.device, theirs.native()).value();
    EXPECT_TRUE(borrowed.is_recorded());
    stream.wait(borrowed);
    borrowed.synchronize();
    const Event moved = std::move(borrowed);
    EXPECT_TRUE(moved.is_done());
  }
  // Neither destroyed nor given out to others.
  EXPECT_EQ(fake.ledger->live_events(), live);
  EXPECT_NE(Event(fake.device).native().value, theirs.native().value);
  EXPECT_EQ(Event::try_borrow(fake.device, {}).failure().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(Event::try_borrow(Device(), theirs.native()).failure().code(),
            ErrorCode::invalid_device);
}

TEST_F(EventTest, TimedEventsHaveTheirOwnPool) {
  for (int i = 0; i < 3; ++i) const Event timed = Event::timed(fake.device);
  EXPECT_EQ(fake.ledger->count(Call::create_event), 3u);
  EXPECT_EQ(fake.ledger->live_events(), 0u);
}

TEST_F(EventTest, KeepsNoMoreThanAThousandSpareOnes) {
  {
    std::vector<Event> many;
    for (int i = 0; i < 1100; ++i) many.emplace_back(fake.device);
  }
  EXPECT_EQ(fake.ledger->live_events(), 1024u);
}

TEST_F(EventTest, MakesNoBackendCallBeforeItIsRecorded) {
  const Event event(fake.device);
  const std::size_t before = fake.ledger->total();
  EXPECT_TRUE(event.is_done());
  EXPECT_TRUE(event.try_synchronize());
  EXPECT_EQ(fake.ledger->total(), before);
}

TEST_F(EventTest, StaysUnrecordedWhenRecordingFails) {
  Event event(fake.device);
  fake.ledger->fail_next(Call::record);
  const CallSite here = CallSite::here();
  const Result<void> failed = stream.try_record(event, here);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.failure().code(), ErrorCode::driver);
  EXPECT_EQ(failed.failure().site().line, here.line);
  EXPECT_FALSE(event.is_recorded());
  EXPECT_TRUE(event.is_done());
  stream.record(event);
  EXPECT_TRUE(event.is_recorded());
}

TEST_F(EventTest, PassesFailuresOfTheBackendOn) {
  fake.ledger->fail_next(Call::create_event);
  EXPECT_EQ(Event::try_make(fake.device).failure().code(), ErrorCode::driver);
  Event event(fake.device);
  stream.record(event);
  fake.ledger->fail_next(Call::query_event);
  EXPECT_EQ(event.try_is_done().failure().code(), ErrorCode::driver);
  fake.ledger->fail_next(Call::synchronize_event);
  EXPECT_EQ(event.try_synchronize().failure().code(), ErrorCode::driver);
  EXPECT_TRUE(event.try_synchronize());
  fake.ledger->fail_next(Call::wait);
  EXPECT_EQ(stream.try_wait(event).failure().code(), ErrorCode::driver);
}

TEST_F(EventTest, TellsTheBackendOfAWaitForOneNeverRecorded) {
  const Event event(fake.device);
  EXPECT_TRUE(stream.try_wait(event));
  EXPECT_EQ(fake.ledger->count(Call::wait), 1u);
}

TEST_F(EventTest, IsRecordedByStreamsOfItsDeviceOnly) {
  const FakeDevice second({.spec = "fake:1"});
  Event foreign(second.device);
  const Result<void> refused = stream.try_record(foreign);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::device_mismatch);
  EXPECT_EQ(refused.failure().text(),
            "'fake:0' and 'fake:1' are two devices, and the operation needs one. Use a stream and "
            "memory of the same device.");
  EXPECT_EQ(fake.ledger->count(Call::record), 0u);
}

TEST_F(EventTest, IsWaitedForByStreamsOfItsBackendOnly) {
  const FakeDevice sibling({.spec = "fake:1"});
  const FakeDevice stranger({.backend = "other", .spec = "other:0"});
  Event event(fake.device);
  stream.record(event);
  EXPECT_TRUE(sibling.device.default_stream().try_wait(event));
  const Result<void> refused = stranger.device.default_stream().try_wait(event);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::device_mismatch);
  EXPECT_EQ(refused.failure().string("a"), "other:0");
  EXPECT_EQ(refused.failure().string("b"), "fake:0");
}

TEST_F(EventTest, MeasuresNothingBetweenTwoDevices) {
  const FakeDevice second({.spec = "fake:1"});
  Event here = Event::timed(fake.device), there = Event::timed(second.device);
  stream.record(here);
  second.device.default_stream().record(there);
  EXPECT_EQ(here.try_elapsed_ns(there).failure().code(), ErrorCode::device_mismatch);
  EXPECT_EQ(here.try_elapsed_ns(Event()).failure().code(), ErrorCode::stream_misuse);
}

TEST_F(EventTest, EndsQuietlyInAForkedChild) {
  Event event(fake.device);
  stream.record(event);
  const int outcome = test::in_a_forked_child([&] {
    const bool is_refused = test::is_after_fork(event.try_is_done()) &&
                            test::is_after_fork(event.try_synchronize()) &&
                            test::is_after_fork(stream.try_record(event));
    event = Event();
    return is_refused;
  });
  EXPECT_EQ(outcome, 0);
}

TEST_F(EventTest, MovesOntoAnother) {
  Event a(fake.device), b(fake.device);
  stream.record(a);
  const NativeEvent native = a.native();
  b = std::move(a);
  EXPECT_EQ(b.native().value, native.value);
  EXPECT_TRUE(b.is_recorded());
  Event& same = b;
  b = std::move(same);
  EXPECT_TRUE(b.is_recorded());
  EXPECT_FALSE(a.is_recorded());
  EXPECT_EQ(fake.ledger->live_events(), 2u);
}

}  // namespace
}  // namespace tern
