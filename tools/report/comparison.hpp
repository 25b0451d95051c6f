// A Comparison is what differs between two traces of a program: before and after a change.
//
// Devices, tags and lines are the same if their names are. A line that only one trace has is paired
// with one of the other trace if both have the same number of such lines for the same file and tag:
// then lines were inserted above them.

#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/report/trace_summary.hpp"

namespace tern::tools {

class Comparison {
 public:
  /// A figure before and after.
  struct Pair {
    std::uint64_t before = 0, after = 0;

    [[nodiscard]] bool is_same() const noexcept { return before == after; }
    /// The difference without its sign.
    [[nodiscard]] std::uint64_t distance() const noexcept {
      return after > before ? after - before : before - after;
    }
  };
  struct Device {
    std::string name;
    Pair live, held;   // peaks
    std::string text;  // one sentence
  };
  /// Memory of a tag, or of a tag and a line, that was live at the peaks of a device.
  struct Row {
    std::string device, tag, site;
    std::string site_before;  // if the line has moved
    Pair bytes, blocks;
    Pair allocations;  // of the whole recording
  };
  struct Transfers {
    std::string direction;
    Pair calls, bytes;
  };
  enum class Unit : std::uint8_t { count, bytes, nanoseconds };
  struct Figure {
    const char* name;
    Unit unit;
    Pair value;
  };

  Comparison(const TraceSummary& before, const TraceSummary& after);

  std::string title_before, title_after;
  std::vector<Figure> figures;
  std::vector<Device> devices;
  std::vector<Row> tags,
      lines;  // the largest difference first; rows that did not change are absent
  std::vector<Transfers> transfers;
  std::vector<Row> new_leaks;  // blocks that were not freed: more bytes than before
};

/// Writes the comparison as text for terminals and logs.
[[nodiscard]] std::string text_report(const Comparison& comparison);
/// Writes the comparison and both traces as one page of HTML.
[[nodiscard]] std::string page_report(const Comparison& comparison, const TraceSummary& before,
                                      const TraceSummary& after);

}  // namespace tern::tools
