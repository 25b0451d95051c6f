// The part of UnifiedCore that brings bytes up to date in a place: it plans the copies, queues
// them, and then lists the bytes as up to date. The directory changes only after all copies are
// queued, so a failure leaves it as it was.
//
// The directory is a Validity (validity.cpp): plan() chooses the stale bytes and their sources, and
// apply() makes other copies stale when a write lease opens.

#include <algorithm>
#include <mutex>
#include <new>
#include <span>
#include <vector>

#include "coherence/copy_stream.hpp"
#include "coherence/unified_core.hpp"
#include "core/no_host_memory.hpp"

namespace tern {

Result<void> UnifiedCore::try_fetch(const Fetch& fetch) noexcept try {
  FetchPlan plan{.reason = fetch.reason};
  if (Result<void> planned = try_plan_fetch(fetch, plan); !planned) return planned;
  if (plan.runs.empty()) return {};
  if (Result<void> queued = try_queue_fetch(fetch, plan); !queued) return queued;
  return try_record_fetch(fetch, plan);
} catch (const std::bad_alloc&) {
  return no_host_memory("the plan of a copy", fetch.site);
}

Result<void> UnifiedCore::try_plan_fetch(const Fetch& fetch, FetchPlan& plan) {
  const ByteRange range = fetch.range;
  const unsigned place = fetch.place;
  const std::uint32_t own = fetch.own;
  const CallSite site = fetch.site;
  const std::span<const ByteRange> wanted =
      fetch.parts.empty() ? std::span(&range, 1) : fetch.parts;
  bool is_in_file = false;
  {
    const std::lock_guard lock(mutex_);
    for (const ByteRange& one : wanted) is_in_file |= needs_spilled(one, PlaceSet::of(place));
  }
  if (is_in_file) {
    if (Result<void> back = try_unspill(site); !back) return back;
  }
  std::vector<ByteRange> leased;
  CopyCosts costs = costs_at(place, wanted);
  const std::lock_guard lock(mutex_);
  for (const Slot& lease : leases_.all()) {
    if (leases_.number_of(lease) == own || !lease.overlaps(range)) continue;
    leased.push_back(lease.range);
    if (Result<void> noted = try_note_export(lease); !noted) return noted;
    if (!lease.has_untracked_writer || lease.place == place) continue;
    // Nobody knows what an untracked writer has changed, so its range is copied again, whatever
    // the directory says.
    plan.untracked.push_back(
        {std::max(lease.range.begin, range.begin), std::min(lease.range.end, range.end)});
    plan.reason = TransferReason::untracked_write;
    if (!copies_.make_room()) return no_host_memory("a directory", site);
    copies_.directory().remove(plan.untracked.back().begin, plan.untracked.back().end, place);
  }
  costs.leased = leased;
  for (const ByteRange& one : wanted) {
    plan.gap_bytes += copies_.directory().plan(one.begin, one.end, place, costs, plan.runs);
  }
  if (plan.runs.empty()) return {};
  // Never overwrites bytes that a lease reads, not even with equal bytes.
  for (const Slot& lease : leases_.all()) {
    if (!lease.is_unlisted || leases_.number_of(lease) == own) continue;
    if (copies_[lease.place].memory != copies_[place].memory) continue;
    for (const CopyRun& run : plan.runs) {
      const ByteRange written{run.begin, run.end};
      if (copies_[run.source].memory == copies_[place].memory || !lease.overlaps(written)) continue;
      return refused(lease, {.range = written, .site = site});
    }
  }
  if (!copies_.make_room(plan.runs.size() + 1)) return no_host_memory("a directory", site);
  if (copies_[place].memory == host) copies_.in_flight().reserve(plan.runs.size());
  return {};
}

Result<void> UnifiedCore::try_queue_fetch(const Fetch& fetch, FetchPlan& plan) {
  const unsigned place = fetch.place;
  const StreamRef stream = fetch.stream;
  const CallSite site = fetch.site;
  std::vector<CopyRun>& runs = plan.runs;
  std::vector<Transfer>& moves = plan.moves;
  // The copies of one source after the other; usually there is only one.
  std::ranges::stable_sort(runs, {}, &CopyRun::source);
  for (std::size_t first = 0; first < runs.size();) {
    const unsigned source = runs[first].source;
    std::size_t behind = first;
    Transfer moved{.from = copies_[source].place,
                   .to = copies_[place].place,
                   .begin = runs[first].begin,
                   .reason = plan.reason,
                   .is_elided = copies_[source].memory == copies_[place].memory,
                   .site = site};
    for (; behind < runs.size() && runs[behind].source == source; ++behind) {
      moved.bytes += runs[behind].end - runs[behind].begin;
      moved.end = runs[behind].end;
    }
    const std::span<const CopyRun> some(runs.data() + first, behind - first);
    moved.runs = some.size();
    moves.push_back(moved);
    first = behind;
    if (moved.is_elided) continue;
    const StorageHandle& to = copies_.memory_of(place).storage;
    const StorageHandle& from = copies_.memory_of(source).storage;
    if (is_checked_ && copies_[source].memory == host) {
      for (const CopyRun& run : some) {
        if (Result<void> sound = check_sealed({run.begin, run.end}, site); !sound) {
          const std::lock_guard lock(mutex_);
          log_queued(std::span(moves).first(moves.size() - 1));
          return sound;
        }
      }
    }
    Result<CopyStream> runner = CopyStream{{}, stream};
    if (copies_[place].memory == host) {
      // Only streams of the source device reach both sides.
      runner = CopyStream::try_choose(copies_[source].device, *from, Access::read, to.get());
    } else if (!stream.id()) {
      runner = CopyStream::try_choose(copies_[place].device, *from, Access::read, to.get());
    }
    Result<void> queued =
        runner ? try_issue(some, to, from, runner->stream, site) : Result<void>(runner.failure());
    const std::lock_guard lock(mutex_);
    copies_.memory_of(place).note_stream_use(Access::discard);
    copies_.memory_of(source).note_stream_use(Access::read);
    if (!queued) {
      log_queued(std::span(moves).first(moves.size() - 1));
      return sync_failed(source, place, {moved.begin, moved.end}, queued.failure(), site);
    }
  }
  return {};
}

Result<void> UnifiedCore::try_record_fetch(const Fetch& fetch, const FetchPlan& plan) noexcept {
  const unsigned place = fetch.place;
  const CallSite site = fetch.site;
  const std::lock_guard lock(mutex_);
  // Other calls may have used up the reserved room. Nothing has changed yet.
  if (!copies_.make_room(plan.runs.size() + plan.untracked.size())) {
    log_queued(plan.moves);
    return no_host_memory("a directory", site);
  }
  for (const CopyRun& run : plan.runs) {
    copies_.directory().apply(Access::read, run.begin, run.end, place);
    if (copies_[place].memory != host) continue;
    const std::uint64_t stream_uses = copies_.memory_of(host).stream_uses;
    if (copies_[run.source].memory != host) {
      copies_.in_flight().add({{run.begin, run.end}, run.source, stream_uses});
    } else if (place == host) {
      copies_.in_flight().add_shared_use(stream_uses);
    }
  }
  copies_.in_flight().limit();
  // Bytes of an untracked writer do not count as up to date, so that the next read copies them
  // again.
  for (const ByteRange& one : plan.untracked) copies_.directory().remove(one.begin, one.end, place);
  if (plan.gap_bytes > 0) {
    log_.count([&](UnifiedStatistics& counts) { counts.merged_gap_bytes += plan.gap_bytes; });
  }
  for (const Transfer& moved : plan.moves) log_.add(moved);
  return {};
}

void UnifiedCore::log_queued(std::span<const Transfer> moves) noexcept {
  for (const Transfer& moved : moves) {
    if (!moved.is_elided) log_.add(moved);
  }
}

}  // namespace tern
