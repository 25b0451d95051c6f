// The report as JSON: docs/guide/reports.md describes its fields.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tools/report/findings.hpp"
#include "tools/report/held_peak.hpp"
#include "tools/report/trace_summary.hpp"

namespace tern::tools {
namespace {

using Json = nlohmann::ordered_json;

template <class Rows, class Make>
Json list_of(const Rows& rows, Make make) {
  Json all = Json::array();
  for (const auto& row : rows) all.push_back(make(row));
  return all;
}

/// Writes names instead of indices, so that a reader needs no tables.
class JsonReport {
 public:
  explicit JsonReport(const TraceSummary& summary) : summary_(summary) {}

  [[nodiscard]] Json write() const {
    return {
        {"title", summary_.title},
        {"program", summary_.program},
        {"process", summary_.process},
        {"started", summary_.started},
        {"duration_ns", summary_.duration},
        {"events", summary_.events},
        {"lost_events", summary_.lost},
        {"is_complete", summary_.is_complete},
        {"notes", summary_.notes},
        {"findings", findings()},
        {"devices", devices()},
        {"resources", resources()},
        {"copies", copies()},
        {"moves", moves()},
        {"evictions", {{"copies", summary_.evictions.calls}, {"bytes", summary_.evictions.sum}}},
        {"refused_requests", summary_.refused},
        {"served_later", summary_.served_later},
        {"refusals", list_of(summary_.refusals, [this](const auto& one) { return refusal(one); })},
        {"budget_waits",
         {{"requests", summary_.budget_waits.calls}, {"ns", summary_.budget_waits.sum}}},
        {"not_freed", not_freed()}};
  }

 private:
  [[nodiscard]] Json findings() const {
    return list_of(Findings(summary_).all, [this](const Finding& one) {
      Json finding = {{"kind", name(one.kind)},
                      {"text", one.text},
                      {"advice", advice(one.kind)},
                      {"time_ns", one.time}};
      if (one.device) finding["device"] = summary_.devices[*one.device];
      return finding;
    });
  }
  [[nodiscard]] Json tags(const std::vector<TraceSummary::Share>& shares) const {
    return list_of(shares, [this](const TraceSummary::Share& one) {
      return Json{{"tag", summary_.tags[one.tag]}, {"bytes", one.bytes}, {"blocks", one.blocks}};
    });
  }
  [[nodiscard]] Json devices() const {
    const std::vector<HeldPeak> held = held_peaks(summary_);
    return list_of(summary_.peaks, [&](const TraceSummary::Peak& one) {
      Json device = {{"device", summary_.devices[one.device]},
                     {"peak_live_bytes", one.live},
                     {"peak_time_ns", one.time},
                     {"held_at_peak_bytes", one.held},
                     {"peak_held_bytes", one.peak_held},
                     {"live_at_end_bytes", one.live_at_end},
                     {"tags_at_peak", tags(one.tags)}};
      const auto peak = std::ranges::find(held, one.device, &HeldPeak::device);
      if (peak != held.end()) {
        device["held_peak"] = {{"time_ns", peak->time},
                               {"live_bytes", peak->live},
                               {"pending_bytes", peak->pending},
                               {"free_bytes", peak->free},
                               {"largest_free_bytes", peak->largest_free}};
      }
      return device;
    });
  }
  [[nodiscard]] Json resources() const {
    Json all = Json::array();
    for (const TraceSummary::Resource& one : summary_.resources) {
      // Budgets that refused a request are resources of the recording, but hold no memory.
      if (one.peak_live == 0 && one.peak_held == 0) continue;
      all.push_back({{"resource", one.name},
                     {"device", summary_.devices[one.device]},
                     {"peak_live_bytes", one.peak_live},
                     {"peak_time_ns", one.peak_time},
                     {"peak_held_bytes", one.peak_held},
                     {"live_at_end_bytes", one.live_at_end},
                     {"held_at_end_bytes", one.held_at_end}});
    }
    return all;
  }
  [[nodiscard]] Json copies() const {
    Json all = Json::array();
    for (std::size_t i = 0; i < TraceSummary::directions; ++i) {
      const TraceSummary::Transfers& one = summary_.transfers[i];
      if (one.calls == 0) continue;
      Json copies = {{"direction", name(static_cast<TraceSummary::Direction>(i))},
                     {"copies", one.calls},
                     {"bytes", one.bytes},
                     {"timed_bytes", one.timed_bytes},
                     {"busy_ns", one.busy}};
      if (one.busy != 0) {
        // Bytes per nanosecond are gigabytes per second.
        copies["gb_per_s"] = static_cast<double>(one.timed_bytes) / static_cast<double>(one.busy);
      }
      all.push_back(std::move(copies));
    }
    return all;
  }
  [[nodiscard]] Json moves() const {
    return list_of(summary_.moves, [](const TraceSummary::Moves& one) {
      return Json{{"reason", one.reason}, {"moves", one.calls}, {"bytes", one.bytes}};
    });
  }
  [[nodiscard]] Json refusal(const TraceSummary::Refusal& one) const {
    Json row = {{"time_ns", one.time},
                {"device", summary_.devices[one.device]},
                {"requested_bytes", one.bytes},
                {"error", one.error},
                {"tag", summary_.tags[one.tag]},
                {"site", summary_.sites[one.site]},
                {"live_bytes", one.live},
                {"held_bytes", one.held},
                {"pending_bytes", one.pending},
                {"largest_free_bytes", one.largest_free},
                {"is_served_later", one.is_served_later}};
    if (one.limit > 0) row["limit_bytes"] = one.limit == trace::no_limit ? Json() : Json(one.limit);
    if (!name(one.backing).empty()) row["backing"] = name(one.backing);
    return row;
  }
  [[nodiscard]] Json not_freed() const {
    return list_of(summary_.leaks, [this](const TraceSummary::Leak& one) {
      return Json{{"device", summary_.devices[one.device]},
                  {"tag", summary_.tags[one.tag]},
                  {"site", summary_.sites[one.site]},
                  {"bytes", one.bytes},
                  {"blocks", one.blocks}};
    });
  }

  const TraceSummary& summary_;
};

}  // namespace

std::string json_report(const TraceSummary& summary) {
  // Names may contain any bytes. In ASCII, control characters are escaped, so a terminal does not
  // obey them.
  return JsonReport(summary).write().dump(2, ' ', true, Json::error_handler_t::replace) + '\n';
}

}  // namespace tern::tools
