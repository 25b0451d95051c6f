// Shows ranges in profilers that understand NVTX, such as Nsight Systems.
//
// A profiler sets NVTX_INJECTION64_PATH to a library of its own. That library asks the program for
// a table of places, and writes the addresses of its functions there. Without a profiler, the
// functions below do nothing.

#pragma once

#include "tern/core/tag.hpp"

namespace tern::trace {

/// Begins a range of this thread. Ranges nest.
void push_profiler_range(const char* name) noexcept;
/// Ends the innermost range of this thread.
void pop_profiler_range() noexcept;

/// A range with the name of a tag, around work that calls the driver for tagged memory: a profiler
/// shows which memory the calls are for. Untagged memory has no range.
class TagRange {
 public:
  explicit TagRange(Tag tag) noexcept {
    if (tag != Tag()) begin(tag);
  }
  TagRange(const TagRange&) = delete;
  TagRange& operator=(const TagRange&) = delete;
  ~TagRange() {
    if (is_open_) pop_profiler_range();
  }

 private:
  void begin(Tag tag) noexcept;

  bool is_open_ = false;
};

}  // namespace tern::trace
