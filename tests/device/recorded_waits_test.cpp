// The waits that recordings have: between streams, by marks and by events, and of the host.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/fake_backend.hpp"
#include "support/temporary_folder.hpp"
#include "tern/device/event.hpp"
#include "tern/device/stream.hpp"
#include "tern/trace/recorder.hpp"
#include "trace/memory_trace.hpp"

namespace tern {
namespace {

using trace::EventKind;
using trace::MemoryEvent;

class RecordedWaits : public testing::Test {
 protected:
  RecordedWaits() { trace::start(path_); }
  ~RecordedWaits() override { trace::stop(); }
  [[nodiscard]] std::vector<MemoryEvent> recorded(EventKind kind) const {
    trace::stop();
    std::vector<MemoryEvent> found;
    for (const MemoryEvent& one : trace::MemoryTrace::try_read(path_).value().events) {
      if (one.kind == kind) found.push_back(one);
    }
    return found;
  }

  /// Returns the name of the file that the event came from.
  [[nodiscard]] std::string site_of(const MemoryEvent& event) const {
    const trace::MemoryTrace read = trace::MemoryTrace::try_read(path_).value();
    const auto* const name = read.find(trace::DefinitionKind::site, event.site);
    return name == nullptr ? "unknown" : name->text.substr(name->text.rfind('/') + 1);
  }

  test::FakeDevice fake;
  Stream produce{fake.device}, consume{fake.device};

 private:
  test::TemporaryFolder folder_;
  const std::string path_ = folder_ / "run.trace";
};

TEST_F(RecordedWaits, BetweenStreams) {
  consume.wait(produce.mark());
  Event event(fake.device);
  consume.wait(event);  // not recorded yet, so it orders nothing
  produce.record(event);
  produce.wait(event);  // its own event
  Event moved = std::move(event);
  consume.wait(moved);
  const std::vector<MemoryEvent> waits = recorded(EventKind::stream_wait);
  ASSERT_EQ(waits.size(), 2u);
  for (const MemoryEvent& one : waits) {
    EXPECT_EQ(one.stream, consume.id().value());
    EXPECT_EQ(one.extra, produce.id().value());
    EXPECT_NE(one.site, 0u);
  }
  EXPECT_NE(waits[0].block, 0u);
  EXPECT_EQ(waits[1].block, 0u);
  EXPECT_EQ(waits[1].address, moved.native().value);
}

TEST_F(RecordedWaits, ComeAfterTheDeviceEventThatTheyNeed) {
  const Mark mark = produce.mark();
  consume.wait(mark);
  Event event(fake.device);
  produce.record(event);
  trace::stop();
  std::vector<MemoryEvent> found = recorded(EventKind::event_recorded);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].stream, produce.id().value());
  EXPECT_GE(found[0].block, mark.sequence);
  EXPECT_LE(found[0].time_ns, recorded(EventKind::stream_wait).at(0).time_ns);
  EXPECT_EQ(found[1].block, 0u);
  EXPECT_EQ(found[1].address, event.native().value);
}

TEST_F(RecordedWaits, WorkThatIsSeenCompleteIsRecordedWithoutAWait) {
  const Mark mark = produce.mark();
  ASSERT_TRUE(Device::try_is_done(mark).value());
  ASSERT_TRUE(Device::try_is_done(mark).value());  // known already
  Event event(fake.device);
  EXPECT_TRUE(event.is_done());  // not recorded yet
  produce.record(event);
  ASSERT_TRUE(event.is_done());
  ASSERT_TRUE(consume.try_is_idle().value());
  const std::vector<MemoryEvent> seen = recorded(EventKind::done_seen);
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen[0].stream, produce.id().value());
  EXPECT_EQ(seen[0].block, mark.sequence);
  EXPECT_EQ(seen[1].address, event.native().value);
  EXPECT_EQ(seen[2].stream, consume.id().value());
  EXPECT_EQ(seen[2].block, 0u);
  EXPECT_TRUE(recorded(EventKind::host_wait).empty());
}

TEST_F(RecordedWaits, AStreamSaysHowItIsOrdered) {
  const Stream blocking(fake.device, {.blocking = true});
  const std::vector<MemoryEvent> begun = recorded(EventKind::stream_begin);
  ASSERT_EQ(begun.size(), 1u) << "the others began before the recording";
  EXPECT_EQ(begun[0].detail, static_cast<std::uint8_t>(trace::StreamOrder::blocking));
}

TEST_F(RecordedWaits, TheEndOfAStreamIsRecordedAfterItsWork) {
  std::uint64_t ended = 0;
  {
    const Stream brief(fake.device);
    static_cast<void>(brief.mark());
    ended = brief.id().value();
  }
  const std::vector<MemoryEvent> ends = recorded(EventKind::stream_end);
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_EQ(ends[0].stream, ended);
  const std::vector<MemoryEvent> marks = recorded(EventKind::event_recorded);
  ASSERT_EQ(marks.size(), 1u);
  EXPECT_EQ(marks[0].stream, ended);
  EXPECT_LE(marks[0].time_ns, ends[0].time_ns);
}

TEST_F(RecordedWaits, OfTheHost) {
  Event event(fake.device);
  event.synchronize();  // not recorded yet, so it waits for nothing
  produce.record(event);
  event.synchronize();
  consume.synchronize();
  fake.device.synchronize();
  Device::wait(produce.mark());
  const std::vector<MemoryEvent> waits = recorded(EventKind::host_wait);
  ASSERT_EQ(waits.size(), 4u);
  for (const MemoryEvent& one : waits) EXPECT_EQ(site_of(one), "recorded_waits_test.cpp");
  EXPECT_EQ(waits[0].stream, produce.id().value());
  EXPECT_EQ(waits[1].stream, consume.id().value());
  EXPECT_EQ(waits[2].stream, 0u);
  EXPECT_EQ(waits[0].address, event.native().value);
}

}  // namespace
}  // namespace tern
