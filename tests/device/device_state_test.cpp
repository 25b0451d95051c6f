// Marks: their cost, and their answers when records run out and when streams and devices end.

#include "device/device_state.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "support/fake_backend.hpp"
#include "support/gate.hpp"
#include "support/thread.hpp"
#include "tern/backends/sim.hpp"
#include "tern/device/event.hpp"

namespace tern {
namespace {

using test::Call;
using test::FakeDevice;
using test::Gate;

class DeviceStateTest : public testing::Test {
 protected:
  ~DeviceStateTest() override {
    stream = Stream();
    other = Stream();
    fake.device = Device();
    EXPECT_TRUE(fake.ledger->has_closed());
    EXPECT_EQ(fake.ledger->live_streams(), 0u);
    EXPECT_EQ(fake.ledger->live_events(), 0u);
    EXPECT_EQ(fake.ledger->violations(), 0u);
  }

  /// Submits `count` pieces of work, each held by a gate, and records a mark after each.
  void record_held_marks(std::size_t count, std::vector<std::unique_ptr<Gate>>& gates,
                         std::vector<Mark>& marks) {
    for (std::size_t i = 0; i < count; ++i) {
      gates.push_back(std::make_unique<Gate>());
      gates.back()->hold(stream);
      marks.push_back(*stream.try_next_mark());
      EXPECT_TRUE(fake.device.try_record_mark(stream.id()));
    }
  }

