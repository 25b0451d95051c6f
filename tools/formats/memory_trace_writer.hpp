// Writes a memory trace to a file of Tern's format, which docs/formats/memory-trace.md describes.

#pragma once

#include "tools/formats/output.hpp"
#include "trace/memory_trace.hpp"

namespace tern::tools {

/// Writes the header, all definitions and all events. A reader gets the same trace, except that
/// events of different threads with the same time may change their order.
void write_memory_trace(const trace::MemoryTrace& trace, Output& out);

}  // namespace tern::tools
