// Reads a file with memory events, whatever its format. Every command that takes such a file reads
// it here.

#pragma once

#include <string>

#include "tern/core/result.hpp"
#include "trace/memory_trace.hpp"

namespace tern::tools {

/// Reads a recording of Tern or a log of RMM. Fails like MemoryTrace::try_read() and
/// try_read_rmm_log().
[[nodiscard]] Result<trace::MemoryTrace> try_read_trace_file(const std::string& path);

}  // namespace tern::tools
