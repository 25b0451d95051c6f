#include "backends/sim/finding_printer.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <new>

namespace tern::sim {
namespace {

/// After this many lines, a final message says that further findings are not printed.
constexpr std::size_t max_reports = 100;

/// The key of a finding: the code and the line. If the line is unknown, the code and the text
/// without its first line, because the step in that line is new each time.
std::string key_of(const Finding& finding) {
  if (!finding.site.is_known()) {
    const std::string text = finding.text();
    return fmt::format("{} {}", code_text(finding.code), text.substr(text.find('\n') + 1));
  }
  return fmt::format("{} {}:{} {}", code_text(finding.code), finding.site.file, finding.site.line,
                     finding.context);
}

void write_all(std::string_view text) noexcept {
  while (!text.empty()) {
    const ssize_t done = ::write(STDERR_FILENO, text.data(), text.size());
    if (done <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(done));
  }
}

}  // namespace

void FindingPrinter::print_line(std::string_view line) noexcept { write_all(line); }

void FindingPrinter::print(const Finding& finding) noexcept {
  try {
    if (printed_.size() > max_reports || !printed_.insert(key_of(finding)).second) return;
    if (printed_.size() > max_reports) {
      return write_all(
          "tern: further findings are not printed; sim::findings() returns all of them\n");
    }
    write_all(finding.text());
  } catch (const std::bad_alloc&) {
    write_all("tern: the host had no memory to print a finding; sim::findings() returns it\n");
  }
}

}  // namespace tern::sim
