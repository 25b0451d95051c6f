// Reads a memory trace from a file of any format that Tern knows. The contents of the file
// determine the format; its name does not matter.

#pragma once

#include <string>

#include "tern/core/result.hpp"
#include "trace/memory_trace.hpp"

namespace tern::tools {

/// Reads a Tern memory trace, a PyTorch memory snapshot, or an RMM log. Fails with file if the
/// file cannot be read, and with invalid_argument or bad_format if it has another format or is
/// damaged.
[[nodiscard]] Result<trace::MemoryTrace> try_read_any(const std::string& path);

/// Returns true if the file begins like a recording of Tern.
[[nodiscard]] bool is_recording(const std::string& path);

}  // namespace tern::tools
