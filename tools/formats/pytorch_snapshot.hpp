// Reads and writes PyTorch memory snapshots: what torch.cuda.memory._dump_snapshot() writes, and
// what torch.cuda.memory._snapshot() returns, as a pickle.
//
// A snapshot has the segments of the caching allocator with their blocks at one moment, and for
// each device a list of the events before that moment. Blocks have the bytes that were requested:
// events do not say how many bytes the allocator granted. A block is live until its free is
// requested, as in torch.cuda.memory_allocated().

#pragma once

#include <string>
#include <string_view>

#include "tern/core/result.hpp"
#include "tools/formats/output.hpp"
#include "trace/memory_trace.hpp"

namespace tern::tools {

/// Fails with file if the file cannot be read, and with bad_format if it is not a snapshot. A list
/// of events is a ring in PyTorch: blocks whose allocation it has lost are allocated when the trace
/// begins.
[[nodiscard]] Result<trace::MemoryTrace> try_read_pytorch_snapshot(const std::string& path);

/// Reads the bytes of a file. Failures have a field `path`, which the caller adds.
[[nodiscard]] Result<trace::MemoryTrace> try_parse_pytorch_snapshot(std::string_view bytes);

/// Writes the blocks of a trace as a snapshot that PyTorch's viewers read. A trace does not say
/// where the memory of a pool is, so a segment is a range of addresses that blocks have used
/// without a gap. Ranges, copies, launches and waits have no place in a snapshot.
void write_pytorch_snapshot(const trace::MemoryTrace& trace, Output& out);

}  // namespace tern::tools
