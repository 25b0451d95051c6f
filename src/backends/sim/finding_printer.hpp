// Prints findings to standard error, because an exception may be swallowed, a destructor must not
// throw, and the process may crash before it catches one.
//
// A faulty line is reported once, however often it runs. Not thread-safe, like the simulation it
// belongs to.

#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <string_view>

#include "tern/trace/finding.hpp"

namespace tern::sim {

class FindingPrinter {
 public:
  /// Writes the text with one call, so that reports of several threads do not mix.
  void print(const Finding& finding) noexcept;
  /// Writes a line that is no finding.
  static void print_line(std::string_view line) noexcept;

 private:
  std::set<std::string> printed_;  // printed codes and lines
};

}  // namespace tern::sim
