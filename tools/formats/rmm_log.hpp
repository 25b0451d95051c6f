// Reads a log of RMM's logging_resource_adaptor as a memory trace, so that `tern report` shows the
// memory of a program that does not use Tern. Writes such a log, so that RMM can replay a
// recording.
//
// The log is CSV with the columns Thread, Time, Action, Pointer, Size and Stream. It has times of
// the day, so a log may not be longer than a day. It has no tags, no lines and no devices.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tern/core/result.hpp"
#include "tools/formats/output.hpp"
#include "trace/memory_trace.hpp"

namespace tern::tools {

/// Returns whether a file with this beginning is an RMM log.
[[nodiscard]] bool is_rmm_log(std::string_view beginning) noexcept;

/// Fails with file if the file cannot be read, and with invalid_argument for a line that is not
/// valid.
[[nodiscard]] Result<trace::MemoryTrace> try_read_rmm_log(const std::string& path);

/// Writes requests, frees and refusals. A log has the bytes that were granted, and it has neither
/// devices nor resources. Blocks from before the trace are allocated when the log begins. Returns
/// sentences about what the log cannot hold.
std::vector<std::string> write_rmm_log(const trace::MemoryTrace& trace, Output& out);

}  // namespace tern::tools
