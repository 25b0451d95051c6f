// Reports on standard error: the one way to be heard when an exception is swallowed, a destructor
// may not throw, or the process crashes before anybody catches.
//
// A line of the program that is wrong is reported once, however often it runs. Confined, like the
// world it belongs to.

#pragma once

#include <cstddef>
#include <set>
#include <string>

#include "tern/trace/finding.hpp"

namespace tern::sim {

class ReportPrinter {
 public:
  /// Writes the text with one call, so that reports of several threads do not mix.
  void print(const Finding& finding) noexcept;

 private:
  std::set<std::string> printed_;  // codes and lines
};

}  // namespace tern::sim
