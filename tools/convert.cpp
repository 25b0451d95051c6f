// `tern convert IN OUT`: reads a memory trace of any format and writes it in another one.

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tern/core/bytes.hpp"
#include "tools/commands.hpp"
#include "tools/formats/any_trace.hpp"
#include "tools/formats/memory_trace_writer.hpp"
#include "tools/formats/output_file.hpp"
#include "tools/formats/perfetto_writer.hpp"
#include "tools/formats/pytorch_snapshot.hpp"
#include "tools/formats/rmm_log.hpp"

namespace tern::tools {
namespace {

enum class Format : std::uint8_t { trace, pytorch, perfetto, rmm };

struct Suffix {
  std::string_view text;
  Format format;
};
constexpr std::array suffixes = {
    Suffix{".trace", Format::trace}, Suffix{".pickle", Format::pytorch},
    Suffix{".pkl", Format::pytorch}, Suffix{".pftrace", Format::perfetto},
    Suffix{".csv", Format::rmm},     Suffix{".perfetto-trace", Format::perfetto},
};

/// Returns the format with this name, or that of the suffix if the name is empty.
std::optional<Format> format_of(std::string_view name, std::string_view path) {
  if (name == "trace") return Format::trace;
  if (name == "pytorch") return Format::pytorch;
  if (name == "perfetto") return Format::perfetto;
  if (name == "rmm") return Format::rmm;
  for (const Suffix& suffix : suffixes) {
    if (path.ends_with(suffix.text)) return suffix.format;
  }
  return std::nullopt;
}

/// Returns sentences about what the format cannot hold.
std::vector<std::string> write(const trace::MemoryTrace& trace, Format format,
                               const std::string& title, OutputFile& out) {
  switch (format) {
    case Format::trace:
      write_memory_trace(trace, out);
      break;
    case Format::pytorch:
      write_pytorch_snapshot(trace, out);
      break;
    case Format::perfetto: {
      write_perfetto_trace(TraceSummary(trace, title), trace.header.start_unix_ns, out);
      break;
    }
    case Format::rmm:
      return write_rmm_log(trace, out);
  }
  return {};
}

int fail(const Failure& failure) {
  fmt::print(stderr, "tern convert: {}\n", failure.text());
  return 2;
}

}  // namespace

int run_convert(const ConvertOptions& options) {
  const std::optional<Format> format = format_of(options.format, options.output);
  if (!format) {
    fmt::print(stderr,
               "tern convert: the suffix of '{}' is not known. Use --format trace, pytorch, "
               "perfetto or rmm, or a file name that ends with .trace, .pickle, .pkl, .pftrace, "
               ".perfetto-trace or .csv.\n",
               options.output);
    return 2;
  }
  std::error_code ignored;
  if (std::filesystem::equivalent(options.input, options.output, ignored)) {
    fmt::print(stderr, "tern convert: '{}' is the input file. Write to another file.\n",
               options.output);
    return 2;
  }
  const Result<trace::MemoryTrace> trace = try_read_any(options.input);
  if (!trace) return fail(trace.failure());
  OutputFile out(options.output);
  if (const Result<void> opened = out.try_open(); !opened) return fail(opened.failure());
  std::vector<std::string> notes = trace->notes;
  if (trace->is_cut) notes.emplace_back("The end of the file is missing, and with it events.");
  if (trace->damaged_slabs > 0) {
    notes.push_back(
        fmt::format("{} parts of the file are damaged and were skipped.", trace->damaged_slabs));
  }
  const std::string title = std::filesystem::path(options.input).filename().string();
  for (std::string& note : write(*trace, *format, title, out)) notes.push_back(std::move(note));
  if (const Result<void> committed = out.try_commit(); !committed) {
    return fail(committed.failure());
  }
  fmt::print("{}: {}, from {} events.\n", options.output, format_bytes(out.size_bytes()),
             trace->events.size());
  for (const std::string& note : notes) fmt::print("  note: {}\n", note);
  return 0;
}

}  // namespace tern::tools
