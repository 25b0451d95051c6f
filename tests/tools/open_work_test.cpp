// When a program saw that waits of its streams and host functions were over.

#include "tools/report/open_work.hpp"

#include <gtest/gtest.h>

#include <cstdint>

namespace tern::tools {
namespace {

using trace::EventKind;

class OpenWorkTest : public testing::Test {
 protected:
  static constexpr std::uint64_t never = OpenWork::never;

  static trace::MemoryEvent event(EventKind kind, std::uint64_t stream, std::uint64_t sequence,
                                  std::uint64_t extra = 0, std::uint64_t address = 0) {
    trace::MemoryEvent made;
    made.kind = kind;
    made.stream = stream;
    made.block = sequence;
    made.extra = extra;
    made.address = address;
    return made;
  }
  std::size_t call(std::uint64_t stream) {
    return work_.add(event(EventKind::host_call, stream, 0));
  }
  std::size_t wait(std::uint64_t stream, std::uint64_t other, std::uint64_t sequence,
                   std::uint64_t address = 0) {
    return work_.add(event(EventKind::stream_wait, stream, sequence, other, address));
  }
  void record(std::uint64_t stream, std::uint64_t sequence, std::uint64_t address = 0) {
    work_.event_recorded(event(EventKind::event_recorded, stream, sequence, 0, address));
  }
  void see(std::uint64_t stream, std::uint64_t sequence, std::uint64_t time) {
    work_.done_seen(event(EventKind::done_seen, stream, sequence), time);
  }

  OpenWork work_;
};

TEST_F(OpenWorkTest, AHostFunctionIsOverWhenItsStreamHasPassedALaterMark) {
  record(1, 5);
  const std::size_t first = call(1), second = call(2);
  see(1, 5, 100);
  EXPECT_EQ(work_.over(first), never) << "the mark was before the function";
  see(2, 0, 200);  // all work of the stream
  see(1, 6, 300);
  see(1, 7, 400);
  EXPECT_EQ(work_.over(first), 300u);
  EXPECT_EQ(work_.over(second), 200u);
}

TEST_F(OpenWorkTest, AWaitIsOverWhenTheOtherStreamOrItsOwnHasPassedIt) {
  const std::size_t first = wait(1, 2, 7), second = wait(1, 3, 7);
  see(2, 6, 100);
  EXPECT_EQ(work_.over(first), never);
  see(2, 7, 200);
  EXPECT_EQ(work_.over(first), 200u);
  see(1, 1, 300);
  EXPECT_EQ(work_.over(first), 200u);
  EXPECT_EQ(work_.over(second), 300u);
}

TEST_F(OpenWorkTest, AnEventOfTheProgramIsCoveredByTheNextMark) {
  record(2, 4);
  record(2, 0, 0xe1);  // an event of the program
  record(2, 9);
  const std::size_t known = wait(1, 2, 0, 0xe1), unknown = wait(1, 2, 0, 0xe2);
  see(2, 5, 100);
  EXPECT_EQ(work_.over(known), 100u);
  EXPECT_EQ(work_.over(unknown), never);
  work_.done_seen(event(EventKind::done_seen, 2, 0, 0, 0xe2), 200);
  EXPECT_EQ(work_.over(unknown), never) << "what the event covers is not known";
  see(2, 10, 300);
  EXPECT_EQ(work_.over(unknown), 300u);
}

}  // namespace
}  // namespace tern::tools