  FakeDevice fake;
  Stream stream{fake.device};
  Stream other{fake.device};
};

TEST_F(DeviceStateTest, UsesOneEventAgainForMarksThatTheHostHasSeenDone) {
  for (int i = 0; i < 100; ++i) {
    other.wait(stream.mark());
    stream.synchronize();
  }
  EXPECT_EQ(fake.ledger->count(Call::create_event), 1u);
}

TEST_F(DeviceStateTest, FindsAStreamByItsNameUntilItsMarksAreDone) {
  const StreamId id = stream.id();
  EXPECT_EQ(DeviceState::find_stream(id), stream);
  EXPECT_EQ(DeviceState::find_stream({}), StreamRef());
  Gate gate;
  gate.hold(stream);
  const Mark mark = stream.mark();
  stream = Stream();
  EXPECT_EQ(DeviceState::find_stream(id).id(), id);
  EXPECT_FALSE(Device::is_done(mark));
  gate.open();
  Device::wait(mark);
  stream = Stream(fake.device);  // the place is used again
  EXPECT_EQ(DeviceState::find_stream(id), StreamRef());
}

TEST_F(DeviceStateTest, KnowsMemoryOfAnotherDeviceThatIsNotTheHosts) {
  const FakeDevice remote({.describe = [](DeviceInfo& info) {
    info.spec = "remote:0";
    info.is_host = false;
  }});
  void* const address = remote.device.allocate(MemoryKind::device, 64);
  const Result<void> checked = DeviceState::check_not_elsewhere(fake.device, address);
  EXPECT_EQ(checked.failure().code(), ErrorCode::device_mismatch);
  EXPECT_EQ(checked.failure().string("a"), fake.device.spec());
  EXPECT_EQ(checked.failure().string("b"), "remote:0");
  EXPECT_TRUE(DeviceState::check_not_elsewhere(remote.device, address));
  EXPECT_TRUE(DeviceState::check_not_elsewhere(fake.device, &remote));
  remote.ledger->fail_next(Call::pointer_info);
  EXPECT_TRUE(DeviceState::check_not_elsewhere(fake.device, address));
  remote.device.release(address);

  // Every open device is asked.
  std::vector<FakeDevice> many;
  for (int i = 0; i < 20; ++i) {
    many.emplace_back(
        test::FakeOptions{.describe = [](DeviceInfo& info) { info.is_host = false; }});
  }
  for (const FakeDevice& one : many) {
    void* const there = one.device.allocate(MemoryKind::device, 64);
    EXPECT_FALSE(DeviceState::check_not_elsewhere(fake.device, there));
    one.device.release(there);
  }
}

TEST_F(DeviceStateTest, TakesAHundredThousandMarksWithoutAskingTheBackend) {
  const std::size_t before = fake.ledger->total();
  Mark last;
  for (int i = 0; i < 100'000; ++i) last = stream.mark();
  EXPECT_EQ(last.sequence, 100'000u);
  EXPECT_EQ(fake.ledger->total(), before);
}

TEST_F(DeviceStateTest, GivesTheNextMarkInALoadAndTakesItWhenAsked) {
  const std::size_t before = fake.ledger->total();
  const Mark next = *stream.try_next_mark();
  EXPECT_EQ(next, *stream.try_next_mark());
  EXPECT_EQ(next, fake.device.next_mark(stream.id()));
  EXPECT_EQ(next.sequence, 1u);
  EXPECT_EQ(fake.ledger->total(), before);
  Gate gate;
  gate.hold(stream);
  EXPECT_FALSE(Device::is_done(next));
  EXPECT_EQ(fake.ledger->count(Call::record), 1u);
  EXPECT_EQ(stream.try_next_mark()->sequence, 2u);
  gate.open();
  Device::wait(next);
  EXPECT_TRUE(Device::is_done(next));
  EXPECT_EQ(fake.ledger->count(Call::record), 1u);
}

TEST_F(DeviceStateTest, CoversWhatWasSubmittedBetweenARecordAndTheNextMark) {
  // The record of mark 1 is done; what comes behind it is not, and the next mark must say so.
  const Mark first = stream.mark();
  Device::wait(first);
  Gate gate;
  gate.hold(stream);
  const Mark next = *stream.try_next_mark();
  EXPECT_TRUE(Device::is_done(first));
  EXPECT_FALSE(Device::is_done(next));
  other.wait(next);
  gate.open();
  Device::wait(next);
}

TEST_F(DeviceStateTest, DoesNotAnswerForMarksBeyondTheNext) {
  const Mark next = *stream.try_next_mark();
  EXPECT_FALSE(Device::try_is_done({next.stream, next.sequence + 1}));
  EXPECT_FALSE(Device::try_is_done({other.id(), 1})) << "nobody was promised one there";
}

TEST_F(DeviceStateTest, KnowsNextMarksToBeDoneOnceTheHostHasWaited) {
  const Mark one = *stream.try_next_mark();
  stream.synchronize();
  const std::size_t before = fake.ledger->total();
  EXPECT_TRUE(Device::is_done(one));
  const Mark two = *stream.try_next_mark();
  EXPECT_NE(one, two);
  EXPECT_EQ(fake.ledger->total(), before);
  fake.device.synchronize();
  const std::size_t waited = fake.ledger->total();
  EXPECT_TRUE(Device::is_done(two));
  EXPECT_EQ(fake.ledger->total(), waited);
}

TEST_F(DeviceStateTest, RecordsMarksEarlyAndWaitsForNothingBehindThem) {
  std::vector<std::unique_ptr<Gate>> gates;
  std::vector<Mark> marks;
  record_held_marks(32, gates, marks);
  EXPECT_EQ(fake.ledger->count(Call::record), 32u);
  for (std::size_t i = 0; i < marks.size(); ++i) {
    EXPECT_FALSE(Device::is_done(marks[i]));
    gates[i]->open();
    Device::wait(marks[i]);
  }
  EXPECT_EQ(fake.ledger->count(Call::record), 32u) << "they were there already";
}

TEST_F(DeviceStateTest, AFewQueriesTellHowFarAStreamHasCome) {
  std::vector<std::unique_ptr<Gate>> gates;
  std::vector<Mark> marks;
  record_held_marks(32, gates, marks);
  const auto queries = [&](std::size_t asked, bool is_done) {
    const std::size_t before = fake.ledger->count(Call::query_event);
    EXPECT_EQ(Device::is_done(marks[asked]), is_done) << asked;
    return fake.ledger->count(Call::query_event) - before;
  };
  EXPECT_EQ(queries(0, false), 1u);
  for (std::size_t i = 0; i < 20; ++i) gates[i]->open();
  while (!Device::is_done(marks[19])) std::this_thread::yield();
  EXPECT_EQ(queries(19, true), 0u);
  EXPECT_EQ(queries(20, false), 1u);
  gates.clear();
  while (!stream.is_idle()) std::this_thread::yield();
  EXPECT_EQ(queries(31, true), 2u) << "the oldest of twelve, and the newest";
}

TEST_F(DeviceStateTest, RecordsMarksEarlyHoweverManyThereAreAndThenMoreCoarsely) {
  constexpr std::size_t count = 300;
  std::vector<std::unique_ptr<Gate>> gates;
  std::vector<Mark> marks;
  record_held_marks(count, gates, marks);
  EXPECT_EQ(fake.ledger->count(Call::record), count);
  EXPECT_LE(fake.ledger->live_events(), 33u);
  // The latest wait for nothing behind them, the earliest for a little.
  for (std::size_t i = 0; i < count - 8; ++i) gates[i]->open();
  for (const std::size_t i : {std::size_t{0}, count / 2, count - 9}) Device::wait(marks[i]);
  for (std::size_t i = count - 8; i < count; ++i) {
    EXPECT_FALSE(Device::is_done(marks[i])) << i;
    gates[i]->open();
    Device::wait(marks[i]);
  }
  EXPECT_EQ(fake.ledger->count(Call::record), count) << "no others were needed";
}

TEST_F(DeviceStateTest, KeepsTheEventsThatHostsWaitForWhenItThinsOut) {
  Gate first, rest;
  first.hold(stream);
  const Mark awaited = *stream.try_next_mark();
  EXPECT_TRUE(fake.device.try_record_mark(stream.id()));
  test::Thread host([&] { Device::wait(awaited); });
  while (fake.ledger->count(Call::synchronize_event) == 0) std::this_thread::yield();
  rest.hold(stream);
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(stream.try_next_mark());
    EXPECT_TRUE(fake.device.try_record_mark(stream.id()));
  }
  first.open();
  host.join();
  EXPECT_TRUE(Device::is_done(awaited));
  EXPECT_FALSE(Device::is_done({stream.id(), awaited.sequence + 100}));
  rest.open();
  stream.synchronize();
}

TEST_F(DeviceStateTest, SealsAStreamThatEndsWithItsNextMarkOut) {
  Gate gate;
  gate.hold(stream);
  const Mark next = *stream.try_next_mark();
  const StreamId id = stream.id();
  stream = Stream();
  EXPECT_FALSE(Device::is_done(next));
  EXPECT_EQ(fake.device.next_mark(id), next) << "the last it took";
  gate.open();
  Device::wait(next);
  EXPECT_TRUE(Device::is_done(next));
}

TEST_F(DeviceStateTest, AStreamDoesNotEndWhileItIsPinned) {
  const StreamRef ref = stream;
  std::optional<StreamPin> stay(std::in_place, ref);
  EXPECT_TRUE(*stay);
  test::Thread owner([&] { stream = Stream(); });
  while (StreamPin(ref)) std::this_thread::yield();  // until it is about to end
  EXPECT_EQ(fake.ledger->live_streams(), 2u);
  other.wait(fake.device.next_mark(ref.id()));  // so it can be asked, and used
  EXPECT_TRUE(ref.is_usable());
  stay.reset();
  owner.join();
  EXPECT_EQ(fake.ledger->live_streams(), 1u);
  EXPECT_FALSE(StreamPin(ref));
  EXPECT_FALSE(StreamPin(StreamRef()));
  // Whoever has its place next is asked by another name.
  const Stream next(fake.device);
  EXPECT_TRUE(StreamPin(next));
  EXPECT_FALSE(StreamPin(ref));
}

TEST_F(DeviceStateTest, AStreamThatIsBeingSealedCannotBePinned) {
  static_cast<void>(stream.mark());
  const StreamRef ref = stream;
  bool could_stay = true;
  fake.ledger->run_after(Call::record, [&] { could_stay = bool(StreamPin(ref)); });
  stream = Stream();
  EXPECT_FALSE(could_stay);
}

TEST_F(DeviceStateTest, RecordsOneEventForAllMarksBeforeIt) {
  Gate gate;
  gate.hold(stream);
  std::vector<Mark> marks;
  for (int i = 0; i < 1000; ++i) marks.push_back(stream.mark());
  EXPECT_FALSE(Device::is_done(marks.back()));
  for (const Mark& mark : marks) {
    other.wait(mark);
    EXPECT_FALSE(Device::is_done(mark));
  }
  EXPECT_EQ(fake.ledger->count(Call::record), 1u);
  EXPECT_EQ(fake.ledger->count(Call::create_event), 1u);
  gate.open();
  Device::wait(marks.back());
  const std::size_t before = fake.ledger->total();
  for (const Mark& mark : marks) {
    EXPECT_TRUE(Device::is_done(mark));
    EXPECT_TRUE(other.try_wait(mark));
    EXPECT_TRUE(Device::try_wait(mark));
  }
  EXPECT_EQ(fake.ledger->total(), before);  // what is known to be done is not asked again
}

TEST_F(DeviceStateTest, UsesAFewEventsHoweverManyMarksItIsAskedAbout) {
  std::vector<std::unique_ptr<Gate>> gates;
  std::vector<Mark> marks;
  for (int i = 0; i < 50; ++i) {
    gates.push_back(std::make_unique<Gate>());
    gates.back()->hold(stream);
    marks.push_back(stream.mark());
    EXPECT_FALSE(Device::is_done(marks.back()));
  }
  EXPECT_LE(fake.ledger->live_events(), 5u);
  // Those that were recorded wait for nothing behind them, however often newer ones were asked for.
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_FALSE(Device::is_done(marks[i]));
    gates[i]->open();
    Device::wait(marks[i]);
    EXPECT_TRUE(Device::is_done(marks[i]));
  }
  EXPECT_FALSE(Device::is_done(marks.back()));
  gates.clear();
  for (const Mark& mark : marks) Device::wait(mark);
  EXPECT_LE(fake.ledger->live_events(), 6u);
}

TEST_F(DeviceStateTest, AWaitOfAStreamCostsTwoCallsHoweverManyRecordsThereAre) {
  Gate gate;
  gate.hold(stream);
  Mark first;
  for (int i = 0; i < 100; ++i) {
    stream.call([](void*) {}, nullptr);
    const Mark mark = stream.mark();
    if (i == 0) first = mark;
    other.wait(mark);
    other.wait(mark);  // finds the event of the first wait
  }
  EXPECT_EQ(fake.ledger->count(Call::record), 100u);
  EXPECT_EQ(fake.ledger->count(Call::wait), 200u);
  EXPECT_EQ(fake.ledger->count(Call::query_event), 0u);
  EXPECT_FALSE(Device::is_done(first));
  gate.open();
  stream.synchronize();
  other.synchronize();
  EXPECT_TRUE(Device::is_done(first));
}

TEST_F(DeviceStateTest, WaitsOfStreamsLeaveRecordsThatWereMadeEarly) {
  std::vector<std::unique_ptr<Gate>> gates;
  std::vector<Mark> marks;
  record_held_marks(12, gates, marks);
  for (int i = 0; i < 20; ++i) {
    stream.call([](void*) {}, nullptr);
    other.wait(stream.mark());
  }
  const std::size_t records = fake.ledger->count(Call::record);
  for (const Mark mark : marks) EXPECT_FALSE(Device::is_done(mark));
  EXPECT_EQ(fake.ledger->count(Call::record), records);
  for (std::size_t i = 0; i < gates.size(); ++i) {
    gates[i]->open();
    Device::wait(marks[i]);
  }
  other.synchronize();
}

// The event of a replaced record covers later work, but a query makes room for new records.
TEST_F(DeviceStateTest, ShowsProgressToAHostThatAsksBetweenWaitsOfStreams) {
  for (int i = 0; i < 200; ++i) {
    stream.call([](void*) {}, nullptr);
    const Mark mark = stream.mark();
    other.wait(mark);
    stream.synchronize();
    Gate gate;
    gate.hold(stream);
    for (int k = 0; k < 8; ++k) {
      stream.call([](void*) {}, nullptr);
      other.wait(stream.mark());
    }
    EXPECT_TRUE(Device::is_done(mark));
    gate.open();
  }
  other.synchronize();
}

TEST_F(DeviceStateTest, SealsAStreamThatEndsThoughItsRecordsAreFull) {
  std::array<Gate, 6> gates;
  Mark last;
  {
    const Stream brief(fake.device);
    for (Gate& gate : gates) {
      gate.hold(brief);
      last = brief.mark();
      EXPECT_FALSE(Device::is_done(last));
    }
  }
  EXPECT_EQ(fake.ledger->count(Call::synchronize_stream), 0u);  // it did not wait
  EXPECT_FALSE(Device::is_done(last));
  for (Gate& gate : gates) gate.open();
  Device::wait(last);
  EXPECT_TRUE(Device::is_done(last));
}

TEST_F(DeviceStateTest, DoesNotCountAMarkTakenWhileItRecords) {
  Gate first, second;
  first.hold(stream);
  const Mark early = stream.mark();
  Mark late;
  fake.ledger->run_after(Call::record, [&] {
    second.hold(stream);
    late = stream.mark();
  });
  EXPECT_FALSE(Device::is_done(early));
  first.open();
  Device::wait(early);
  EXPECT_TRUE(late);
  EXPECT_FALSE(Device::is_done(late));
  second.open();
  Device::wait(late);
}

TEST_F(DeviceStateTest, NeverMovesAnEventThatAHostWaitsFor) {
  // Each host pins one record; the fifth and sixth find no room and bring events of their own.
  constexpr std::size_t hosts = 6;
  std::array<Gate, hosts> gates;
  std::array<std::atomic<bool>, hosts> has_returned = {};
  std::vector<test::Thread> threads;
  std::vector<Mark> marks;
  for (std::size_t i = 0; i < hosts; ++i) {
    gates[i].hold(stream);
    marks.push_back(stream.mark());
    threads.emplace_back([&, i] {
      Device::wait(marks[i]);
      has_returned[i] = true;
    });
    fake.ledger->wait_for(Call::synchronize_event, i + 1);
  }
  // With the ring pinned: asking and waiting for a newer mark still works, and disturbs nobody.
  Gate last;
  last.hold(stream);
  const Mark newest = stream.mark();
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(Device::is_done(newest));
  other.wait(newest);
  for (int i = 0; i < 3; ++i) {
    stream.call([](void*) {}, nullptr);
    other.wait(stream.mark());
  }
  for (std::size_t i = 0; i < hosts; ++i) {
    EXPECT_FALSE(has_returned[i]);
    gates[i].open();
    threads[i].join();
    EXPECT_TRUE(Device::is_done(marks[i]));
  }
  EXPECT_FALSE(Device::is_done(newest));
  EXPECT_FALSE(other.is_idle());
  last.open();
  other.synchronize();
  EXPECT_TRUE(Device::is_done(newest));
  EXPECT_EQ(fake.ledger->violations(), 0u);
}

TEST_F(DeviceStateTest, DoesNotCallAMarkDoneBecauseWaitingForItFailed) {
  Gate gate;
  gate.hold(stream);
  const Mark mark = stream.mark();
  fake.ledger->fail_next(Call::synchronize_event);
  EXPECT_EQ(Device::try_wait(mark).failure().code(), ErrorCode::driver);
  EXPECT_FALSE(Device::is_done(mark));
  fake.ledger->fail_next(Call::query_event);
  EXPECT_EQ(Device::try_is_done(mark).failure().code(), ErrorCode::driver);
  gate.open();
  EXPECT_TRUE(Device::try_wait(mark));
}

TEST_F(DeviceStateTest, KeepsTheSlotOfAnEndedStreamWhileAHostWaitsForIt) {
  Gate gate;
  auto brief = std::make_unique<Stream>(fake.device);
  const std::uint32_t slot = brief->id().slot();
  gate.hold(*brief);
  const Mark mark = brief->mark();
  std::atomic<bool> has_returned = false;
  test::Thread host([&] {
    Device::wait(mark);
    has_returned = true;
  });
  fake.ledger->wait_for(Call::synchronize_event, 1);
  brief.reset();
  const Stream next(fake.device);
  EXPECT_NE(next.id().slot(), slot);
  EXPECT_FALSE(has_returned);
  EXPECT_FALSE(Device::is_done(mark));
  gate.open();
  host.join();
  EXPECT_TRUE(Device::is_done(mark));
  EXPECT_EQ(Stream(fake.device).id().slot(), slot);
}

TEST_F(DeviceStateTest, UsesSlotsAgainAndNumbersNever) {
  std::set<StreamId> ids;
  std::set<std::uint32_t> slots;
  Mark mark;
  for (int i = 0; i < 1000; ++i) {
    const Stream brief(fake.device);
    EXPECT_TRUE(Device::is_done(mark));
    mark = brief.mark();
    EXPECT_TRUE(ids.insert(brief.id()).second);
    slots.insert(brief.id().slot());
  }
  EXPECT_EQ(slots.size(), 1u);
  EXPECT_EQ(fake.ledger->live_streams(), 2u);
}

TEST_F(DeviceStateTest, HoldsFourThousandAndNinetyFiveStreams) {
  const FakeDevice full;
  std::vector<Stream> streams;
  for (int i = 0; i < 4095; ++i) streams.emplace_back(full.device);
  const Result<Stream> refused = Stream::try_make(full.device);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().code(), ErrorCode::capacity);
  EXPECT_EQ(refused.failure().number("max"), 4095u);
  EXPECT_EQ(full.ledger->live_streams(), 4095u);
  EXPECT_TRUE(streams.back().try_synchronize());

