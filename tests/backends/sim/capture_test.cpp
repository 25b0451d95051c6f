#include "backends/sim/capture.hpp"

#include <gtest/gtest.h>

namespace tern::sim {
namespace {

Result<void> nothing(const Submission&) { return {}; }

TEST(Capture, HasOneLanePerStream) {
  Capture capture(7);
  EXPECT_EQ(capture.origin(), 7u);
  EXPECT_EQ(capture.lane_of(7), 0u);
  EXPECT_EQ(capture.lane_of(8), std::nullopt);
  EXPECT_EQ(capture.join(8), 1u);
  EXPECT_EQ(capture.lane_of(8), 1u);
  EXPECT_EQ(capture.stream_of(1), 8u);
}

TEST(Capture, KeepsTheCallsInTheirOrder) {
  Capture capture(1);
  capture.add_work(0, {}, {}, nothing);
  const std::size_t record = capture.add_record(0, {});
  const std::size_t lane = capture.join(2);
  capture.add_wait(lane, record, {});
  const CapturedWork work = capture.take();
  ASSERT_EQ(work.calls.size(), 3u);
  EXPECT_EQ(work.calls[0].kind, CapturedCall::Kind::work);
  EXPECT_EQ(work.calls[1].kind, CapturedCall::Kind::record);
  EXPECT_EQ(work.calls[2].kind, CapturedCall::Kind::wait);
  EXPECT_EQ(work.calls[2].lane, 1u);
  EXPECT_EQ(work.lane_count, 2u);
  EXPECT_EQ(work.record_count, 1u);
}

TEST(Capture, IsJoinedOnceTheFirstStreamHasWaitedForAllWork) {
  Capture capture(1);
  EXPECT_TRUE(capture.is_joined());
  const std::size_t forked = capture.add_record(0, {});
  const std::size_t second = capture.join(2), third = capture.join(3);
  capture.add_wait(second, forked, {});
  capture.add_wait(third, forked, {});
  EXPECT_TRUE(capture.is_joined()) << "without work";
  capture.add_work(third, {}, {}, nothing);
  EXPECT_FALSE(capture.is_joined());
  // Through the second stream.
  capture.add_wait(second, capture.add_record(third, {}), {});
  capture.add_work(second, {}, {}, nothing);
  const std::size_t joined = capture.add_record(second, {});
  EXPECT_FALSE(capture.is_joined());
  capture.add_wait(0, joined, {});
  EXPECT_TRUE(capture.is_joined());
  capture.add_work(second, {}, {}, nothing);
  EXPECT_FALSE(capture.is_joined()) << "later work is not covered";
}

TEST(Capture, KeepsOnlyBlocksThatEndInIt) {
  Capture capture(1);
  capture.add_block(0, 11, {}, {}, nothing);
  capture.add_block(0, 12, {}, {}, nothing);
  EXPECT_TRUE(capture.end_block(0, 11, {}, nothing));
  EXPECT_FALSE(capture.end_block(0, 11, {}, nothing)) << "has ended";
  EXPECT_FALSE(capture.end_block(0, 10, {}, nothing)) << "began before";
  EXPECT_EQ(capture.take_block(11), std::nullopt);
  const std::vector<CapturedCall> open = capture.take_blocks();
  ASSERT_EQ(open.size(), 1u);
  EXPECT_TRUE(open[0].submit);
  const CapturedWork work = capture.take();
  ASSERT_EQ(work.calls.size(), 3u);
  EXPECT_TRUE(work.calls[0].submit);
  EXPECT_FALSE(work.calls[1].submit) << "was taken back";
  EXPECT_TRUE(work.calls[2].submit);
}

TEST(Captures, FindTheCaptureOfAStream) {
  Captures captures;
  EXPECT_TRUE(captures.empty());
  captures.begin(1);
  captures.begin(2);
  const std::shared_ptr<Capture> capture = captures.find(2);
  ASSERT_NE(capture, nullptr);
  EXPECT_EQ(captures.find(3), nullptr);
  capture->join(3);
  EXPECT_EQ(captures.find(3), capture);
  captures.end(*capture);
  EXPECT_TRUE(capture->is_over());
  EXPECT_EQ(captures.find(3), nullptr);
  EXPECT_EQ(captures.open().size(), 1u);
}

}  // namespace
}  // namespace tern::sim
