// A HeldPeak explains the highest memory that the pools of a device held, where it is much more
// than was ever live: memory that was pending, or free in ranges that did not fit.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/report/trace_summary.hpp"

namespace tern::tools {

struct HeldPeak {
  std::uint32_t device = 0;
  std::uint64_t time = 0, held = 0;
  // At that time. They add up to the held memory.
  std::uint64_t live = 0, pending = 0, free = 0;
  std::uint64_t largest_free = 0;  // range; 0: unknown
  std::uint32_t stream = 0;        // most of the pending memory was freed on this stream
  std::uint64_t pending_on_stream = 0;

  /// Returns one sentence.
  [[nodiscard]] std::string text(const TraceSummary& summary) const;
};

/// Returns the devices whose pools held more than 1.25 times the peak of the live memory.
[[nodiscard]] std::vector<HeldPeak> held_peaks(const TraceSummary& summary);

}  // namespace tern::tools