  Gate gate;
  gate.hold(streams.back());
  const Mark mark = streams.back().mark();
  streams.pop_back();  // its slot is not free before its work is done
  EXPECT_FALSE(Stream::try_make(full.device));
  gate.open();
  Device::wait(mark);
  EXPECT_TRUE(Stream::try_make(full.device));
}

TEST_F(DeviceStateTest, SealsAStreamThatEndsWhoseMarksNobodyAskedAbout) {
  Gate gate;
  Mark mark;
  {
    const Stream brief(fake.device);
    gate.hold(brief);
    mark = brief.mark();
  }
  EXPECT_EQ(fake.ledger->count(Call::record), 1u);
  EXPECT_FALSE(Device::is_done(mark));
  gate.open();
  Device::wait(mark);
}

TEST_F(DeviceStateTest, RecordsNothingForAStreamThatEndsWithoutMarks) {
  { const Stream brief(fake.device); }
  {
    const Stream brief(fake.device);
    const Mark mark = brief.mark();
    Device::wait(mark);
  }
  EXPECT_EQ(fake.ledger->count(Call::record), 1u);
}

TEST_F(DeviceStateTest, WaitsAtTheEndOfAStreamThatCannotBeSealed) {
  std::atomic<bool> has_run = false;
  Mark mark;
  {
    const Stream brief(fake.device);
    brief.call([](void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; }, &has_run);
    mark = brief.mark();
    fake.ledger->fail_next(Call::record);
  }
  EXPECT_TRUE(has_run);
  EXPECT_TRUE(Device::is_done(mark));
  EXPECT_EQ(fake.ledger->count(Call::synchronize_stream), 1u);
}

TEST_F(DeviceStateTest, AnswersMarksTruthfullyWhileTheDeviceCloses) {
  auto closing = std::make_unique<FakeDevice>();
  const std::shared_ptr<test::Ledger> ledger = closing->ledger;
  Gate gate;
  Mark mark;
  {
    const Stream brief(closing->device);
    gate.hold(brief);
    mark = brief.mark();
  }
  test::Thread closer([&] { closing.reset(); });
  ledger->wait_for(Call::synchronize, 1);
  EXPECT_FALSE(Device::is_done(mark));
  test::Thread host([&] { Device::wait(mark); });
  ledger->wait_for(Call::synchronize_event, 1);
  gate.open();
  host.join();
  EXPECT_TRUE(Device::is_done(mark));
  closer.join();
  EXPECT_TRUE(Device::is_done(mark));
  EXPECT_TRUE(Device::try_wait(mark));
  EXPECT_TRUE(stream.try_wait(mark));
  EXPECT_EQ(ledger->live_events(), 0u);
  EXPECT_EQ(ledger->violations(), 0u);
}

TEST_F(DeviceStateTest, HasNoHandleForWhoComesWhileTheDeviceCloses) {
  auto closing = std::make_unique<FakeDevice>();
  const std::shared_ptr<test::Ledger> ledger = closing->ledger;
  const DeviceId id = closing->device.id();
  Gate gate;
  {
    const Stream brief(closing->device);
    gate.hold(brief);
    static_cast<void>(brief.mark());
  }
  test::Thread closer([&] { closing.reset(); });
  ledger->wait_for(Call::synchronize, 1);
  {
    const DeviceScope scope(id);
    EXPECT_TRUE(scope);
    EXPECT_NO_THROW(EXPECT_FALSE(scope->handle().is_open()));
  }
  gate.open();
  closer.join();
  EXPECT_FALSE(DeviceScope(id));
}

TEST_F(DeviceStateTest, DoesNotEndTheDeviceUnderAHostThatWaitsForItsMark) {
  auto closing = std::make_unique<FakeDevice>();
  const std::shared_ptr<test::Ledger> ledger = closing->ledger;
  Gate gate;
  Mark mark;
  {
    const Stream brief(closing->device);
    gate.hold(brief);
    mark = brief.mark();
  }
  std::atomic<bool> is_synchronized = false, has_closed = true;
  ledger->run_after(Call::synchronize, [&] { is_synchronized = true; });
  ledger->run_after(Call::synchronize_event, [&] {
    while (!is_synchronized) std::this_thread::yield();
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();
    has_closed = ledger->has_closed();
  });
  test::Thread host([&] { Device::wait(mark); });
  ledger->wait_for(Call::synchronize_event, 1);
  test::Thread closer([&] { closing.reset(); });
  gate.open();
  host.join();
  closer.join();
  EXPECT_FALSE(has_closed);
  EXPECT_TRUE(ledger->has_closed());
}

TEST_F(DeviceStateTest, AnswersMarksWhileStreamsComeAndGoOnSeveralThreads) {
  std::vector<test::Thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 200; ++k) {
        bool has_run = false;
        Mark mark;
        {
          const Stream brief(fake.device);
          brief.call([](void* flag) { *static_cast<bool*>(flag) = true; }, &has_run);
          mark = brief.mark();
          if (k % 3 == 0) other.wait(mark);
        }
        if (k % 2 == 0) Device::wait(mark);
        while (!Device::is_done(mark)) std::this_thread::yield();
        ASSERT_TRUE(has_run);
      }
    });
  }
  for (test::Thread& thread : threads) thread.join();
  EXPECT_EQ(fake.ledger->live_streams(), 2u);
}

