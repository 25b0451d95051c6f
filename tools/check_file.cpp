// `tern check FILE...`: prints the findings of the order checker in traces.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tern/core/bytes.hpp"
#include "tern/trace/trace_check.hpp"
#include "tools/commands.hpp"
#include "tools/terminal.hpp"

namespace tern::tools {
namespace {

std::string count_text(std::uint64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

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

int check_one(const std::string& path, const CheckOptions& options) {
  const std::string name = path == "-" ? "standard input" : path;
  ProgressLine progress;
  Result<TraceReader> reader = path == "-" ? TraceReader::try_read_descriptor(STDIN_FILENO, name)
                                           : TraceReader::try_open(path);
  CheckSummary summary;
  if (reader) {
    summary = check_trace(
        *reader,
        [&](const Finding& finding) {
          progress.clear();
          if (options.json) {
            fmt::print("{}\n", finding.json());
          } else {
            fmt::print("{}\n", finding.text());
          }
        },
        options.trusted ? CheckBudget::unlimited() : CheckBudget(),
        [&](std::uint64_t bytes, std::uint64_t records) {
          progress.show(fmt::format("{}: {} records, {}", name, records, format_bytes(bytes)));
        });
  } else {
    summary.failure = reader.failure();
  }
  progress.clear();
  if (options.json) {
    print_json(summary_json(name, summary));
  } else if (reader) {
    fmt::print("{}\n", bold(summary_text(name, summary)));
  }
  if (summary.failure) {
    std::fflush(stdout);
    fmt::print(stderr, "tern: {}\n", summary.failure->text());
    return 2;
  }
  return summary.findings > 0 ? 1 : 0;
}

}  // namespace

int run_check_files(const CheckOptions& options) {
  int worst = 0;
  for (const std::string& path : options.files) worst = std::max(worst, check_one(path, options));
  return worst;
}

}  // namespace tern::tools
