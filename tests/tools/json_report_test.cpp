// The report as JSON has exact numbers, and names instead of indices.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tern/core/bytes.hpp"
#include "tern/core/error.hpp"
#include "tern/device/device_info.hpp"
#include "tools/report/trace_summary.hpp"

namespace tern::tools {
namespace {

using Json = nlohmann::json;
using enum trace::EventKind;

/// A trace that the test writes event by event.
class JsonReport : public testing::Test {
 protected:
  JsonReport() {
    made_.header.is_closed = 1;
    made_.define(trace::DefinitionKind::device, 1, {"cuda:0", 0, 0, 0});
    made_.define(trace::DefinitionKind::resource, 1,
                 {"pool", 0, 1, static_cast<std::uint8_t>(MemoryKind::device)});
    made_.define(trace::DefinitionKind::tag, 1, {"weights", 0, 0, 0});
    made_.define(trace::DefinitionKind::site, 1, {"model.cpp", 12, 0, 0});
  }
  trace::MemoryEvent& add(trace::EventKind kind, std::uint64_t time, std::uint64_t block,
                          std::uint64_t address, std::uint64_t bytes) {
    trace::MemoryEvent& made = made_.events.emplace_back();
    made.kind = kind;
    made.time_ns = time;
    made.block = block;
    made.address = address;
    made.bytes = bytes;
    made.device = made.resource = made.site = 1;
    made.tag = 1;
    made_.threads.push_back(1);
    return made;
  }
  [[nodiscard]] std::string text() const { return json_report(TraceSummary(made_, "run.trace")); }
  [[nodiscard]] Json json() const { return Json::parse(text()); }

