#include "tools/replay/contest.hpp"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "bench/trace_player.hpp"
#include "tern/backends/catalog.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/bytes.hpp"
#include "tern/memory/driver_resource.hpp"
#include "tern/memory/fault_resource.hpp"

namespace tern::tools {
namespace {

using bench::AllocationTrace;
using bench::TracePlayer;

ResourceSetting setting_of(const char* text) {
  return try_parse_resource_settings(text).value().at(0);
}

Contest contest_on(const Device& device, const AllocationTrace& trace, unsigned passes = 3) {
  return Contest(device, trace, passes, [](std::string_view) {});
}

std::vector<AllocationTrace> generated_traces() {
  return {bench::checkerboard(), bench::train_varlen(), bench::growing_kv_cache(),
          bench::multi_stream_etl()};
}

TEST(TracePlayerTest, SkipsTheFreeOfABlockThatWasRefused) {
  const Device device = open_device("sim:0?check=off");
  const auto faulty = std::make_shared<FaultResource>(std::make_shared<PoolResource>(device));
  const std::vector<Stream> streams = [&] {
    std::vector<Stream> made;
    made.emplace_back(device);
    return made;
  }();
  // Two blocks; the first is freed, the second is left.
  const AllocationTrace trace = {"two", {{0, 0, 1000}, {1, 0, 500}, {0, 0, 0}}, 2, 1};
  TracePlayer player(trace, *faulty, streams, Wait::never);
  faulty->fail_next();
  player.play(0, 2);
  EXPECT_EQ(player.refusals(), 1u);
  EXPECT_EQ(player.first_refused(), 0u);
  EXPECT_EQ(player.live_bytes(), 500u);
  player.play(2, 3);
  EXPECT_EQ(player.calls(), 2u) << "the free of the refused block is no call";
  EXPECT_EQ(player.live_bytes(), 500u);
  player.free_rest();
  EXPECT_EQ(player.live_bytes(), 0u);
  EXPECT_EQ(player.peak_bytes(), 500u);
  EXPECT_EQ(faulty->statistics().live_blocks, 0u);
}

TEST(ContestTest, GeneratedTracesAreServedToTheByteAndCostTheSameEveryTime) {
  const Device device = open_device("sim:0?check=off&schedule=eager");
  for (const AllocationTrace& trace : generated_traces()) {
    SCOPED_TRACE(trace.name);
    Contest contest = contest_on(device, trace, 2);
    std::map<std::string, ContestResult> results;
    for (const char* text : {"pool", "async", "driver"}) {
      SCOPED_TRACE(text);
      const ContestResult& one = results[text] = contest.run(setting_of(text));
      ASSERT_EQ(one.passes.size(), 2u) << one.absence;
      EXPECT_EQ(one.refusals(), 0u);
      EXPECT_EQ(one.peak_live_bytes, bench::facts_of(trace).peak_bytes);
      EXPECT_GE(one.peak_held_bytes, one.peak_live_bytes);
      EXPECT_EQ(one.fragmentation.has_value(), one.setting.kind == ResourceSetting::Kind::pool);
      const ContestResult again = contest.run(setting_of(text));
      EXPECT_EQ(again.driver_calls(), one.driver_calls());
      EXPECT_EQ(again.peak_held_bytes, one.peak_held_bytes);
    }
    // Each request and each free of the others is a call, and they keep nothing.
    EXPECT_EQ(results["async"].driver_calls(), results["driver"].driver_calls());
    EXPECT_GE(results["pool"].peak_held_bytes, results["async"].peak_held_bytes);
    EXPECT_GE(results["pool"].peak_held_bytes, results["driver"].peak_held_bytes);
    if (trace.name == "checkerboard") continue;  // too few calls to repay what the pool does first
    EXPECT_LT(results["pool"].driver_calls(), results["async"].driver_calls() / 5);
  }
}

TEST(ContestTest, RunsOnTheHost) {
  const AllocationTrace trace = bench::train_varlen(4);
  Contest contest = contest_on(open_device("host"), trace, 1);
  for (const char* text : {"pool", "driver"}) {
    const ContestResult result = contest.run(setting_of(text));
    EXPECT_EQ(result.refusals(), 0u) << text;
    EXPECT_EQ(result.peak_live_bytes, contest.facts().peak_bytes) << text;
  }
}

TEST(ContestTest, CountsTheCallsThatReachTheDriver) {
  const Device device = sim::open({.policy = sim::Policy::eager, .check = false});
  const AllocationTrace trace = bench::checkerboard();
  Contest contest = contest_on(device, trace, 1);
  const auto memory_calls = [&] {
    return sim::calls(device, "allocate") + sim::calls(device, "release") +
           sim::calls(device, "map");
  };
  for (const char* text : {"driver", "async"}) {
    const std::uint64_t before = memory_calls();
    const ContestResult result = contest.run(setting_of(text));
    EXPECT_EQ(result.driver_calls(), memory_calls() - before) << text;
  }
}

TEST(ContestTest, AnsweredFromMemoryInPlaceTheLastPassMakesNoCalls) {
  const Device device = open_device("sim:0?check=off&schedule=eager");
  const AllocationTrace trace = bench::checkerboard();
  Contest contest = contest_on(device, trace);
  const ContestResult pool = contest.run(setting_of("pool"));
  EXPECT_GT(pool.cold().driver_calls, pool.warm().driver_calls);
  // What is returned after a pass has to come back in the next one.
  const ContestResult trimmed = contest.run(setting_of("pool:trim=0"));
  EXPECT_EQ(trimmed.returned_bytes(), trimmed.peak_held_bytes);
  EXPECT_GT(trimmed.warm().driver_calls, pool.warm().driver_calls);
  // What the constructor does counts, too.
  EXPECT_GT(contest.run(setting_of("pool:initial=2GiB")).cold().driver_calls, 0u);
}

TEST(ContestTest, ALimitBelowTheLiveBytesRefuses) {
  const Device device = open_device("sim:0?check=off&schedule=eager");
  const AllocationTrace trace = bench::checkerboard();  // 1920 MiB
  Contest contest = contest_on(device, trace, 1);
  const ContestResult result = contest.run(setting_of("pool:limit=1918MiB"));
  EXPECT_EQ(result.refusals(), 1u);
  EXPECT_EQ(result.first_refused, 59u) << "the 60th block";
  EXPECT_LE(result.peak_held_bytes, 1918 * mib);
  EXPECT_EQ(contest.run(setting_of("pool:limit=1920MiB")).refusals(), 0u);
}

TEST(ContestTest, AResourceThatTheDeviceLacksIsASentence) {
  const Device device = open_device("sim:0?check=off&memory=1GiB");
  const AllocationTrace trace = {"one", {{0, 0, 1000}, {0, 0, 0}}, 1, 1};
  Contest contest = contest_on(device, trace, 1);
  const ContestResult result = contest.run(setting_of("pool:initial=2GiB"));
  EXPECT_FALSE(result.has_figures());
  EXPECT_NE(result.absence.find("1.0 GiB of memory"), std::string::npos) << result.absence;
}

}  // namespace
}  // namespace tern::tools
