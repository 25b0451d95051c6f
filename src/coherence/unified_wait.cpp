// The part of a unified buffer that waits for room, for leases that were given the time.

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "coherence/room.hpp"
#include "coherence/totals.hpp"
#include "coherence/unified_core.hpp"

namespace tern {
namespace {

using Clock = std::chrono::steady_clock;

// Room comes from leases of any buffer, streams that pass a free, and whoever else charges the same
// budget. None of them looks whether somebody waits, so that closing a lease costs what it costs:
// who waits asks again.
constexpr std::chrono::nanoseconds first_pause = std::chrono::microseconds(20);
constexpr std::chrono::nanoseconds longest_pause = std::chrono::milliseconds(2);

}  // namespace

Result<RawLease> UnifiedCore::try_open_with_time(Wanted wanted, unsigned place) noexcept {
  std::optional<Clock::time_point> deadline;
  if (!wanted.wait.is_forever()) {
    const Clock::time_point now = Clock::now();
    // What no clock will show is forever.
    if (wanted.wait.time() < Clock::time_point::max() - now) deadline = now + wanted.wait.time();
  }
  bool has_waited = false;
  int hopeless = 0;  // in a row
  for (std::chrono::nanoseconds pause = first_pause;; pause = std::min(2 * pause, longest_pause)) {
    // Between two attempts nothing is claimed: two who wait do not keep each other from going on.
    const std::uint64_t refused_before = Room::refused_by_thread();
    Result<RawLease> opened = try_open_once(wanted, place);
    if (opened || !is_shortage(opened.failure())) return opened;
    // A budget is read while others charge it: twice the same is true.
    hopeless = may_fit_later(opened.failure()) ? 0 : hopeless + 1;
    if (hopeless == 2) return opened;
    const Clock::time_point now = Clock::now();
    if (deadline && now >= *deadline) return opened;
    {
      PressureTotals& totals = PressureTotals::instance();
      const std::lock_guard lock(totals.mutex);
      if (!has_waited && hopeless == 0) ++totals.statistics.waited_requests;
      // It was not the last word.
      totals.statistics.refused_requests -= Room::refused_by_thread() - refused_before;
    }
    has_waited |= hopeless == 0;
    std::this_thread::sleep_for(deadline ? std::min(pause, *deadline - now) : pause);
    if (deadline) {
      wanted.wait = LeaseWait::up_to(
          std::chrono::duration_cast<std::chrono::nanoseconds>(*deadline - Clock::now()));
    }
  }
}

}  // namespace tern
