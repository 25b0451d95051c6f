#include "tools/report/wait_chain.hpp"

#include <algorithm>

namespace tern::tools {

WaitChain wait_chain(const TraceSummary& summary, std::uint32_t stream, std::uint64_t time) {
  WaitChain chain;
  // A stream waits for work that was submitted before the wait. So the waits of a chain become
  // earlier, and a chain has no cycle.
  std::uint64_t submitted = time + 1;
  const auto is_open = [&](const auto& one) {
    return one.stream == stream && one.time < submitted && one.over > time;
  };
  while (true) {
    const auto call = std::ranges::find_if(summary.host_calls, is_open);
    const auto wait = std::ranges::find_if(summary.waits, is_open);
    const bool has_call = call != summary.host_calls.end(), has_wait = wait != summary.waits.end();
    if (has_call && (!has_wait || call->time <= wait->time)) {
      chain.call = &*call;
      return chain;
    }
    if (!has_wait || chain.links.size() == WaitChain::max_links) return chain;
    const auto is_same = [&](const TraceSummary::Wait& one) {
      return one.stream == stream && one.waits_for == wait->waits_for && one.site == wait->site;
    };
    const auto times = std::ranges::count_if(summary.waits, is_same);
    chain.links.push_back({stream, wait->waits_for, wait->site, static_cast<std::uint64_t>(times)});
    stream = wait->waits_for;
    submitted = wait->time;
  }
}

}  // namespace tern::tools
