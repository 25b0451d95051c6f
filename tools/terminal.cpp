#include "tools/terminal.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace tern::tools {
namespace {

std::string paint(std::string_view code, std::string_view text) {
  if (!has_colour()) return std::string(text);
  return fmt::format("\033[{}m{}\033[0m", code, text);
}

}  // namespace

bool has_colour() {
  static const bool colour = [] {
    const char* terminal = std::getenv("TERM");
    const char* refused = std::getenv("NO_COLOR");
    return isatty(STDOUT_FILENO) == 1 && (refused == nullptr || *refused == '\0') &&
           terminal != nullptr && std::string_view(terminal) != "dumb";
  }();
  return colour;
}

std::string bold(std::string_view text) { return paint("1", text); }
std::string dim(std::string_view text) { return paint("2", text); }
std::string green(std::string_view text) { return paint("32", text); }
std::string red(std::string_view text) { return paint("31", text); }
std::string yellow(std::string_view text) { return paint("33", text); }

std::size_t terminal_columns() {
  std::size_t columns = 100;
  winsize size = {};
  const char* const wanted = std::getenv("COLUMNS");
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col != 0) {
    columns = size.ws_col;
  } else if (wanted != nullptr && std::atoi(wanted) > 0) {
    columns = static_cast<std::size_t>(std::atoi(wanted));
  }
  return std::max<std::size_t>(columns, 40);
}

std::string wrapped(std::string_view text, std::size_t indent, std::size_t columns) {
  std::string lines;
  std::size_t column = indent;
  bool is_first = true;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (word.empty()) continue;
    if (is_first) {
      is_first = false;
    } else if (column + 1 + word.size() > columns) {
      lines += '\n' + std::string(indent, ' ');
      column = indent;
    } else {
      lines += ' ';
      ++column;
    }
    lines += word;
    column += word.size();
  }
  return lines;
}

ProgressLine::ProgressLine() : is_terminal_(isatty(STDERR_FILENO) == 1) {}

ProgressLine::~ProgressLine() { clear(); }

void ProgressLine::show(std::string_view text) {
  if (!is_terminal_) return;
  fmt::print(stderr, "\r\033[K{}", text);
  std::fflush(stderr);
  is_shown_ = true;
}

void ProgressLine::clear() {
  if (!is_shown_) return;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
  is_shown_ = false;
}

void LateProgressLine::show(std::string_view text) {
  if (std::chrono::steady_clock::now() - start_ > std::chrono::seconds(2)) line_.show(text);
}

}  // namespace tern::tools
