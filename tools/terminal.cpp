#include "tools/terminal.hpp"

#include <fmt/format.h>
#include <unistd.h>

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
