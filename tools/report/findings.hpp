// What stands out in a trace: at most five sentences, each with numbers and a line of the program.
//
// docs/guide/reports.md documents the rules. A program without problems has no findings.

#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/report/line_growth.hpp"
#include "tools/report/trace_summary.hpp"

namespace tern::tools {

struct Finding {
  enum class Kind : std::uint8_t {
    unsafe,           // the checker of a simulated device reported an error
    refused_pending,  // refused while enough memory waited for a stream
    fragmented,       // refused although enough memory was free, in pieces
    refused,          // refused because too much was live, or by a budget
    keeps_growing,    // a line whose live memory grows over the whole recording
    blocked_reuse,    // a pool grew while memory waited for a stream
    evicted_again,    // unified buffers evict much more than fits
    budget_wait,      // requests wait for a budget
  };
  static constexpr std::size_t kinds = 8;

  /// Blocks with one tag that one line allocated.
  struct Line {
    std::uint32_t tag = 0, site = 0;

    bool operator==(const Line&) const = default;
  };

  Kind kind = Kind::refused;
  std::string text;
  /// Where to look: the worst moment, or the end of the trace for what only the whole trace shows;
  /// and a device and the blocks of a line, if they are concerned.
  std::uint64_t time = 0;
  std::optional<std::uint32_t> device = {};
  std::optional<Line> line = {};
};

/// Returns a word for tables and tests, such as "fragmented".
[[nodiscard]] std::string_view name(Finding::Kind kind) noexcept;
/// Returns a sentence: what to do.
[[nodiscard]] std::string_view advice(Finding::Kind kind) noexcept;

/// Times at which a pool grew while memory of one stream was pending. One row for each line that
/// asked.
struct BlockedReuse {
  std::uint64_t times = 0, grown = 0;
  /// The most that was pending when the pool grew, in ranges that the request would have fit into;
  /// when this was, and what the pool held then.
  std::uint64_t pending = 0, time = 0, held = 0;
  std::uint32_t resource = 0, tag = 0, site = 0;  // of the requests
  std::uint32_t stream = 0;
  /// Most of the pending memory: its tag, and the lines that allocated it and freed it.
  Finding::Line freed = {};
  std::uint32_t free_site = 0;

  /// The pending memory could have served this much of the growth.
  [[nodiscard]] std::uint64_t avoidable() const noexcept { return std::min(grown, pending); }
};

/// What the rules look at, and what they found.
struct Findings {
  static constexpr std::size_t max_findings = 5;

  explicit Findings(const TraceSummary& summary);

  std::vector<Finding> all;           // the worst first
  std::vector<LineGrowth> growing;    // lines that keep growing, however little
  std::vector<BlockedReuse> blocked;  // the most avoidable growth first
};

}  // namespace tern::tools
