// A WaitChain is why a stream is behind at a moment, as far as the recording shows it: the stream
// waits for another stream, which waits for another one, and the last one calls a host function.

#pragma once

#include <cstdint>
#include <vector>

#include "tools/report/trace_summary.hpp"

namespace tern::tools {

struct WaitChain {
  struct Link {
    std::uint32_t stream = 0, waits_for = 0, site = 0;
    std::uint64_t times = 0;  // in the whole recording
  };
  static constexpr std::size_t max_links = 8;

  std::vector<Link> links = {};
  /// The function that the stream at the end of the chain has to call, or null.
  const TraceSummary::HostCall* call = nullptr;
};

/// Returns the first wait of the stream that was not seen to be over at `time`, then that of the
/// stream that it waits for, and so on. `summary` must outlive the result.
[[nodiscard]] WaitChain wait_chain(const TraceSummary& summary, std::uint32_t stream,
                                   std::uint64_t time);

}  // namespace tern::tools
