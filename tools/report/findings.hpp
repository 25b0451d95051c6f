// What stands out in a trace: at most five sentences, each with numbers and a line of the program.
//
// docs/guide/reports.md documents the rules. A program without problems has no findings.

#pragma once

#include <cstdint>
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

  Kind kind = Kind::refused;
  std::string text;
  /// Where to look: a moment of the trace, or its end for what the whole trace shows; and a device
  /// if one is concerned.
  std::uint64_t time = 0;
  std::uint32_t device = 0;
  bool has_device = true;
};

/// Returns a word for tables and tests, such as "fragmented".
[[nodiscard]] std::string_view name(Finding::Kind kind) noexcept;

/// Times at which a pool grew while one stream had not passed memory that was freed on it. One row
/// for each line that freed and each line that asked.
struct BlockedReuse {
  std::uint64_t first_time = 0, times = 0, grown = 0;
  /// Bytes of the growth that the pending memory could have served.
  std::uint64_t avoidable = 0;
  /// The most that was pending at one time, in ranges that the request would have fit into.
  std::uint64_t pending = 0;
  std::uint32_t resource = 0, tag = 0, site = 0;  // of the requests
  std::uint32_t stream = 0, free_site = 0;
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
