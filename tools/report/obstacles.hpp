// What stood in the way of a request: pieces of free memory with live blocks between them, and
// memory that streams had freed but not passed.
//
// A trace has the addresses of blocks, so the memory of a resource at a moment is known where
// blocks are or were. Memory that a resource got from the driver and never used is not seen.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tools/report/trace_summary.hpp"

namespace tern::tools {

/// A request that a resource could not serve from the memory that it held.
struct Moment {
  static constexpr std::uint32_t no_stream = UINT32_MAX;

  std::uint64_t time = 0, requested = 0;
  std::uint32_t resource = 0, stream = 0;
};

struct Obstacles {
  /// Ranges that blocks used before the moment, that no block used at the moment, and that were not
  /// pending.
  std::uint64_t free_ranges = 0, largest_free = 0;
  /// Live blocks with a free range on both sides, by tag and line, the largest first.
  std::vector<TraceSummary::Share> between = {};

  /// Memory that was pending. Only ranges that the request would have fit into, and not those that
  /// the stream of the request freed itself.
  struct Pending {
    std::uint32_t stream = 0;
    std::uint64_t bytes = 0;
    /// Of the blocks with the most bytes: their tag, the line that allocated them, and the line
    /// that freed them.
    std::uint32_t tag = 0, site = 0, free_site = 0;
  };
  std::vector<Pending> pending = {};  // the largest first
};

/// Returns the obstacles of each moment. The moments are sorted by time. Takes a time in proportion
/// to the blocks of the trace for each of the moments.
[[nodiscard]] std::vector<Obstacles> obstacles_at(const TraceSummary& summary,
                                                  std::span<const Moment> moments);

}  // namespace tern::tools
