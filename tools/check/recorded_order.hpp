// Translates a recording of any device into a trace for the order checker.
//
// A recording contains the work that the program submitted to streams, and the waits of streams and
// of the host. It contains less than the trace of a simulated device. If the recording does not
// show in which order two operations ran, the translation assumes that they were ordered. So the
// checker may miss a mistake, but it has no findings in a correct program, unless the program
// captures work into graphs, whose launches a recording does not show:
//
// - All threads are one host. Calls of different threads are ordered by their times.
// - A wait for a mark covers the work up to the device event that the library recorded for the
//   mark. A wait for an event of another library, or for a borrowed stream, covers all work so far.
// - Work of borrowed streams is left out, because other libraries order it.
// - In the trace, no two blocks share bytes, even if the pool gave them the same address. So the
//   checker sees who uses or frees a block, but not how a pool reuses memory.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trace/memory_trace.hpp"

namespace tern::tools {

struct RecordedOrder {
  /// The trace, for TraceReader::try_read_bytes(). Its call sites point to texts of the recording,
  /// so the recording must outlive the trace.
  std::vector<std::byte> bytes = {};
  /// Number of copies, fills and declared uses that are in the trace.
  std::uint64_t judged = 0;
  /// Number of copies, fills and declared uses that were left out, by reason: they use no memory of
  /// a recorded resource, they copy rows with gaps between them, or their stream is borrowed.
  std::uint64_t outside_of_blocks = 0;
  std::uint64_t in_rows = 0;
  std::uint64_t on_borrowed_streams = 0;
  std::uint64_t streams = 0;
  /// Blocks that were not freed when the recording ended.
  std::uint64_t live_blocks = 0;
  std::uint64_t live_bytes = 0;
};

/// Translates the recording.
[[nodiscard]] RecordedOrder order_of(const trace::MemoryTrace& trace);

}  // namespace tern::tools
