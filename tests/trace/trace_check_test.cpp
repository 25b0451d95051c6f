#include "tern/trace/trace_check.hpp"

#include <gtest/gtest.h>

#include <ctime>

#include "support/checked_program.hpp"
#include "support/sample_traces.hpp"
#include "trace/order_checker.hpp"

namespace tern::test {
namespace {

struct Checked {
  CheckSummary summary;
  std::vector<std::string> findings;
};

Checked check_all(std::span<const std::byte> bytes, const CheckBudget& budget = {}) {
  Result<TraceReader> reader = TraceReader::try_read_bytes(bytes);
  Checked checked;
  checked.summary = check_trace(
      *reader, [&](const Finding& finding) { checked.findings.push_back(finding.text()); }, budget);
  return checked;
}

TEST(TraceCheck, FindsWhatTheLiveCheckerFound) {
  std::size_t found = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const RandomTrace trace(seed, 300);
    for (const bool refuses : {false, true}) {
      OrderChecker live;
      live.set_context("live  seed 0x1", "again");
      TraceWriter writer = TraceWriter::to_memory({"live  seed 0x1", "again"});
      std::vector<std::string> findings;
      for (TraceRecord record : trace.records()) {
        const Found finding = live.check(
            record, refuses ? OrderChecker::OnFinding::leave_out : OrderChecker::OnFinding::apply);
        if (finding) findings.push_back(finding->text());
        record.was_refused = refuses && finding;
        writer.write(record);
      }
      EXPECT_TRUE(writer.close());
      const Checked checked = check_all(writer.bytes());
      EXPECT_EQ(checked.findings, findings) << "seed " << seed;
      EXPECT_EQ(checked.summary.findings, findings.size());
      found += findings.size();
    }
  }
  EXPECT_GT(found, 1000u);
}

TEST(TraceCheck, SumsUpWhatItSaw) {
  const Checked checked = check_all(full_trace());
  EXPECT_EQ(checked.summary.records, 13u);
  EXPECT_EQ(checked.summary.actors, 3u);
  EXPECT_EQ(checked.summary.gaps, 1u);
  EXPECT_EQ(checked.summary.lost, 1200u);
  EXPECT_TRUE(checked.summary.is_complete);
  EXPECT_FALSE(checked.summary.failure);
}

TEST(TraceCheck, SaysWhatEndedEarly) {
  TraceBytes bytes = trace_of(RandomTrace(5, 1500).records());
  bytes.pop_back();
  const Checked cut = check_all(bytes);
  EXPECT_FALSE(cut.summary.is_complete);
  EXPECT_FALSE(cut.summary.failure);
  EXPECT_EQ(cut.summary.records, 1500u) << "only the end is missing";
  EXPECT_FALSE(cut.findings.empty());
  bytes[bytes.size() * 3 / 4] ^= std::byte{1};
  const Checked damaged = check_all(bytes);
  ASSERT_TRUE(damaged.summary.failure);
  EXPECT_EQ(damaged.summary.failure->code(), ErrorCode::bad_format);
  EXPECT_GT(damaged.summary.records, 0u);
}

TEST(TraceCheck, ListsLeaksAtAShutdown) {
  std::vector<Touch> births;
  for (std::uint64_t i = 0; i < 3; ++i) births.push_back({TouchKind::allocate, device(i * 64, 64)});
  std::vector<TraceRecord> records;
  for (const Touch& birth : births) {
    records.push_back({.operation = OperationKind::allocate, .actor = 1, .touches = {&birth, 1}});
  }
  EXPECT_EQ(check_all(trace_of(records)).summary.findings, 0u) << "it may still be going on";
  records.push_back({.kind = RecordKind::shutdown});
  EXPECT_EQ(check_all(trace_of(records)).summary.findings, 3u);
}

TEST(TraceCheck, ReportsItsProgress) {
  const std::vector<TraceRecord> records(200'000);
  const TraceBytes bytes = trace_of(records);
  Result<TraceReader> reader = TraceReader::try_read_bytes(bytes);
  std::vector<std::uint64_t> seen;
  (void)check_trace(
      *reader, [](const Finding&) {}, {},
      [&](std::uint64_t, std::uint64_t count) { seen.push_back(count); });
  EXPECT_EQ(seen, (std::vector<std::uint64_t>{65'536, 131'072, 196'608}));
}

// --- the budget ---------------------------------------------------------------------------------

/// Every actor there can be learns from every other: each record keeps a clock of 32 KiB.
std::vector<TraceRecord> clock_bomb(std::size_t size) {
  std::vector<TraceRecord> records;
  for (ActorId id = 1; id < max_actors; ++id) {
    records.push_back({.kind = RecordKind::record_event, .actor = id, .event = id});
  }
  for (ActorId id = 1; records.size() < size; id = id % (max_actors - 1) + 1) {
    records.push_back({.kind = RecordKind::wait_event, .actor = 1, .event = id});
    records.push_back({.kind = RecordKind::record_event, .actor = id, .event = id});
    records.push_back({.kind = RecordKind::record_event, .actor = 1, .event = 1'000'000 + id});
  }
  return records;
}

TEST(TraceCheck, RefusesATraceThatIsMadeToKeepClocks) {
  const TraceBytes bytes = trace_of(clock_bomb(50'000));
  EXPECT_LT(bytes.size(), 1u << 20);
  const Checked checked = check_all(bytes);
  ASSERT_TRUE(checked.summary.failure);
  EXPECT_EQ(checked.summary.failure->code(), ErrorCode::capacity);
  EXPECT_NE(checked.summary.failure->text().find("bytes of history"), std::string::npos)
      << checked.summary.failure->text();
  EXPECT_LT(*checked.summary.failure->number("value"), 200'000'000u);
  EXPECT_FALSE(checked.summary.is_complete);
}

TEST(TraceCheck, RefusesATraceThatIsMadeToTakeLong) {
  // Thousands of intervals, and then everything is read again and again.
  std::vector<Touch> touches;
  for (std::uint64_t i = 0; i < 4000; ++i) touches.push_back({TouchKind::write, {0, i * 2, 1}});
  touches.push_back({TouchKind::read, {0, 0, 8000}});
  std::vector<TraceRecord> records;
  for (const Touch& touch : touches) records.push_back({.actor = 1, .touches = {&touch, 1}});
  for (int i = 0; i < 4000; ++i) {
    records.push_back({.actor = 1, .touches = {&touches.back(), 1}});
  }
  const Checked checked = check_all(trace_of(records), {1 << 20, 256, 1 << 30, 64});
  ASSERT_TRUE(checked.summary.failure);
  EXPECT_NE(checked.summary.failure->text().find(" steps after "), std::string::npos)
      << checked.summary.failure->text();
}

TEST(TraceCheck, RefusesATraceThatIsMadeToSayMuch) {
  // Each record collides with the one before at a line of its own, and every name is long.
  const std::string name(4000, 'x');
  const Touch touch = {TouchKind::write, {0, 0, 64}};
  std::vector<TraceRecord> records;
  for (ActorId id = 1; id <= 2; ++id) {
    records.push_back({.kind = RecordKind::actor_begins, .actor = id, .name = name});
  }
  for (std::uint32_t line = 1; line <= 4000; ++line) {
    records.push_back({.actor = 1 + line % 2,
                       .touches = {&touch, 1},
                       .site = {name.c_str(), name.c_str(), line}});
  }
  const TraceBytes bytes = trace_of(records);
  const Checked checked = check_all(bytes, {1 << 20, 4096, 1 << 30, 64});
  ASSERT_TRUE(checked.summary.failure);
  EXPECT_EQ(checked.summary.failure->code(), ErrorCode::capacity);
  std::size_t said = 0;
  for (const std::string& finding : checked.findings) said += finding.size();
  EXPECT_LT(said, 80 * bytes.size() + (1 << 20));
}

TEST(TraceCheck, TakesNoLongerForMoreSpaces) {
  // Every record in a memory space of its own: what all of them cost must not be summed up again
  // and again.
  std::vector<Touch> touches;
  for (std::uint32_t i = 0; i < 200'000; ++i) touches.push_back({TouchKind::write, {i, 0, 1}});
  std::vector<TraceRecord> records;
  for (const Touch& touch : touches) records.push_back({.actor = 1, .touches = {&touch, 1}});
  const TraceBytes bytes = trace_of(records);
  const auto seconds = [&] {
    const std::clock_t begin = std::clock();
    (void)check_all(bytes);
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  }();
  EXPECT_LT(seconds, 10);
}

TEST(TraceCheck, CountsConcurrentReadsAsHistory) {
  std::vector<Touch> touches;
  for (std::uint64_t i = 0; i < 3000; ++i) touches.push_back({TouchKind::write, {0, i * 2, 1}});
  touches.push_back({TouchKind::read, {0, 0, 6000}});
  std::vector<TraceRecord> records;
  for (const Touch& touch : touches) {
    records.push_back({.kind = RecordKind::host_access, .touches = {&touch, 1}});
  }
  for (ActorId id = 2; id < 1000; ++id) {
    records.push_back({.actor = id, .touches = {&touches.back(), 1}});
  }
  const Checked checked = check_all(trace_of(records), {1ull << 40, 4096, 16 << 20, 64});
  ASSERT_TRUE(checked.summary.failure);
  EXPECT_NE(checked.summary.failure->text().find("bytes of history"), std::string::npos);
  EXPECT_LT(*checked.summary.failure->number("value"), 20'000'000u) << "and soon";
}

TEST(TraceCheck, LeavesHonestTracesRoom) {
  for (const std::size_t size : {std::size_t{1000}, std::size_t{50'000}}) {
    const TraceBytes bytes = trace_of(RandomTrace(9, size).records());
    const Checked checked = check_all(bytes, {0, 4096, 0, 128});
    EXPECT_FALSE(checked.summary.failure) << checked.summary.failure->text();
  }
  const TraceBytes bomb = trace_of(clock_bomb(6000));
  EXPECT_FALSE(check_all(bomb, CheckBudget::unlimited()).summary.failure);
}

}  // namespace
}  // namespace tern::test
