// The highest held memory, where it is much more than was ever live.

#include "tools/report/held_peak.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/made_trace.hpp"

namespace tern::tools {
namespace {

std::vector<HeldPeak> peaks_of(const test::MadeTrace& story) {
  return held_peaks(TraceSummary(story.trace(), "made"));
}

TEST(HeldPeaks, AddUpLivePendingAndFreeMemory) {
  test::MadeTrace story;
  const std::uint64_t first = story.allocate(1000, 1);
  story.free(first);
  story.pass(1);
  for (int i = 0; i < 3; ++i) story.free(story.allocate(500, 1), 2);
  story.free(story.allocate(100, 1), 3);
  story.allocate(400, 1);
  story.hold(3500, 1600);
  story.hold(2000, 0);
  const std::vector<HeldPeak> found = peaks_of(story);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].held, 3500u);
  EXPECT_EQ(found[0].live, 400u);
  EXPECT_EQ(found[0].pending, 1600u);
  EXPECT_EQ(found[0].free, 1500u);
  EXPECT_EQ(found[0].largest_free, 1000u);
  const TraceSummary summary(story.trace(), "made");
  EXPECT_EQ(
      found[0].text(summary),
      "gpu: at 13.0 us, pools held the most, 3.4 KiB: 400 B were live, 1.6 KiB were "
      "pending (1.5 KiB of it on stream 'stream 2'), and 1.5 KiB were free, in ranges of up to "
      "1000 B.");
  EXPECT_NE(text_report(summary).find("\n\ngpu: at 13.0 us, pools held the most, "),
            std::string::npos);
}

TEST(HeldPeaks, AreNoneIfMostOfTheMemoryWasLiveAtSomeTime) {
  test::MadeTrace story;
  story.hold(1200, 0);
  story.free(story.allocate(1000, 1));
  EXPECT_TRUE(peaks_of(story).empty());
  story.hold(1300, 0);
  EXPECT_EQ(peaks_of(story).size(), 1u);
}

TEST(HeldPeaks, AddUpThePoolsOfADevice) {
  test::MadeTrace story;
  story.hold(1000, 0);
  story.allocate(100, 1);
  story.hold(2000, 0);
  story.trace().events.back().resource = 2;
  story.hold(0, 0);
  story.hold(1500, 0);
  const std::vector<HeldPeak> found = peaks_of(story);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].held, 3500u);
  EXPECT_EQ(found[0].live, 100u);
}

}  // namespace
}  // namespace tern::tools
