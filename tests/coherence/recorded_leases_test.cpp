// Leases in recordings: when they were open, and which ones kept copies from eviction.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/pressed.hpp"
#include "support/temporary_folder.hpp"
#include "tern/coherence/unified_buffer.hpp"
#include "tern/trace/recorder.hpp"
#include "trace/memory_trace.hpp"

namespace tern {
namespace {

using test::Pressed;
using test::pressed_bytes;
using trace::EventKind;
using trace::MemoryEvent;
using trace::MemoryTrace;

class RecordedLeases : public Pressed {
 protected:
  RecordedLeases() { trace::start(path_); }
  ~RecordedLeases() override { trace::stop(); }

  /// Stops the recording and reads it.
  [[nodiscard]] MemoryTrace recorded() const {
    trace::stop();
    return MemoryTrace::try_read(path_).value();
  }
  static std::vector<MemoryEvent> of_kind(const MemoryTrace& trace, EventKind kind) {
    std::vector<MemoryEvent> found;
    for (const MemoryEvent& one : trace.events) {
      if (one.kind == kind) found.push_back(one);
    }
    return found;
  }

 private:
  test::TemporaryFolder folder_;
  const std::string path_ = folder_ / "run.trace";
};

TEST_F(RecordedLeases, HaveABeginAndAnEnd) {
  UnifiedBuffer<int> buffer = clean("grid");
  trace::stop();
  test::TemporaryFolder folder;
  trace::start(folder / "run.trace");
  {
    const HostLease<const int> first = buffer.read_host();
    const HostLease<const int> second = buffer.read_host();
  }
  { const DeviceLease<const int> third = buffer.read_device(s); }
  trace::stop();
  const MemoryTrace trace = MemoryTrace::try_read(folder / "run.trace").value();
  const std::vector<MemoryEvent> begun = of_kind(trace, EventKind::lease_begin);
  const std::vector<MemoryEvent> ended = of_kind(trace, EventKind::lease_end);
  ASSERT_EQ(begun.size(), 3u);
  ASSERT_EQ(ended.size(), 3u);
  EXPECT_NE(begun[0].block, begun[1].block) << "two open leases have two numbers";
  EXPECT_EQ(begun[0].block + begun[1].block, ended[0].block + ended[1].block);
  EXPECT_EQ(begun[2].block, ended[2].block);
  EXPECT_EQ(begun[0].bytes, pressed_bytes);
  EXPECT_EQ(begun[0].detail, static_cast<std::uint8_t>(Access::read));
  EXPECT_EQ(begun[0].stream, 0u);
  EXPECT_EQ(begun[2].stream, s.id().value());
  EXPECT_EQ(trace.find(trace::DefinitionKind::tag, begun[0].tag)->text, "grid");
  EXPECT_NE(begun[0].site, 0u);
}

TEST_F(RecordedLeases, ThatKeepACopyFromEvictionAreNamed) {
  UnifiedBuffer<int> leased = clean("leased"), second = clean("second"), third = clean("third");
  const CallSite here = CallSite::here();
  const DeviceLease<const int> lease = leased.read_device(s);
  UnifiedBuffer<int> more = pressed("more");
  test::write_on_device(more, s, 1);
  const MemoryTrace trace = recorded();
  const std::vector<MemoryEvent> blocked = of_kind(trace, EventKind::evict_blocked);
  ASSERT_FALSE(blocked.empty());
  for (const MemoryEvent& one : blocked) {
    EXPECT_EQ(one.bytes, pressed_bytes);
    EXPECT_EQ(trace.find(trace::DefinitionKind::tag, one.tag)->text, "leased");
    EXPECT_EQ(trace.find(trace::DefinitionKind::site, one.site)->line, here.line + 1);
  }
  EXPECT_EQ(of_kind(trace, EventKind::evict).size(), 1u);
}

TEST_F(RecordedLeases, ThatWereOpenedBeforeTheRecordingMayEndInIt) {
  trace::stop();
  UnifiedBuffer<int> buffer = clean();
  HostLease<const int> lease = buffer.read_host();
  test::TemporaryFolder folder;
  trace::start(folder / "run.trace");
  lease.close();
  trace::stop();
  EXPECT_EQ(buffer.try_read_host().value().size(), test::pressed_ints);
}

}  // namespace
}  // namespace tern
