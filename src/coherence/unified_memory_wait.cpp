// The part of UnifiedCore that waits until memory can be allocated, for leases with a LeaseWait.
// Other waits: of the host for streams in unified_slow_path.cpp (try_settle_host), for other leases
// in unified_core.cpp (try_claim_range).

#include <algorithm>
#include <chrono>
#include <mutex>
#include <optional>
#include <thread>

#include "coherence/eviction_request.hpp"
#include "coherence/totals.hpp"
#include "coherence/unified_core.hpp"

namespace tern {
namespace {

using Clock = std::chrono::steady_clock;

// Memory becomes available when a lease of any buffer closes, a stream passes a free, or other code
// releases a charge of the same budget. None of them checks for waiting threads, so that closing a
// lease stays cheap. A waiting thread therefore polls.
constexpr std::chrono::nanoseconds first_pause = std::chrono::microseconds(20);
constexpr std::chrono::nanoseconds longest_pause = std::chrono::milliseconds(2);

}  // namespace

Result<RawLease> UnifiedCore::try_open_with_time(Wanted wanted, unsigned place) noexcept {
  std::optional<Clock::time_point> deadline;
  if (!wanted.wait.is_forever()) {
    const Clock::time_point now = Clock::now();
    // If the deadline is beyond the range of the clock, wait forever.
    const std::chrono::nanoseconds time(wanted.wait.nanoseconds());
    if (time < Clock::time_point::max() - now) deadline = now + time;
  }
  bool has_waited = false;
  int hopeless = 0;  // consecutive attempts that cannot succeed later
  for (std::chrono::nanoseconds pause = first_pause;; pause = std::min(2 * pause, longest_pause)) {
    // Nothing is claimed between two attempts, so two waiting threads do not block each other.
    const std::uint64_t refused_before = EvictionRequest::refused_by_thread();
    Result<RawLease> opened = try_open_once(wanted, place);
    if (opened || !is_shortage(opened.failure())) return opened;
    // A budget is read while other threads change it, so one negative answer may be wrong. Two in a
    // row are taken as final.
    hopeless = may_fit_later(opened.failure()) ? 0 : hopeless + 1;
    if (hopeless == 2) return opened;
    const Clock::time_point now = Clock::now();
    if (deadline && now >= *deadline) return opened;
    {
      PressureTotals& totals = PressureTotals::instance();
      const std::lock_guard lock(totals.mutex);
      if (!has_waited && hopeless == 0) ++totals.statistics.waited_requests;
      // The request continues, so its failures so far do not count as refused.
      totals.statistics.refused_requests -= EvictionRequest::refused_by_thread() - refused_before;
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
