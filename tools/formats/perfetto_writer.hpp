// Writes a memory trace for Perfetto (https://ui.perfetto.dev), which shows large traces in a
// browser.
//
// A device is a group of tracks: counters of live and held bytes, live bytes of each tag, refused
// requests, and for each stream its copies, launches and waits. A thread is a track of ranges and
// of waits of the host.

#pragma once

#include "tools/formats/output.hpp"
#include "tools/report/trace_summary.hpp"

namespace tern::tools {

/// `start_unix_ns` is the system clock when the trace began.
void write_perfetto_trace(const TraceSummary& summary, std::uint64_t start_unix_ns, Output& out);

}  // namespace tern::tools
