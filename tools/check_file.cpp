// `tern check FILE...`: prints the findings of the order checker in traces and recordings.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "tern/core/bytes.hpp"
#include "tern/trace/trace_check.hpp"
#include "tools/check/recorded_order.hpp"
#include "tools/commands.hpp"
#include "tools/formats/any_trace.hpp"
#include "tools/report/plain_text.hpp"
#include "tools/terminal.hpp"

namespace tern::tools {
namespace {

std::string summary_text(const std::string& name, const CheckSummary& summary) {
  std::string text =
      fmt::format("{}: {}, {}, {}", name, count_text(summary.records, "record"),
                  count_text(summary.actors, "actor"), count_text(summary.findings, "finding"));
  if (summary.gaps > 0) {
    text += fmt::format(", {} ({} lost; what they may have changed counts as unknown)",
                        count_text(summary.gaps, "gap"), count_text(summary.lost, "record"));
  }
  if (summary.tags_left_out > 0) {
    text += fmt::format(", {} without their tag", count_text(summary.tags_left_out, "record"));
  }
  if (!summary.failure) {
    text += summary.is_complete
                ? ", complete"
                : fmt::format(", truncated after record {}: the writer was interrupted",
                              summary.records);
  }
  return text;
}

nlohmann::json summary_json(const std::string& name, const CheckSummary& summary) {
  nlohmann::json json = {{"file", name},
                         {"bytes", summary.bytes},
                         {"records", summary.records},
                         {"actors", summary.actors},
                         {"findings", summary.findings},
                         {"gaps", summary.gaps},
                         {"lost", summary.lost},
                         {"complete", summary.is_complete}};
  if (summary.failure) json["error"] = summary.failure->text();
  return json;
}

void print_json(const nlohmann::json& json) {
  // A path need not be UTF-8.
  fmt::print("{}\n", json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

/// Prints the findings of a trace.
CheckSummary check(TraceReader& reader, const std::string& name, const CheckOptions& options) {
  ProgressLine progress;
  CheckSummary summary = check_trace(
      reader,
      [&](const Finding& finding) {
        progress.clear();
        fmt::print("{}\n", options.json ? finding.json() : finding.text());
      },
      options.trusted ? CheckBudget::unlimited() : CheckBudget(),
      [&](std::uint64_t bytes, std::uint64_t records) {
        progress.show(fmt::format("{}: {} records, {}", name, records, format_bytes(bytes)));
      });
  progress.clear();
  return summary;
}

/// Returns the exit status.
int end(const std::optional<Failure>& failure, std::uint64_t findings) {
  if (!failure) return findings > 0 ? 1 : 0;
  std::fflush(stdout);
  fmt::print(stderr, "tern: {}\n", failure->text());
  return 2;
}

int check_one(const std::string& path, const CheckOptions& options) {
  const std::string name = path == "-" ? "standard input" : path;
  Result<TraceReader> reader = path == "-" ? TraceReader::try_read_descriptor(STDIN_FILENO, name)
                                           : TraceReader::try_open(path);
  CheckSummary summary;
  if (reader) {
    summary = check(*reader, name, options);
  } else {
    summary.failure = reader.failure();
  }
  if (options.json) {
    print_json(summary_json(name, summary));
  } else if (reader) {
    fmt::print("{}\n", bold(summary_text(name, summary)));
  }
  return end(summary.failure, summary.findings);
}

// --- Recordings of any device

/// Returns what the checker did not see, one line for each reason.
std::string limits_text(const trace::MemoryTrace& trace, const RecordedOrder& order) {
  std::string text;
  const auto left_out = [&](std::uint64_t count, std::string_view why) {
    if (count == 0) return;
    text += fmt::format(
        "  not checked: {} {}\n",
        count_text(count, "copy, fill or declared use", "copies, fills or declared uses"), why);
  };
  left_out(order.outside_of_blocks, "of memory that no recorded resource allocated");
  left_out(order.on_borrowed_streams, "on streams that other libraries own");
  left_out(order.in_rows, "that copy rows with gaps between them");
  if (trace.is_cut) {
    text +=
        "  The end of the file is missing: a finding may be wrong, and mistakes may be missing.\n";
  }
  if (trace.header.lost_events > 0) {
    text += fmt::format(
        "  {} lost: a finding may be wrong, because a lost event may be the missing wait\n",
        count_text(trace.header.lost_events, "event was", "events were"));
  }
  if (order.live_blocks > 0) {
    text += fmt::format("  not freed when the recording ended: {} ({}); see `tern report`\n",
                        count_text(order.live_blocks, "block", "blocks"),
                        format_bytes(order.live_bytes));
  }
  text +=
      "  A recording does not show what the host reads and writes, undeclared uses of kernels, "
      "work in graphs,\n  and how a pool reuses memory. To check these too, run the program on a "
      "simulated device.\n";
  return text;
}

int check_recording(const std::string& path, const CheckOptions& options) {
  const Result<trace::MemoryTrace> trace = trace::MemoryTrace::try_read(path);
  if (!trace) {
    if (options.json) print_json(summary_json(path, {.failure = trace.failure()}));
    return end(trace.failure(), 0);
  }
  const RecordedOrder order = order_of(*trace);
  Result<TraceReader> reader = TraceReader::try_read_bytes(order.bytes);
  if (!reader) return end(reader.failure(), 0);
  CheckSummary summary = check(*reader, path, options);
  summary.is_complete = trace->header.is_closed != 0 && !trace->is_cut;
  summary.lost = trace->header.lost_events;
  if (options.json) {
    nlohmann::json json = summary_json(path, summary);
    json["events"] = trace->events.size();
    json["streams"] = order.streams;
    json["checked"] = order.judged;
    json["not_checked"] = {{"outside_of_blocks", order.outside_of_blocks},
                           {"on_borrowed_streams", order.on_borrowed_streams},
                           {"in_rows", order.in_rows}};
    json["not_freed"] = {{"blocks", order.live_blocks}, {"bytes", order.live_bytes}};
    print_json(json);
  } else {
    fmt::print("{}\n{}",
               bold(fmt::format("{}: a recording of {}, {}, {} checked, {}", path,
                                count_text(trace->events.size(), "event", "events"),
                                count_text(order.streams, "stream", "streams"),
                                count_text(order.judged, "use of memory", "uses of memory"),
                                count_text(summary.findings, "finding", "findings"))),
               limits_text(*trace, order));
  }
  return end(summary.failure, summary.findings);
}

}  // namespace

int run_check_files(const CheckOptions& options) {
  int worst = 0;
  for (const std::string& path : options.files) {
    worst = std::max(
        worst, is_recording(path) ? check_recording(path, options) : check_one(path, options));
  }
  return worst;
}

}  // namespace tern::tools
