// Translates a recording of any device into a trace for the order checker.
//
// A recording has what the program submitted to streams and how streams and the host waited, but
// less than the trace of a simulated device. Where the recording does not show the order, the
// translation assumes that there is one. So a mistake may be missed, but a correct program has no
// findings:
//
// - All threads are one host. What a thread did before, in time, is ordered before.
// - A wait for a mark covers the work up to the device event that the library recorded for it. A
//   wait for an event of another library, or for a borrowed stream, covers all work so far.
// - Work of borrowed streams is left out, because other libraries order it.
// - Each block has bytes of its own. So the checker sees who uses or frees a block, but does not
//   judge how a pool reuses its memory.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trace/memory_trace.hpp"

namespace tern::tools {

struct RecordedOrder {
  /// The trace, as TraceReader::try_read_bytes() reads it. Call sites in it refer to texts of the
  /// recording.
  std::vector<std::byte> bytes = {};
  /// Copies, fills and declared uses that were translated.
  std::uint64_t judged = 0;
  /// Those that were left out: they use no memory of a recorded resource, or they copy rows with
  /// gaps between them, or their stream is borrowed.
  std::uint64_t outside_of_blocks = 0;
  std::uint64_t in_rows = 0;
  std::uint64_t on_borrowed_streams = 0;
  std::uint64_t streams = 0;
  /// Blocks that were not freed when the recording ended.
  std::uint64_t live_blocks = 0;
  std::uint64_t live_bytes = 0;
};

[[nodiscard]] RecordedOrder order_of(const trace::MemoryTrace& trace);

}  // namespace tern::tools
