// What differs between two traces.

#include "tools/report/comparison.hpp"

#include <gtest/gtest.h>

#include <string>

#include "support/made_trace.hpp"

namespace tern::tools {
namespace {

using test::MadeTrace;
using trace::EventKind;

Comparison compare(const MadeTrace& before, const MadeTrace& after) {
  return {TraceSummary(before.trace(), "before"), TraceSummary(after.trace(), "after")};
}

bool has(const std::string& text, std::string_view part) { return text.find(part) != text.npos; }

std::uint64_t after_of(const Comparison& comparison, std::string_view name) {
  for (const Comparison::Figure& one : comparison.figures) {
    if (one.name == name) return one.value.after;
  }
  throw std::runtime_error("there is no such figure");
}

/// Weights of line 1, and batches of line 2 that are freed.
MadeTrace program(std::uint64_t weights, std::uint64_t batch, int steps = 3) {
  MadeTrace made;
  made.hold(weights + batch, 0);
  const std::uint64_t first = made.allocate(weights, 1, 1);
  for (int i = 0; i < steps; ++i) made.free(made.allocate(batch, 2, 2));
  made.free(first);
  return made;
}

TEST(Comparison, OfATraceWithItselfHasNoRows) {
  const Comparison same = compare(program(1000, 200), program(1000, 200));
  EXPECT_TRUE(same.tags.empty());
  EXPECT_TRUE(same.lines.empty());
  EXPECT_TRUE(same.new_leaks.empty());
  ASSERT_EQ(same.devices.size(), 1u);
  EXPECT_EQ(same.devices[0].text, "gpu: the peak of live memory is the same, 1.2 KiB.");
  EXPECT_TRUE(has(text_report(same), "Live at the peaks, by line: no difference."));
}

TEST(Comparison, SortsRowsByDifference) {
  const Comparison found = compare(program(1000, 5000), program(4000, 500));
  ASSERT_EQ(found.lines.size(), 2u);
  EXPECT_EQ(found.lines[0].site, "code.cpp:2");
  EXPECT_EQ(found.lines[0].bytes.before, 5000u);
  EXPECT_EQ(found.lines[0].bytes.after, 500u);
  EXPECT_EQ(found.lines[1].site, "code.cpp:1");
  ASSERT_EQ(found.tags.size(), 2u);
  EXPECT_EQ(found.tags[0].tag, "tag 2");
  const std::string text = text_report(found);
  EXPECT_TRUE(has(text, "-4.4 KiB")) << text;
  EXPECT_TRUE(has(text, "+2.9 KiB")) << text;
}

TEST(Comparison, NamesTheLineThatMadeThePeakGrowOrFall) {
  const Comparison more = compare(program(1024, 2048), program(1024, 4096));
  EXPECT_EQ(more.devices.at(0).text,
            "gpu: the peak of live memory grew from 3.0 KiB to 5.0 KiB (+2.0 KiB, +66.7 %), mostly "
            "'tag 2' at code.cpp:2 (+2.0 KiB).");
  // The weights grow, but they are not why the peak falls.
  const Comparison less = compare(program(1024, 8192), program(2048, 1024));
  EXPECT_TRUE(has(less.devices.at(0).text, "fell from 9.0 KiB to 3.0 KiB (-6.0 KiB, -66.7 %)"));
  EXPECT_TRUE(has(less.devices.at(0).text, "mostly 'tag 2' at code.cpp:2 (-7.0 KiB)"));
}

TEST(Comparison, ShowsThePeakOfHeldMemory) {
  MadeTrace before = program(1000, 200), after = program(1000, 200);
  after.hold(9000, 0);
  after.hold(100, 0);
  const Comparison found = compare(before, after);
  EXPECT_EQ(found.devices.at(0).held.before, 1200u);
  EXPECT_EQ(found.devices.at(0).held.after, 9000u);
}

TEST(Comparison, CountsAllocationsOfALine) {
  const Comparison found = compare(program(1000, 200, 3), program(1000, 200, 50));
  ASSERT_EQ(found.lines.size(), 1u);
  EXPECT_EQ(found.lines[0].allocations.before, 3u);
  EXPECT_EQ(found.lines[0].allocations.after, 50u);
  EXPECT_TRUE(found.lines[0].bytes.is_same());
  EXPECT_EQ(after_of(found, "allocations"), 51u);
}

TEST(Comparison, PairsLinesThatMoved) {
  MadeTrace before, after;
  before.allocate(100, 10, 1);
  before.allocate(200, 20, 1);
  after.allocate(100, 13, 1);
  after.allocate(500, 23, 1);
  const Comparison found = compare(before, after);
  ASSERT_EQ(found.lines.size(), 1u);
  EXPECT_EQ(found.lines[0].site, "code.cpp:23");
  EXPECT_EQ(found.lines[0].site_before, "code.cpp:20");
  EXPECT_EQ(found.lines[0].bytes.before, 200u);
  EXPECT_TRUE(has(text_report(found), "code.cpp:23, before code.cpp:20"));
}

TEST(Comparison, DoesNotGuessWhichLineIsNew) {
  MadeTrace before, after;
  before.allocate(100, 10, 1);
  after.allocate(100, 13, 1);
  after.allocate(500, 23, 1);
  const Comparison found = compare(before, after);
  ASSERT_EQ(found.lines.size(), 3u);
  for (const Comparison::Row& row : found.lines) EXPECT_TRUE(row.site_before.empty());
}

TEST(Comparison, ListsLeaksThatAreNewOrLarger) {
  MadeTrace before, after;
  before.allocate(100, 1);
  before.allocate(300, 2);
  after.allocate(100, 1);
  after.allocate(300, 2);
  after.allocate(300, 2);
  after.allocate(50, 3);
  const Comparison found = compare(before, after);
  ASSERT_EQ(found.new_leaks.size(), 2u);
  EXPECT_EQ(found.new_leaks[0].site, "code.cpp:2");
  EXPECT_EQ(found.new_leaks[0].bytes.before, 300u);
  EXPECT_EQ(found.new_leaks[0].bytes.after, 600u);
  EXPECT_EQ(found.new_leaks[1].site, "code.cpp:3");
  EXPECT_EQ(after_of(found, "not freed"), 750u);
}

TEST(Comparison, CountsRefusalsEvictionsWaitsAndCopies) {
  const MadeTrace before = program(1000, 200);
  MadeTrace after = program(1000, 200);
  for (int i = 0; i < 300; ++i) after.refuse(10, 10, 5);
  after.add(EventKind::evict, 77, 6);
  after.add(EventKind::budget_wait, 1, 7).extra = 555;
  trace::MemoryEvent& wait = after.add(EventKind::host_wait, 0);
  wait.stream = 3;
  wait.extra = 444;
  trace::MemoryEvent& between = after.add(EventKind::stream_wait, 0);
  between.stream = 3;
  between.extra = 4;
  const std::uint64_t block = after.allocate(64, 8);
  after.add(EventKind::copy, 64).address = after.trace().events.back().address;
  after.trace().events.back().extra = 1;
  after.free(block);
  const Comparison found = compare(before, after);
  EXPECT_EQ(after_of(found, "refused requests"), 300u) << "not only those that are shown";
  EXPECT_EQ(after_of(found, "evictions"), 1u);
  EXPECT_EQ(after_of(found, "evicted"), 77u);
  EXPECT_EQ(after_of(found, "waits for budgets"), 555u);
  EXPECT_EQ(after_of(found, "waits of the host"), 1u);
  EXPECT_EQ(after_of(found, "time of host waits"), 444u);
  EXPECT_EQ(after_of(found, "waits between streams"), 1u);
  ASSERT_EQ(found.transfers.size(), 1u);
  EXPECT_EQ(found.transfers[0].calls.after, 1u);
}

TEST(Comparison, KnowsDevicesByName) {
  MadeTrace before = program(1000, 200), after = program(1000, 200);
  for (trace::MemoryEvent& event : after.trace().events) event.device = event.resource = 9;
  after.trace().define(trace::DefinitionKind::device, 9, {"gpu", 0, 0, 0});
  EXPECT_TRUE(compare(before, after).lines.empty());
  MadeTrace other = program(1000, 200);
  for (trace::MemoryEvent& event : other.trace().events) event.device = event.resource = 9;
  other.trace().define(trace::DefinitionKind::device, 9, {"another", 0, 0, 0});
  EXPECT_EQ(compare(before, other).devices.size(), 2u);
}

TEST(Comparison, HostileTextsStayTexts) {
  MadeTrace before, after;
  after.trace().define(trace::DefinitionKind::tag, 1,
                       {"</script>@SCRIPT@@FACTS@\x1b[31m", 0, 0, 0});
  after.trace().define(trace::DefinitionKind::site, 1, {"\u202e", 1, 0, 0});
  after.allocate(100, 1, 1);
  const TraceSummary first(before.trace(), "before"), second(after.trace(), "@COMPARISON@");
  const Comparison found(first, second);
  const std::string page = page_report(found, first, second);
  EXPECT_FALSE(has(page, "</script>@SCRIPT@"));
  // The text is in the facts and in the comparison, and no marker is left or replaced in it.
  EXPECT_TRUE(has(page, "\\u003c/script>@SCRIPT@@FACTS@"));
  EXPECT_TRUE(has(page, R"("@COMPARISON@")"));
  const std::string text = text_report(found);
  EXPECT_FALSE(has(text, "\x1b"));
  EXPECT_FALSE(has(text, "\u202e"));
}

}  // namespace
}  // namespace tern::tools
