#include "tools/replay/replay_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "tern/core/bytes.hpp"
#include "tools/report/plain_text.hpp"

namespace tern::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* row_format =
    "  {:<28} {:>8} {:>8} {:>8} {:>8} {:>10} {:>6} {:>10} {:>13} {:>8}\n";

/// Three digits: 0.97, 58.3, 1240.
std::string digits(double value) {
  return value >= 100 ? fmt::format("{:.0f}", value) : fmt::format("{:.3g}", value);
}

std::string row_of(const ContestResult& one) {
  const std::string name = one.setting.text();
  if (!one.has_figures()) return fmt::format("  {:<28} not available: {}\n", name, one.absence);
  return fmt::format(
      fmt::runtime(row_format), name, digits(one.cold().ns_per_call),
      digits(one.warm().ns_per_call), one.cold().driver_calls, one.warm().driver_calls,
      format_bytes(one.peak_held_bytes), fmt::format("{:.3f}", one.held_per_live()),
      one.free_at_peak_bytes ? format_bytes(*one.free_at_peak_bytes) : "-",
      one.fragmentation ? fmt::format("{:.2f}", *one.fragmentation) : "-", one.refusals());
}

Json json_of(const ContestResult& one) {
  Json json = {{"resource", one.setting.text()}};
  if (!one.has_figures()) {
    json["absence"] = one.absence;
    return json;
  }
  Json passes = Json::array();
  for (const PassFigures& pass : one.passes) {
    passes.push_back({{"ns_per_call", pass.ns_per_call},
                      {"driver_calls", pass.driver_calls},
                      {"refusals", pass.refusals},
                      {"returned_bytes", pass.returned_bytes}});
  }
  json.update({{"cold_ns", one.cold().ns_per_call},
               {"warm_ns", one.warm().ns_per_call},
               {"setup_ns", one.setup_ns},
               {"driver_calls", one.driver_calls()},
               {"cold_driver_calls", one.cold().driver_calls},
               {"warm_driver_calls", one.warm().driver_calls},
               {"peak_live_bytes", one.peak_live_bytes},
               {"peak_held_bytes", one.peak_held_bytes},
               {"held_per_live", one.held_per_live()},
               {"refusals", one.refusals()},
               {"returned_bytes", one.returned_bytes()},
               {"passes", std::move(passes)}});
  if (one.fragmentation) {
    json["free_at_peak_bytes"] = *one.free_at_peak_bytes;
    json["fragmentation"] = *one.fragmentation;
  }
  return json;
}

Json json_of(const std::vector<Change>& changes) {
  Json json = Json::array();
  for (const Change& one : changes) {
    json.push_back({{"figure", one.figure}, {"from", one.from}, {"to", one.to}});
  }
  return json;
}

/// The names of the resources, the one with the smallest figure first.
template <class Figure>
Json ranked(const std::vector<ContestResult>& results, Figure figure) {
  std::vector<const ContestResult*> order;
  for (const ContestResult& one : results) {
    if (one.has_figures()) order.push_back(&one);
  }
  std::ranges::stable_sort(order, {}, figure);
  Json names = Json::array();
  for (const ContestResult* one : order) names.push_back(one->setting.text());
  return names;
}

}  // namespace

std::string ReplayReport::text() const {
  std::string text;
  const auto add = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text), format, std::forward<Args>(args)...);
  };
  add("{}: {} allocations and {} frees on {} streams of {}, at most {} live\n", plain(file),
      facts.allocations, recording.trace.steps.size() - facts.allocations, recording.streams,
      plain(recording.name), format_bytes(facts.peak_bytes));
  for (const std::string& note : recording.notes()) add("  note: {}\n", plain(note));
  add("replayed on {} in {} passes; a call is an allocation or a free\n\n", plain(device), passes);
  text += fmt::format(fmt::runtime(row_format), "", "ns/call", "ns/call", "driver", "calls", "peak",
                      "held /", "free at", "", "");
  text += fmt::format(fmt::runtime(row_format), "resource", "cold", "warm", "cold", "warm", "held",
                      "live", "the peak", "fragmentation", "refusals");
  for (const ContestResult& one : results) text += row_of(one);
  if (!recommendations) return text;
  add("\n");
  if (recommendations->empty()) {
    add("No other pool setting that was tried improves a figure.\n");
    return text;
  }
  const auto add_list = [&](bool has_costs, const char* title) {
    const char* before = title;
    for (const Recommendation& one : *recommendations) {
      if (one.costs.empty() == has_costs) continue;
      add("{}  {}\n", std::exchange(before, ""), one.text);
    }
  };
  add_list(false, "Recommended pool settings:\n");
  add_list(true, "Settings that improve one figure and worsen another:\n");
  return text;
}

std::string ReplayReport::json() const {
  Json json = {{"file", file},
               {"memory", recording.name},
               {"allocations", facts.allocations},
               {"frees", recording.trace.steps.size() - facts.allocations},
               {"streams", recording.streams},
               {"peak_live_bytes", facts.peak_bytes},
               {"notes", recording.notes()},
               {"device", device},
               {"device_bytes", device_bytes},
               {"passes", passes},
               {"results", Json::array()}};
  for (const ContestResult& one : results) json["results"].push_back(json_of(one));
  json["ranking"] = {
      {"driver_calls",
       ranked(results, [](const ContestResult* one) { return one->driver_calls(); })},
      {"peak_held_bytes",
       ranked(results, [](const ContestResult* one) { return one->peak_held_bytes; })}};
  if (recommendations) {
    json["recommendations"] = Json::array();
    for (const Recommendation& one : *recommendations) {
      Json entry = json_of(one.result);
      entry["gains"] = json_of(one.gains);
      entry["costs"] = json_of(one.costs);
      entry["text"] = one.text;
      json["recommendations"].push_back(std::move(entry));
    }
  }
  // A recording may contain any bytes.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace tern::tools
