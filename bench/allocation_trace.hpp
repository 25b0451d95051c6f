// Allocation traces that imitate programs: training, inference, tables, and the worst case for a
// pool that cannot move pages. They are generated from a seed and are the same on every machine.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tern::bench {

struct TraceStep {
  /// The number of a block, from 0. The step that names the block again frees it.
  std::uint32_t block = 0;
  std::uint32_t stream = 0;
  /// 0 means free.
  std::size_t bytes = 0;
};

struct AllocationTrace {
  std::string name = {};
  std::vector<TraceStep> steps = {};
  std::uint32_t block_count = 0;
  std::uint32_t stream_count = 1;
};

/// Training of a language model (forward, backward, optimizer) with batches of varying length.
/// `scale` (1, 2 or 4) divides batch, width and vocabulary, so memory shrinks with the square of
/// `scale`.
[[nodiscard]] AllocationTrace train_varlen(std::size_t scale = 1);
/// Inference with caches that grow by copying.
[[nodiscard]] AllocationTrace growing_kv_cache();
/// Tables that are computed from other tables, on four streams.
[[nodiscard]] AllocationTrace multi_stream_etl();
/// Leaves free blocks of 32 MiB, no two of them adjacent, and then allocates blocks of 48 MiB.
[[nodiscard]] AllocationTrace checkerboard();

struct TraceFacts {
  std::size_t allocations = 0;
  std::size_t distinct_sizes = 0;
  /// The maximum of the requested bytes that were live at the same time, and the step that reached
  /// it first.
  std::size_t peak_bytes = 0;
  std::size_t peak_step = 0;
  std::size_t left_blocks = 0;
};
[[nodiscard]] TraceFacts facts_of(const AllocationTrace& trace);
/// Returns the requested bytes that are live before a step.
[[nodiscard]] std::size_t live_bytes_before(const AllocationTrace& trace, std::size_t step);

}  // namespace tern::bench
