// `tern report FILE`: shows a memory trace as text, as JSON or as a page. With two files: what
// differs.

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>

#include "tern/core/bytes.hpp"
#include "tern/core/error.hpp"
#include "tools/commands.hpp"
#include "tools/formats/any_trace.hpp"
#include "tools/report/comparison.hpp"
#include "tools/report/trace_summary.hpp"

namespace tern::tools {
namespace {

bool write_file(const std::string& path, const std::string& contents) {
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return false;
  const bool is_written = std::fwrite(contents.data(), 1, contents.size(), file) == contents.size();
  return std::fclose(file) == 0 && is_written;
}

/// Returns nothing, after a message, if the file cannot be read.
std::optional<TraceSummary> summary_of(const std::string& path) {
  const Result<trace::MemoryTrace> trace = try_read_any(path);
  if (!trace) {
    fmt::print(stderr, "tern report: {}\n", trace.failure().text());
    return std::nullopt;
  }
  return TraceSummary(*trace, std::filesystem::path(path).filename().string());
}

int print_text(const std::string& text) {
  fmt::print("{}", text);
  if (std::fflush(stdout) == 0) return 0;
  fmt::print(stderr, "tern report: the report could not be written: {}\n", std::strerror(errno));
  return 2;
}

int write_page(const std::string& path, const std::string& page, std::uint64_t events) {
  if (!write_file(path, page)) {
    fmt::print(stderr, "tern report: '{}' could not be written: {}\n", path, std::strerror(errno));
    return 2;
  }
  fmt::print("{}: {}, {} events. Open it in a browser.\n", path, format_bytes(page.size()), events);
  return 0;
}

bool is_same_file(const std::string& one, const std::string& other) {
  std::error_code ignored;
  return std::filesystem::equivalent(one, other, ignored);
}

int run_comparison(const ReportOptions& options) {
  std::optional<TraceSummary> before = summary_of(options.file);
  if (!before) return 2;
  std::optional<TraceSummary> after = summary_of(options.after);
  if (!after) return 2;
  if (before->title == after->title) {
    before->title = options.file;
    after->title = options.after;
  }
  const Comparison comparison(*before, *after);
  if (options.page.empty()) return print_text(text_report(comparison));
  return write_page(options.page, page_report(comparison, *before, *after),
                    before->events + after->events);
}

}  // namespace

int run_report(const ReportOptions& options) {
  for (const std::string& file : {options.file, options.after}) {
    if (!is_same_file(file, options.page)) continue;
    fmt::print(stderr, "tern report: '{}' is an input file. Write the page to another file.\n",
               options.page);
    return 2;
  }
  if (!options.after.empty()) return run_comparison(options);
  const std::optional<TraceSummary> summary = summary_of(options.file);
  if (!summary) return 2;
  if (options.json) return print_text(json_report(*summary));
  if (options.page.empty()) return print_text(text_report(*summary));
  return write_page(options.page, page_report(*summary), summary->events);
}

}  // namespace tern::tools
