// A mark represents all work submitted so far and makes no call to the device.

#include <thread>

#include "support/ladder.hpp"
#include "support/thread.hpp"

namespace tern::test {
namespace {

class AnswersMarks : public Ladder {
 protected:
  void SetUp() override {
    if (!can(Capability::host_functions)) GTEST_SKIP() << "needs a gate, which is a host function";
  }
  Stream other{device};
};
TERN_CLIMB(AnswersMarks);

TEST_P(AnswersMarks, WithDoneOnceTheWorkBeforeThemIs) {
  Gate gate;
  gate.hold(stream);
  const Mark mark = stream.mark();
  EXPECT_FALSE(Device::is_done(mark));
  EXPECT_FALSE(Device::is_done(mark));
  gate.open();
  Device::wait(mark);
  EXPECT_TRUE(Device::is_done(mark));
}

TEST_P(AnswersMarks, WithoutWaitingForLaterWork) {
  Gate first, second;
  first.hold(stream);
  const Mark mark = stream.mark();
  EXPECT_FALSE(Device::is_done(mark));  // asked now, so that the device knows of it
  second.hold(stream);
  const Mark later = stream.mark();
  EXPECT_FALSE(Device::is_done(later));
  first.open();
  Device::wait(mark);
  EXPECT_TRUE(Device::is_done(mark));
  EXPECT_FALSE(Device::is_done(later));
}

TEST_P(AnswersMarks, ThatNameNothingWithDone) {
  EXPECT_TRUE(Device::is_done(Mark{}));
  EXPECT_TRUE(Device::try_wait(Mark{}));
  EXPECT_TRUE(stream.try_wait(Mark{}));
}

TEST_P(AnswersMarks, ForOtherStreams) {
  const Block block(device, 64);
  Bytes out(64);
  Gate gate;
  gate.hold(stream);
  stream.fill(block.get(), 64, std::byte{4});
  other.wait(stream.mark());
  other.copy(out.data(), block.get(), 64);
  EXPECT_FALSE(other.is_idle());
  gate.open();
  other.synchronize();
  EXPECT_EQ(out, Bytes(64, std::byte{4}));
}

TEST_P(AnswersMarks, OfTheSameStreamWithNothingToDo) {
  Gate gate;
  gate.hold(stream);
  stream.wait(stream.mark());
  gate.open();
  stream.synchronize();
}

TEST_P(AnswersMarks, OfAStreamThatEnded) {
  Gate gate;
  Mark mark;
  Bytes out(64);
  const Block block(device, 64);
  {
    Stream brief(device);
    gate.hold(brief);
    brief.fill(block.get(), 64, std::byte{5});
    mark = brief.mark();
  }
  EXPECT_FALSE(Device::is_done(mark));
  other.wait(mark);
  other.copy(out.data(), block.get(), 64);
  EXPECT_FALSE(other.is_idle());
  gate.open();
  Device::wait(mark);
  EXPECT_TRUE(Device::is_done(mark));
  other.synchronize();
  EXPECT_EQ(out, Bytes(64, std::byte{5}));
}

TEST_P(AnswersMarks, OfALongEndedStreamWithDoneForEver) {
  Mark mark;
  {
    Stream brief(device);
    brief.call([](void*) {}, nullptr);
    mark = brief.mark();
    brief.synchronize();
  }
  Gate gate;
  for (int i = 0; i < 10; ++i) {
    Stream next(device);  // in the slot of the ended one
    gate.hold(next);
    static_cast<void>(next.mark());
    EXPECT_TRUE(Device::is_done(mark));
    EXPECT_TRUE(other.try_wait(mark));
  }
  other.synchronize();
}

TEST_P(AnswersMarks, ThatNobodyTookWithStreamMisuse) {
  Mark forged = stream.mark();
  forged.sequence += 1000;
  for (const Result<void>& refused : {Device::try_wait(forged), other.try_wait(forged)}) {
    expect_refused(refused, ErrorCode::stream_misuse);
    EXPECT_EQ(refused.failure().number("sequence"), forged.sequence);
    EXPECT_EQ(refused.failure().number("stream"), stream.id().number());
  }
  expect_refused(Device::try_is_done(forged), ErrorCode::stream_misuse);
}

TEST_P(AnswersMarks, OfUnknownStreamsAndDevicesWithDone) {
  EXPECT_TRUE(Device::is_done({StreamId(device.id(), 4000, 12345), 1}));
  EXPECT_TRUE(Device::is_done({StreamId(DeviceId{0xFFFFFF}, 1, 1), 1}));
  EXPECT_TRUE(stream.try_wait(Mark{StreamId(DeviceId{0xFFFFFF}, 1, 1), 1}));
}

TEST_P(AnswersMarks, OfTheDefaultStream) {
  Gate gate;
  gate.hold(device.default_stream());
  const Mark mark = device.default_stream().mark();
  other.wait(mark);
  EXPECT_FALSE(Device::is_done(mark));
  EXPECT_FALSE(other.is_idle());
  gate.open();
  Device::wait(mark);
  other.synchronize();
}

TEST_P(AnswersMarks, ManyAtOnceWhileOthersWait) {
  // More marks asked about than the device keeps records of, and hosts that wait for some.
  std::vector<std::unique_ptr<Gate>> gates;
  std::vector<Mark> marks;
  std::vector<test::Thread> hosts;
  for (int i = 0; i < 10; ++i) {
    gates.push_back(std::make_unique<Gate>());
    gates.back()->hold(stream);
    marks.push_back(stream.mark());
    EXPECT_FALSE(Device::is_done(marks.back()));
    hosts.emplace_back([mark = marks.back()] {
      Device::wait(mark);
      EXPECT_TRUE(Device::is_done(mark));
    });
  }
  for (std::size_t i = 0; i < gates.size(); ++i) {
    EXPECT_FALSE(Device::is_done(marks[i]));
    gates[i]->open();
  }
  for (test::Thread& host : hosts) host.join();
  for (const Mark& mark : marks) EXPECT_TRUE(Device::is_done(mark));
}

TEST_P(AnswersMarks, FromSeveralThreadsWhileTheStreamIsBusy) {
  std::vector<test::Thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 200; ++k) {
        bool has_run = false;
        stream.call([](void* context) { *static_cast<bool*>(context) = true; }, &has_run);
        const Mark mark = stream.mark();
        if (k % 2 == 0) {
          Device::wait(mark);
        } else {
          while (!Device::is_done(mark)) std::this_thread::yield();
        }
        ASSERT_TRUE(has_run);
      }
    });
  }
  for (test::Thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace tern::test
