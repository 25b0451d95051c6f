// Reads a log of RMM's logging_resource_adaptor as a memory trace, so that people can look at the
// memory of a program that does not use Tern.
//
// The log is CSV with the columns Thread, Time, Action, Pointer, Size and Stream. It has times of
// the day, so a log may not be longer than a day. It has no tags, no lines and no devices.

#pragma once

#include <string>

#include "tern/core/result.hpp"
#include "trace/memory_trace.hpp"

namespace tern::tools {

/// Returns whether the file begins like a log of RMM.
[[nodiscard]] bool is_rmm_log(const std::string& path);

/// Fails with file if the file cannot be read, and with invalid_argument for a line that is not as
/// described.
[[nodiscard]] Result<trace::MemoryTrace> try_read_rmm_log(const std::string& path);

}  // namespace tern::tools
