#include "tools/report/page_facts.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "tools/report/findings.hpp"
#include "tools/report/held_peak.hpp"

namespace tern::tools {
namespace {

using nlohmann::json;

/// Rows of a table. The page shows the first ones and a button for the rest.
constexpr std::size_t max_rows = 100, max_compared_rows = 1000;

template <class Rows, class Make>
json list_of(const Rows& rows, Make make, std::size_t max = SIZE_MAX) {
  json all = json::array();
  for (const auto& row : rows) {
    if (all.size() == max) break;
    all.push_back(make(row));
  }
  return all;
}

json shares_of(const std::vector<TraceSummary::Share>& shares, bool has_sites) {
  return list_of(shares, [&](const TraceSummary::Share& one) {
    json share = {{"tag", one.tag}, {"bytes", one.bytes}, {"blocks", one.blocks}};
    if (has_sites) share["site"] = one.site;
    return share;
  });
}

void add_names(const TraceSummary& summary, json& facts) {
  facts["devices"] = list_of(summary.devices, [](const std::string& one) {
    const bool is_host =
        one == "host" || one.starts_with("host?") || one.starts_with("page-locked memory of ");
    return json{{"name", one}, {"is_host", is_host}};
  });
  facts["resources"] = list_of(summary.resources, [](const TraceSummary::Resource& one) {
    return json{{"name", one.name}, {"device", one.device}};
  });
  facts["streams"] = list_of(summary.streams, [](const TraceSummary::Stream& one) {
    return json{{"name", one.name}, {"device", one.device}};
  });
}

void add_memory(const TraceSummary& summary, json& facts) {
  facts["peaks"] = list_of(summary.peaks, [](const TraceSummary::Peak& one) {
    return json{{"device", one.device},
                {"time", one.time},
                {"live", one.live},
                {"held", one.held},
                {"tags", shares_of(one.tags, false)},
                {"sites", shares_of(one.sites, true)},
                {"text", one.text}};
  });
  facts["held_peaks"] = list_of(held_peaks(summary), [&](const HeldPeak& one) {
    return json{{"device", one.device}, {"time", one.time}, {"text", one.text(summary)}};
  });
  facts["refusals"] = list_of(summary.refusals, [](const TraceSummary::Refusal& one) {
    return json{{"time", one.time},
                {"device", one.device},
                {"resource", one.resource},
                {"bytes", one.bytes},
                {"held", one.held},
                {"live", one.live},
                {"pending", one.pending},
                {"largest_free", one.largest_free},
                {"limit", one.limit == trace::no_limit ? json() : json(one.limit)},
                {"backing", name(one.backing)},
                {"is_served_later", one.is_served_later},
                {"tag", one.tag},
                {"site", one.site},
                {"stream", one.stream},
                {"error", one.error},
                {"tags", shares_of(one.tags, false)}};
  });
  facts["leaks"] = list_of(summary.leaks, [](const TraceSummary::Leak& one) {
    return json{{"device", one.device},
                {"tag", one.tag},
                {"site", one.site},
                {"bytes", one.bytes},
                {"blocks", one.blocks}};
  });
}

/// Returns the view of the memory chart that shows the problem.
const char* memory_mode(Finding::Kind kind) {
  const bool is_about_free_memory = kind == Finding::Kind::refused_pending ||
                                    kind == Finding::Kind::fragmented ||
                                    kind == Finding::Kind::blocked_reuse;
  return is_about_free_memory ? "state" : "tag";
}

void add_findings(const TraceSummary& summary, json& facts) {
  const Findings findings(summary);
  facts["findings"] = list_of(findings.all, [&](const Finding& one) {
    json finding = {
        {"kind", name(one.kind)},
        {"text", one.text},
        {"advice", advice(one.kind)},
        {"time", one.time},
        {"device", one.device ? static_cast<std::int64_t>(*one.device) : -1},
        {"mode", memory_mode(one.kind)},
        {"is_whole", one.kind == Finding::Kind::keeps_growing || one.time == summary.duration}};
    if (one.line) finding["line"] = {{"tag", one.line->tag}, {"site", one.line->site}};
    return finding;
  });
  facts["growing"] = list_of(
      findings.growing,
      [](const LineGrowth& one) {
        return json{
            {"device", one.device},   {"tag", one.tag},          {"site", one.site},
            {"floors", one.floors},   {"bytes", one.bytes},      {"blocks", one.blocks},
            {"growth", one.growth()}, {"kept", one.kept_blocks}, {"first", one.first_bytes}};
      },
      max_rows);
  facts["blocked"] = list_of(findings.blocked, [&](const BlockedReuse& one) {
    return json{{"time", one.time},
                {"times", one.times},
                {"grown", one.grown},
                {"pending", one.pending},
                {"device", summary.resources[one.resource].device},
                {"tag", one.tag},
                {"site", one.site},
                {"stream", one.stream},
                {"free_site", one.free_site},
                {"freed_tag", one.freed.tag},
                {"freed_site", one.freed.site}};
  });
}

json lines_of(const std::vector<TraceSummary::LineCount>& lines) {
  return list_of(
      lines,
      [](const TraceSummary::LineCount& one) {
        return json{{"tag", one.tag}, {"site", one.site}, {"calls", one.calls}, {"sum", one.sum}};
      },
      max_rows);
}

void add_work(const TraceSummary& summary, json& facts) {
  json& transfers = facts["transfers"] = json::array();
  for (std::size_t i = 0; i < TraceSummary::directions; ++i) {
    const TraceSummary::Transfers& one = summary.transfers[i];
    if (one.calls == 0) continue;
    transfers.push_back({{"direction", name(static_cast<TraceSummary::Direction>(i))},
                         {"calls", one.calls},
                         {"bytes", one.bytes},
                         {"busy", one.busy},
                         {"timed_bytes", one.timed_bytes}});
  }
  facts["moves"] = list_of(summary.moves, [](const TraceSummary::Moves& one) {
    return json{{"reason", one.reason}, {"calls", one.calls}, {"bytes", one.bytes}};
  });
  facts["evictions"] = lines_of(summary.evicted_lines);
  facts["kept_copies"] = list_of(
      summary.kept_copies,
      [](const TraceSummary::KeptCopy& one) {
        return json{
            {"tag", one.tag}, {"site", one.site}, {"times", one.times}, {"bytes", one.bytes}};
      },
      max_rows);
  facts["checker_findings"] =
      list_of(summary.checker_findings, [](const TraceSummary::CheckerFinding& one) {
        return json{{"time", one.time}, {"site", one.site}, {"text", one.text}};
      });
  facts["budgets"] = list_of(
      summary.budgets,
      [](const TraceSummary::Budget& one) {
        const bool has_limit = one.limit != trace::no_limit;
        return json{{"path", one.path},       {"count", one.count},
                    {"highest", one.highest}, {"limit", has_limit ? json(one.limit) : json()},
                    {"time", one.time},       {"waits", one.waits},
                    {"waited", one.waited},   {"refused", one.refused}};
      },
      max_rows);
  facts["budget_waits"] = lines_of(summary.budget_wait_lines);
  facts["wait_sums"] = list_of(
      summary.wait_sums,
      [](const TraceSummary::WaitSum& one) {
        return json{{"stream", one.stream},
                    {"for", one.waits_for},
                    {"calls", one.calls},
                    {"took", one.took},
                    {"site", one.site}};
      },
      max_rows);
}

json pair_of(const Comparison::Pair& pair) { return json::array({pair.before, pair.after}); }

json rows_of(const std::vector<Comparison::Row>& rows) {
  return list_of(
      rows,
      [](const Comparison::Row& one) {
        return json{{"device", one.device},
                    {"tag", one.tag},
                    {"site", one.site},
                    {"site_before", one.site_before},
                    {"bytes", pair_of(one.bytes)},
                    {"blocks", pair_of(one.blocks)},
                    {"allocations", pair_of(one.allocations)}};
      },
      max_compared_rows);
}

}  // namespace

json page_facts(const TraceSummary& summary) {
  json facts = {{"title", summary.title},       {"program", summary.program},
                {"process", summary.process},   {"started", summary.started},
                {"duration", summary.duration}, {"events", summary.events},
                {"lost", summary.lost},         {"is_complete", summary.is_complete},
                {"refused", summary.refused},   {"served_later", summary.served_later},
                {"notes", summary.notes},       {"tags", summary.tags},
                {"sites", summary.sites},       {"kernels", summary.kernels}};
  add_names(summary, facts);
  add_memory(summary, facts);
  add_findings(summary, facts);
  add_work(summary, facts);
  return facts;
}

json comparison_facts(const Comparison& comparison) {
  constexpr const char* units[] = {"count", "bytes", "ns"};
  return {{"titles", {comparison.title_before, comparison.title_after}},
          {"figures", list_of(comparison.figures,
                              [&](const Comparison::Figure& one) {
                                return json{{"name", one.name},
                                            {"unit", units[static_cast<std::size_t>(one.unit)]},
                                            {"value", pair_of(one.value)}};
                              })},
          {"devices", list_of(comparison.devices,
                              [](const Comparison::Device& one) {
                                return json{{"name", one.name},
                                            {"live", pair_of(one.live)},
                                            {"held", pair_of(one.held)},
                                            {"text", one.text}};
                              })},
          {"tags", rows_of(comparison.tags)},
          {"lines", rows_of(comparison.lines)},
          {"leaks", rows_of(comparison.new_leaks)},
          {"transfers", list_of(comparison.transfers, [](const Comparison::Transfers& one) {
             return json{{"direction", one.direction},
                         {"calls", pair_of(one.calls)},
                         {"bytes", pair_of(one.bytes)}};
           })}};
}

}  // namespace tern::tools
