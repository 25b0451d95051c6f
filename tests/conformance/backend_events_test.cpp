// An event represents a point in a stream, for other streams, the host and timing.

#include "support/ladder.hpp"

namespace tern::test {
namespace {

class WaitsOnEvents : public Ladder {
 protected:
  void SetUp() override {
    if (!can(Capability::host_functions)) GTEST_SKIP() << "needs a gate, which is a host function";
  }
  Stream other{device};
};
TERN_CLIMB(WaitsOnEvents);

TEST_P(WaitsOnEvents, ThatWereNeverRecordedAsDoneAndWithoutOrder) {
  const Event event(device);
  EXPECT_FALSE(event.is_recorded());
  EXPECT_TRUE(event.is_done());
  EXPECT_TRUE(event.try_synchronize());
  Gate gate;
  gate.hold(stream);
  EXPECT_TRUE(other.try_wait(event));
  EXPECT_TRUE(other.try_synchronize());
}

TEST_P(WaitsOnEvents, ThatAreEmptyAsDoneButRecordsNone) {
  Event empty;
  EXPECT_TRUE(empty.is_done());
  EXPECT_TRUE(empty.try_synchronize());
  EXPECT_FALSE(empty.device_id());
  EXPECT_TRUE(stream.try_wait(empty));
  expect_refused(stream.try_record(empty), ErrorCode::invalid_argument);
}

TEST_P(WaitsOnEvents, OfAnotherStreamBeforeLaterWork) {
  const Block block(device, 64);
  Bytes out(64);
  Event event(device);
  Gate gate;
  gate.hold(stream);
  stream.fill(block.get(), 64, std::byte{1});
  stream.record(event);
  EXPECT_TRUE(event.is_recorded());
  EXPECT_EQ(event.device_id(), device.id());
  other.wait(event);
  other.copy(out.data(), block.get(), 64);
  EXPECT_FALSE(event.is_done());
  EXPECT_FALSE(other.is_idle());
  gate.open();
  other.synchronize();
  EXPECT_EQ(out, Bytes(64, std::byte{1}));
  EXPECT_TRUE(event.is_done());
}

TEST_P(WaitsOnEvents, AsTheyWereRecordedWhenTheWaitWasQueued) {
  Event event(device);
  Gate first, second;
  first.hold(stream);
  stream.record(event);
  other.wait(event);
  second.hold(stream);
  stream.record(event);
  EXPECT_FALSE(other.is_idle());
  first.open();
  other.synchronize();  // would never return if it waited for the second record
  EXPECT_FALSE(event.is_done());
  second.open();
  event.synchronize();
  EXPECT_TRUE(event.is_done());
}

TEST_P(WaitsOnEvents, ThatMoveToAnotherStream) {
  Event event(device);
  Gate gate;
  gate.hold(stream);
  stream.record(event);
  other.record(event);
  event.synchronize();
  EXPECT_TRUE(event.is_done());
  EXPECT_FALSE(stream.is_idle());
}

TEST_P(WaitsOnEvents, OfTheSameStreamWithoutBlockingItself) {
  Event event(device);
  stream.record(event);
  stream.wait(event);
  stream.synchronize();
  EXPECT_TRUE(event.is_done());
}

TEST_P(WaitsOnEvents, ThatEndBeforeTheirWaits) {
  Gate gate;
  gate.hold(stream);
  {
    Event event(device);
    stream.record(event);
    other.wait(event);
  }
  // The handle may serve again at once; the queued wait is not disturbed.
  Event next(device);
  other.record(next);
  EXPECT_FALSE(other.is_idle());
  gate.open();
  other.synchronize();
}

TEST_P(WaitsOnEvents, AsFreshOnesWhenTheyComeFromAPool) {
  Gate gate;
  gate.hold(stream);
  {
    Event used(device);
    stream.record(used);
  }
  const Event fresh(device);
  EXPECT_FALSE(fresh.is_recorded());
  EXPECT_TRUE(fresh.is_done());
}

TEST_P(WaitsOnEvents, ThatWereMoved) {
  Event event(device);
  stream.record(event);
  Event moved(std::move(event));
  EXPECT_TRUE(moved.is_recorded());
  EXPECT_EQ(event.native().value, 0u);
  EXPECT_TRUE(event.is_done());
  event = std::move(moved);
  EXPECT_TRUE(event.is_recorded());
  event.synchronize();
}

TEST_P(WaitsOnEvents, AndMeasuresTheTimeBetweenTwo) {
  if (!can(Capability::event_timing)) {
    expect_unsupported(Event::try_make_timed(device), Capability::event_timing, device);
    return;
  }
  Event start = Event::timed(device);
  Event end = Event::timed(device);
  const Event plain(device);
  const auto misused = [](const Result<std::uint64_t>& result) {
    expect_refused(result, ErrorCode::stream_misuse);
  };
  misused(end.try_elapsed_ns(start));  // not recorded
  misused(end.try_elapsed_ns(plain));
  Gate gate;
  stream.record(start);
  gate.hold(stream);
  stream.record(end);
  misused(end.try_elapsed_ns(start));  // not complete
  gate.open();
  end.synchronize();
  EXPECT_TRUE(end.try_elapsed_ns(start));
  EXPECT_EQ(start.elapsed_ns(start), 0u);

  Event later = Event::timed(device);
  stream.record(later);
  later.synchronize();
  EXPECT_GE(later.elapsed_ns(start), end.elapsed_ns(start));
}

}  // namespace
}  // namespace tern::test
