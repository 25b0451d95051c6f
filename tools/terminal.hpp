// How the command talks to people: colour and progress on a terminal, plain text elsewhere.

#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

namespace tern::tools {

/// Is standard output a terminal that wants colour? NO_COLOR and a dumb terminal say no.
[[nodiscard]] bool has_colour();

/// The columns of standard output: those of the terminal, else COLUMNS, else 100. At least 40.
[[nodiscard]] std::size_t terminal_columns();

/// Breaks the text at blanks into lines of at most `columns`; every line but the first begins with
/// `indent` blanks. A longer word has a line of its own. The first line begins at column `indent`.
[[nodiscard]] std::string wrapped(std::string_view text, std::size_t indent, std::size_t columns);

[[nodiscard]] std::string bold(std::string_view text);
[[nodiscard]] std::string dim(std::string_view text);
[[nodiscard]] std::string green(std::string_view text);
[[nodiscard]] std::string red(std::string_view text);
[[nodiscard]] std::string yellow(std::string_view text);

/// A line on standard error that is overwritten by the next one and erased at the end. Silent
/// unless standard error is a terminal.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void show(std::string_view text);
  void clear();

 private:
  bool is_terminal_;
  bool is_shown_ = false;
};

/// A ProgressLine that appears only if the work takes longer than two seconds.
class LateProgressLine {
 public:
  void show(std::string_view text);
  void clear() { line_.clear(); }

 private:
  ProgressLine line_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace tern::tools