struct CountingCompanion final : Companion {
  explicit CountingCompanion(bool has_handles) : began_with_handles(has_handles) {}
  ~CountingCompanion() override { ++ended; }
  void on_last_handle() noexcept override {
    ++told;
    held = Device();
  }

  static inline int told = 0, ended = 0;
  const bool began_with_handles;
  Device held;
};

TEST(DeviceCompanion, IsNotifiedOfTheLastHandle) {
  CountingCompanion::told = CountingCompanion::ended = 0;
  FakeDevice fake;
  DeviceState& state = *DeviceState::of(fake.device);
  EXPECT_EQ(state.companion(), nullptr);
  Companion& made = state.make_companion<CountingCompanion>();
  EXPECT_EQ(state.companion(), &made);
  EXPECT_EQ(&state.make_companion<CountingCompanion>(), &made);
  auto& companion = static_cast<CountingCompanion&>(made);
  EXPECT_TRUE(companion.began_with_handles);
  companion.held = state.inner_handle();
  EXPECT_EQ(companion.held, fake.device);

  Device copy = fake.device;
  Device from_stream = fake.device.default_stream().device();
  fake.device = Device();
  copy = Device();
  EXPECT_EQ(CountingCompanion::told, 0);
  from_stream = Device();
  EXPECT_EQ(CountingCompanion::told, 1);
  EXPECT_EQ(CountingCompanion::ended, 1);
  EXPECT_TRUE(fake.ledger->has_closed());
}

