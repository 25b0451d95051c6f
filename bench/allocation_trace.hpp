// Allocation traces that stand for programs: training, inference, tables, and the worst case of a
// pool that cannot move pages. They are made from a seed, the same everywhere.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace tern::bench {

struct TraceStep {
  /// Counts blocks from 0; a block is freed by the step that names it again.
  std::uint32_t block = 0;
  std::uint32_t stream = 0;
  /// 0: free.
  std::size_t bytes = 0;
};

struct AllocationTrace {
  std::string_view name;
  std::vector<TraceStep> steps = {};
  std::uint32_t block_count = 0;
  std::uint32_t stream_count = 1;
};

/// Training of a language model, forward, backward and optimizer, with batches of varying length.
/// `scale` (1, 2 or 4) divides batch, width and vocabulary, so memory shrinks with its square.
[[nodiscard]] AllocationTrace train_varlen(std::size_t scale = 1);
/// Inference whose requests hold caches that grow by copying.
[[nodiscard]] AllocationTrace growing_kv_cache();
/// Tables made from tables on four streams.
[[nodiscard]] AllocationTrace multi_stream_etl();
/// Free blocks of 32 MiB, none beside another, and then blocks of 48 MiB.
[[nodiscard]] AllocationTrace checkerboard();

struct TraceFacts {
  std::size_t allocations = 0;
  std::size_t distinct_sizes = 0;
  /// The most bytes that were asked for and not freed.
  std::size_t peak_bytes = 0;
  std::size_t left_blocks = 0;
};
[[nodiscard]] TraceFacts facts_of(const AllocationTrace& trace);

}  // namespace tern::bench
