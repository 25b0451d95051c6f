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
  std::uint64_t time = 0, requested = 0;
  std::uint32_t resource = 0, stream = 0;
};

struct Obstacles {
  /// Ranges that blocks used before the moment and no block used at the moment.
  std::uint64_t free_ranges = 0, largest_free = 0;
  /// Live blocks with a free range on both sides, by tag and line, the largest first.
  std::vector<TraceSummary::Share> between = {};

  /// Memory that was freed on a stream that the host had not waited for since. Only ranges that the
  /// request would have fit into, and not those that the stream of the request freed itself.
  struct Pending {
    std::uint32_t stream = 0;
    std::uint64_t bytes = 0, blocks = 0;
    std::uint32_t site = 0, tag = 0;  // of the frees with the most bytes
  };
  std::vector<Pending> pending = {};  // the largest first
};

/// Returns the obstacles of each moment. The moments are sorted by time. Takes a time in proportion
/// to the blocks of the trace for each of the moments.
[[nodiscard]] std::vector<Obstacles> obstacles_at(const TraceSummary& summary,
                                                  std::span<const Moment> moments);

}  // namespace tern::tools