TEST(DeviceCompanion, DetectsThatItWasCreatedTooLate) {
  CountingCompanion::told = CountingCompanion::ended = 0;
  FakeDevice fake;
  Device inner = DeviceState::of(fake.device)->inner_handle();
  fake.device = Device();
  DeviceState& state = *DeviceState::of(inner);
  EXPECT_FALSE(static_cast<CountingCompanion&>(state.make_companion<CountingCompanion>())
                   .began_with_handles);
  // There is no other kind of handle any more, and streams still have their device.
  EXPECT_EQ(inner.default_stream().device(), inner);
  inner = Device();
  EXPECT_EQ(CountingCompanion::told, 0);
  EXPECT_EQ(CountingCompanion::ended, 1);
  EXPECT_TRUE(fake.ledger->has_closed());
}

TEST(DeviceState, AStreamThatEndsWhileNothingAnswersIsNotDone) {
  const Device device = sim::open({.policy = sim::Policy::lazy});
  auto* const memory = static_cast<std::byte*>(device.allocate(MemoryKind::pinned, 64));
  Mark first, second;
  {
    const Stream a(device), b(device);
    a.fill(memory, 32, std::byte{7});
    b.fill(memory + 32, 32, std::byte{8});
    first = a.next_mark();
    second = b.next_mark();
    // No event for a record of the last mark, and no wait.
    sim::set_faults(device, "stream#1+=fail, sync#1+=fail");
  }
  EXPECT_FALSE(Device::try_is_done(first));
  EXPECT_FALSE(Device::try_wait(first));
  sim::set_faults(device, "");
  const Stream behind(device);  // in another slot
  EXPECT_EQ(Device::try_is_done(first).value(), true);
  EXPECT_EQ(memory[0], std::byte{7});
  behind.wait(second);
  behind.copy(memory, memory + 32, 32);
  behind.synchronize();
  EXPECT_EQ(memory[0], std::byte{8});
  EXPECT_TRUE(sim::findings(device).empty());
  device.release(memory);
}

TEST(LostDevice, WhatAStreamThatEndsThereLeftUndoneIsNotDone) {
  const Device device = sim::open({.policy = sim::Policy::lazy});
  Stream brief(device);
  brief.call([](void*) {}, nullptr);
  const Mark mark = brief.next_mark();
  sim::set_faults(device, "info#1=lost");
  EXPECT_FALSE(device.try_memory());
  brief = Stream();
  const Result<void> waited = Device::try_wait(mark);
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.failure().code(), ErrorCode::device_lost);
  const Result<bool> done = Device::try_is_done(mark);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.failure().code(), ErrorCode::device_lost);
}

}  // namespace
}  // namespace tern
