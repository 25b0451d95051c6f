// The part of UnifiedCore that limits the size of the directory.
//
// The directory is never approximated, because old bytes would then count as new. If it has too
// many intervals, small stale ranges are copied to the copies that lack them, earlier than needed,
// so that neighbouring intervals become equal and merge. If too many intervals are left, because
// they are large or because a copy cannot be updated, one place gets all bytes and becomes the only
// one that is up to date.

#include <mutex>
#include <new>
#include <vector>

#include "coherence/unified_core.hpp"
#include "core/no_host_memory.hpp"

namespace tern {
namespace {

/// Up to this size, starting a copy costs about as much as the copy itself.
constexpr std::size_t max_small_bytes = 128 * 1024;

}  // namespace

Result<void> UnifiedCore::even_out(unsigned place, StreamRef stream, std::uint32_t own,
                                   CallSite site) {
  const ByteRange all{0, bytes()};
  for (unsigned to = 0; to < copies_.count(); ++to) {
    if (!copies_.has_copy(to) || (copies_[to].memory == host && !spilled_.empty())) continue;
    std::vector<ByteRange> small =
        ranges_where(all, [&](PlaceSet valid) { return !valid.empty() && !valid.has(to); });
    std::erase_if(small, [](ByteRange one) { return one.end - one.begin > max_small_bytes; });
    if (small.empty()) continue;
    const Result<void> brought = try_fetch({.range = all,
                                            .place = to,
                                            .stream = to == place ? stream : StreamRef{},
                                            .reason = TransferReason::reconcile,
                                            .own = own,
                                            .site = site,
                                            .parts = small});
    // If a copy fails, the number of intervals just stays the same. A write without a lease,
    // however, is detected only once, so that failure has to be returned.
    if (!brought && brought.failure().code() == ErrorCode::violation) return brought;
  }
  return {};
}

Result<void> UnifiedCore::try_reconcile(unsigned place, StreamRef stream, std::uint32_t own,
                                        CallSite site) noexcept try {
  {
    const std::lock_guard lock(mutex_);
    // Ranges of other leases must not change, so nothing is done while another lease is open.
    if (copies_.directory().size() < max_intervals || leases_.count() > 1) return {};
  }
  if (Result<void> sound = even_out(place, stream, own, site); !sound) return sound;
  {
    // Down to half of the limit, so that the next access does not have to reconcile again.
    const std::lock_guard lock(mutex_);
    if (copies_.directory().size() <= max_intervals / 2) return {};
  }
  if (Result<void> fetched =
          try_fetch({{0, bytes_}, place, stream, TransferReason::reconcile, own, site});
      !fetched) {
    return fetched;
  }
  // The place now has everything. Marking the other copies as stale loses nothing, and makes
  // neighbouring intervals equal.
  const std::lock_guard lock(mutex_);
  PlaceSet others;
  for (unsigned other = 0; other < copies_.count(); ++other) {
    if (other != place) others = others.with(other);
  }
  copies_.keep_sole_copies(others);
  std::size_t at = 0;
  while (at < bytes()) {
    const ByteRange gap = copies_.directory().first_unwritten(at, bytes());
    const std::size_t end = gap.begin == gap.end ? bytes() : gap.begin;
    copies_.directory().apply(Access::discard, at, end, place);
    at = gap.begin == gap.end ? bytes() : gap.end;
  }
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory("the plan of a copy", site);
}

}  // namespace tern
