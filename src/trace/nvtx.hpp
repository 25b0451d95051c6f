// Shows ranges in profilers that understand NVTX, such as Nsight Systems.
//
// A profiler sets NVTX_INJECTION64_PATH to a library of its own. That library asks the program for
// a table of places, and writes the addresses of its functions there. Without a profiler, the
// functions below do nothing.

#pragma once

namespace tern::trace {

/// Begins a range of this thread. Ranges nest.
void push_profiler_range(const char* name) noexcept;
/// Ends the innermost range of this thread.
void pop_profiler_range() noexcept;

}  // namespace tern::trace