  trace::MemoryTrace made_;
};

TEST_F(JsonReport, OfAnEmptyTraceHasEveryField) {
  const Json seen = json();
  EXPECT_EQ(seen["title"], "run.trace");
  EXPECT_EQ(seen["events"], 0);
  EXPECT_EQ(seen["is_complete"], true);
  ASSERT_EQ(seen["notes"].size(), 1u);
  EXPECT_NE(std::string(seen["notes"][0]).find("no events"), std::string::npos);
  for (const char* list :
       {"findings", "devices", "resources", "copies", "moves", "refusals", "not_freed"}) {
    EXPECT_TRUE(seen[list].is_array() && seen[list].empty()) << list;
  }
  EXPECT_EQ(seen["evictions"], (Json{{"copies", 0}, {"bytes", 0}}));
  EXPECT_EQ(seen["budget_waits"], (Json{{"requests", 0}, {"ns", 0}}));
  EXPECT_EQ(seen["refused_requests"], 0);
}

TEST_F(JsonReport, HasThePeaksOfDevicesAndResources) {
  add(hold, 10, 0, 0, 3 * gib + 1);
  add(allocate, 20, 1, 0x1000, gib + 3);
  add(allocate, 30, 2, 0x200000000, gib);
  add(free, 40, 2, 0x200000000, gib);
  add(hold, 50, 0, 0, 5 * gib);
  add(hold, 60, 0, 0, 2 * gib);
  const Json seen = json();
  EXPECT_EQ(seen["devices"],
            (Json::array(
                {{{"device", "cuda:0"},
                  {"peak_live_bytes", 2 * gib + 3},
                  {"peak_time_ns", 30},
                  {"held_at_peak_bytes", 3 * gib + 1},
                  {"peak_held_bytes", 5 * gib},
                  {"live_at_end_bytes", gib + 3},
                  {"held_peak",
                   {{"time_ns", 50},
                    {"live_bytes", gib + 3},
                    {"pending_bytes", 0},
                    {"free_bytes", 4 * gib - 3},
                    {"largest_free_bytes", gib}}},
                  {"tags_at_peak",
                   Json::array({{{"tag", "weights"}, {"bytes", 2 * gib + 3}, {"blocks", 2}}})}}})));
  EXPECT_EQ(seen["resources"], (Json::array({{{"resource", "pool"},
                                              {"device", "cuda:0"},
                                              {"peak_live_bytes", 2 * gib + 3},
                                              {"peak_time_ns", 30},
                                              {"peak_held_bytes", 5 * gib},
                                              {"live_at_end_bytes", gib + 3},
                                              {"held_at_end_bytes", 2 * gib}}})));
  EXPECT_EQ(seen["not_freed"], (Json::array({{{"device", "cuda:0"},
                                              {"tag", "weights"},
                                              {"site", "model.cpp:12"},
                                              {"bytes", gib + 3},
                                              {"blocks", 1}}})));
}

TEST_F(JsonReport, HasTheRateOfCopiesWhoseTimeIsKnown) {
  add(allocate, 10, 1, 0x1000, 4096);
  add(copy, 20, 7, 0x1000, 3000).extra = 0x900000;
  add(copy, 30, 0, 0x1000, 500).extra = 0x900000;
  add(copy_time, 40, 7, 0, 0).extra = 600;
  EXPECT_EQ(json()["copies"], (Json::array({{{"direction", "host to device"},
                                             {"copies", 2},
                                             {"bytes", 3500},
                                             {"timed_bytes", 3000},
                                             {"busy_ns", 600},
                                             {"gb_per_s", 5.0}}})));
}

TEST_F(JsonReport, HasNoRateWithoutTimes) {
  add(copy, 20, 0, 0x1000, 500);
  EXPECT_EQ(json()["copies"], (Json::array({{{"direction", "other memory"},
                                             {"copies", 1},
                                             {"bytes", 500},
                                             {"timed_bytes", 0},
                                             {"busy_ns", 0}}})));
}

TEST_F(JsonReport, HasRefusalsMovesAndEvictions) {
  trace::MemoryEvent& refused = add(refuse, 10, 5, 100, 4096);
  refused.extra = 2048;
  refused.detail = static_cast<std::uint8_t>(ErrorCode::out_of_memory);
  add(move, 20, 0, 0, 300);
  add(evict, 30, 0, 0, 200);
  add(budget_wait, 40, 0, 0, 100).extra = 77;
  const Json seen = json();
  EXPECT_EQ(seen["refused_requests"], 1);
  const Json& refusal = seen["refusals"].at(0);
  EXPECT_EQ(refusal["requested_bytes"], 4096);
  EXPECT_EQ(refusal["error"], "out_of_memory");
  EXPECT_EQ(refusal["held_bytes"], 2048);
  EXPECT_EQ(refusal["pending_bytes"], 5);
  EXPECT_EQ(refusal["largest_free_bytes"], 100);
  EXPECT_EQ(refusal["site"], "model.cpp:12");
  EXPECT_EQ(refusal["is_served_later"], false);
  EXPECT_EQ(seen["moves"],
            (Json::array({{{"reason", "host_read"}, {"moves", 1}, {"bytes", 300}}})));
  EXPECT_EQ(seen["evictions"], (Json{{"copies", 1}, {"bytes", 200}}));
  EXPECT_EQ(seen["budget_waits"], (Json{{"requests", 1}, {"ns", 77}}));
  EXPECT_TRUE(seen["resources"].empty()) << "a resource that only refused has no memory";
  ASSERT_EQ(seen["findings"].size(), 3u);
  EXPECT_EQ(seen["findings"][0]["kind"], "refused");
  EXPECT_EQ(seen["findings"][0]["device"], "cuda:0");
  EXPECT_FALSE(seen["findings"][1].contains("device")) << "evictions concern no single device";
}

TEST_F(JsonReport, IsAsciiWhateverNamesContain) {
  made_.define(trace::DefinitionKind::tag, 2, {"\x1b[2J\xff\xc2\x9b\x7f\"\n", 0, 0, 0});
  add(allocate, 10, 1, 0x1000, 256).tag = 2;
  const std::string seen = text();
  EXPECT_TRUE(
      std::ranges::all_of(seen, [](char c) { return c == '\n' || (c >= 0x20 && c < 0x7f); }));
  EXPECT_EQ(Json::parse(seen)["devices"][0]["tags_at_peak"][0]["tag"],
            "\x1b[2J\xef\xbf\xbd\xc2\x9b\x7f\"\n");
}

}  // namespace
}  // namespace tern::tools
