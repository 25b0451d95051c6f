// Lines whose live memory grows over the whole recording, whether or not it is freed at the end.
//
// The allocations of a device divide the recording into eight parts with equal counts. The floor of
// a line in a part is the least memory of the line that was live in the part, so memory that a step
// allocates and frees does not count. Frees after the last allocation of the device are not seen:
// they are the end of the program.

#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tools/report/trace_summary.hpp"

namespace tern::tools {

struct LineGrowth {
  static constexpr std::size_t parts = 8;

  std::uint32_t device = 0, tag = 0, site = 0;
  std::array<std::uint64_t, parts> floors = {};
  /// Live at the end of the first part in which the line had blocks.
  std::uint64_t first_time = 0, first_bytes = 0, first_blocks = 0;
  /// Live when the device allocated its last block.
  std::uint64_t time = 0, bytes = 0, blocks = 0;
  /// Of these, what was not freed when the recording ended, and when the last one was freed.
  std::uint64_t kept_blocks = 0, freed_time = 0;
  /// The device freed at least a quarter of the blocks that it allocated, before its last
  /// allocation: the program repeats something.
  bool is_in_loop = false;

  [[nodiscard]] std::uint64_t growth() const noexcept { return floors.back() - floors.front(); }
};

/// Returns the lines whose floors never fall and rise at least six times, and which have at least
/// LineGrowth::parts live blocks at the end. The largest growth first.
[[nodiscard]] std::vector<LineGrowth> line_growth(const TraceSummary& summary);

}  // namespace tern::tools
