// The part of a unified buffer that keeps its directory small.
//
// A directory is never blurred: that would call old bytes new. When it has too many pieces, small
// ones that a copy lacks are brought there now instead of when they are wanted, so that neighbours
// become alike and merge. Only if too many are left, because they are large, or because a copy
// cannot be brought up to date, does one place get everything and have it alone.

#include <new>
#include <vector>

#include "coherence/unified_core.hpp"
#include "core/no_host_memory.hpp"

namespace tern {
namespace {

/// Copying so much costs about as much as beginning to copy.
constexpr std::size_t most_small_bytes = 128 * 1024;

}  // namespace

Result<void> UnifiedCore::even_out(unsigned place, StreamRef stream, std::uint32_t own,
                                   CallSite site) {
  const ByteRange all{0, bytes()};
  for (unsigned to = 0; to < places_.size(); ++to) {
    if (!takes_part(to) || (places_[to].memory == host && !spilled_.empty())) continue;
    std::vector<ByteRange> small =
        ranges_where(all, [&](PlaceSet valid) { return !valid.empty() && !valid.has(to); });
    std::erase_if(small, [](ByteRange one) { return one.end - one.begin > most_small_bytes; });
    if (small.empty()) continue;
    const Result<void> brought = try_fetch({.range = all,
                                            .place = to,
                                            .stream = to == place ? stream : StreamRef{},
                                            .reason = TransferReason::reconcile,
                                            .own = own,
                                            .site = site,
                                            .parts = small});
    // Where it is refused, there are as many pieces as before. But what nobody had a lease for is
    // found once, and somebody has to be told.
    if (!brought && brought.failure().code() == ErrorCode::violation) return brought;
  }
  return {};
}

Result<void> UnifiedCore::try_reconcile(unsigned place, StreamRef stream, std::uint32_t own,
                                        CallSite site) noexcept try {
  {
    const std::lock_guard lock(mutex_);
    // Others' bytes are theirs: it is done when nobody else has any.
    if (validity_.size() < most_intervals || open_count_ > 1) return {};
  }
  if (Result<void> sound = even_out(place, stream, own, site); !sound) return sound;
  {
    // Only by a half, so that it is not the next one's turn again.
    const std::lock_guard lock(mutex_);
    if (validity_.size() <= most_intervals / 2) return {};
  }
  if (Result<void> fetched =
          try_fetch({{0, bytes_}, place, stream, TransferReason::reconcile, own, site});
      !fetched) {
    return fetched;
  }
  // What the place has, it alone has: forgetting copies is safe, and makes neighbours alike.
  const std::lock_guard lock(mutex_);
  PlaceSet others;
  for (unsigned other = 0; other < places_.size(); ++other) {
    if (other != place) others = others.with(other);
  }
  note_homeless_without(others);
  std::size_t at = 0;
  while (at < bytes()) {
    const ByteRange gap = validity_.first_unwritten(at, bytes());
    const std::size_t end = gap.begin == gap.end ? bytes() : gap.begin;
    validity_.apply(Access::discard, at, end, place);
    at = gap.begin == gap.end ? bytes() : gap.end;
  }
  return {};
} catch (const std::bad_alloc&) {
  return no_host_memory("the plan of a copy", site);
}

}  // namespace tern
