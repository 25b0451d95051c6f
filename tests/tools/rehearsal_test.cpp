#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <string>
#include <vector>

#include "support/made_recording.hpp"
#include "tern/core/bytes.hpp"
#include "tern/core/error.hpp"
#include "tools/rehearse/child_program.hpp"
#include "tools/rehearse/rehearsal_report.hpp"

namespace tern::tools {
namespace {

TEST(ChildProgram, HasSimulatedDevicesAndRecords) {
  setenv("TERN_MEMORY", "guard", 1);
  setenv("TERN_REHEARSE", "sim", 1);
  const auto has = [](const ChildOptions& options, const char* entry) {
    return std::ranges::count(environment_of(options), std::string(entry)) == 1;
  };
  ChildOptions options = {
      .arguments = {"true"}, .rehearsal = "sim?memory=1GiB", .trace = "/tmp/x.trace"};
  EXPECT_TRUE(has(options, "TERN_REHEARSE=sim?memory=1GiB"));
  EXPECT_FALSE(has(options, "TERN_REHEARSE=sim"));
  EXPECT_TRUE(has(options, "TERN_TRACE=/tmp/x.trace"));
  // A guard would miss the bytes that it has written.
  EXPECT_FALSE(has(options, "TERN_MEMORY=guard"));
  options.keeps_contents = true;
  EXPECT_TRUE(has(options, "TERN_MEMORY=guard"));
  unsetenv("TERN_MEMORY");
  unsetenv("TERN_REHEARSE");
}

TEST(ChildProgram, SaysHowItEnded) {
  const auto run = [](const char* script) {
    return try_run_child({.arguments = {"sh", "-c", script}, .rehearsal = "sim", .trace = "x"})
        .value();
  };
  EXPECT_TRUE(run("exit 0").is_success());
  EXPECT_EQ(run("exit 3").text(), "exited with status 3");
  EXPECT_EQ(run("test \"$TERN_REHEARSE\" = sim").text(), "exited with status 0");
  const ChildEnd killed = run("kill -TERM $$");
  EXPECT_FALSE(killed.is_success());
  EXPECT_EQ(killed.text(), "was killed by signal 15 (Terminated)");
  const Result<ChildEnd> none =
      try_run_child({.arguments = {"/no/such/program"}, .rehearsal = "sim", .trace = "x"});
  ASSERT_FALSE(none);
  EXPECT_EQ(none.failure().code(), ErrorCode::file);
}

TEST(RehearsalReportTest, NamesTheRequestThatIsRefused) {
  test::MadeRecording made;
  made.trace.define(trace::DefinitionKind::tag, 5, {"weights", 0, 0, 0});
  made.trace.define(trace::DefinitionKind::site, 9, {"model.cpp", 41, 0, 0});
  made.allocate(1, 100 * mib);
  trace::MemoryEvent& event = made.allocate(2, 50 * mib);
  event.tag = 5;
  event.site = 9;
  const RecordedAllocations recorded = try_allocations_of(made.trace).value();
  const SizeTrial trial = try_device_size(recorded.trace, 128 * mib);
  const RefusedRequest refused = refused_request(made.trace, recorded, trial);
  EXPECT_EQ(refused.device, "sim:0");
  EXPECT_EQ(refused.tag, "weights");
  EXPECT_EQ(refused.site, "model.cpp:41");
  EXPECT_EQ(refused.bytes, 50 * mib);
  EXPECT_EQ(refused.live_bytes, 100 * mib);
}

TEST(RehearsalReportTest, CountsRefusalsOfResourcesAndOfBudgets) {
  test::MadeRecording made;
  made.allocate(1, 700);
  made.allocate(2, 300);
  made.free(2, 300);
  made.add(trace::EventKind::budget_refuse).bytes = 9;
  trace::MemoryEvent& refused = made.add(trace::EventKind::refuse);
  refused.bytes = 5000;
  refused.extra = 4096;
  refused.detail = 255;
  made.add(trace::EventKind::refuse).bytes = 6000;
  const RecordedRefusals refusals = refusals_of(made.trace);
  EXPECT_EQ(refusals.by_resources, 2u);
  EXPECT_EQ(refusals.by_budgets, 1u);
  ASSERT_TRUE(refusals.first);
  EXPECT_EQ(refusals.first->bytes, 5000u);
  EXPECT_EQ(refusals.first->live_bytes, 700u);
  EXPECT_EQ(refusals.first->held_bytes, 4096u);
  EXPECT_EQ(refusals.first->tag, "untagged");
  EXPECT_EQ(refusals.first->site, "an unknown line");
  EXPECT_EQ(refusals.first->error, "error 255");
}

TEST(RehearsalReportTest, ARecordingSucceedsIfNothingIsRefusedAndAProgramIfItSaysSo) {
  const test::MadeRecording made;
  const TraceSummary summary(made.trace, "made");
  RehearsalReport report = {.memory_bytes = gib, .summary = summary};
  report.devices.push_back({.name = "sim:0"});
  EXPECT_TRUE(report.is_success());
  report.devices[0].refused = RefusedRequest();
  EXPECT_FALSE(report.is_success());
  // A program may handle refusals.
  report.end = ChildEnd();
  report.refusals = {.by_resources = 1, .first = RefusedRequest()};
  EXPECT_TRUE(report.is_success());
  report.end->status = 3;
  EXPECT_FALSE(report.is_success());
}

}  // namespace
}  // namespace tern::tools
