// `tern report FILE`: shows a memory trace as text or as a page.

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "tern/core/bytes.hpp"
#include "tern/core/error.hpp"
#include "tools/commands.hpp"
#include "tools/formats/any_trace.hpp"
#include "tools/report/trace_summary.hpp"
#include "trace/memory_trace.hpp"

namespace tern::tools {
namespace {

bool write_file(const std::string& path, const std::string& contents) {
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return false;
  const bool is_written = std::fwrite(contents.data(), 1, contents.size(), file) == contents.size();
  return std::fclose(file) == 0 && is_written;
}

}  // namespace

int run_report(const ReportOptions& options) {
  std::error_code ignored;
  if (std::filesystem::equivalent(options.file, options.page, ignored)) {
    fmt::print(stderr, "tern report: '{}' is the recording. Write the page to another file.\n",
               options.page);
    return 2;
  }
  const Result<trace::MemoryTrace> trace = try_read_any(options.file);
  if (!trace) {
    fmt::print(stderr, "tern report: {}\n", trace.failure().text());
    return 2;
  }
  const TraceSummary summary(*trace, std::filesystem::path(options.file).filename().string());
  if (options.page.empty()) {
    fmt::print("{}", text_report(summary));
    if (std::fflush(stdout) == 0) return 0;
    fmt::print(stderr, "tern report: the report could not be written: {}\n", std::strerror(errno));
    return 2;
  }
  const std::string page = page_report(summary);
  if (!write_file(options.page, page)) {
    fmt::print(stderr, "tern report: '{}' could not be written: {}\n", options.page,
               std::strerror(errno));
    return 2;
  }
  fmt::print("{}: {}, {} events. Open it in a browser.\n", options.page, format_bytes(page.size()),
             summary.events);
  return 0;
}

}  // namespace tern::tools
