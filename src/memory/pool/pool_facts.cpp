// Statistics of a pool, and the error messages of failed requests.

#include <algorithm>
#include <atomic>
#include <mutex>

#include "memory/pool/pool.hpp"

namespace tern::pool {

PoolStatistics Pool::pool_statistics() noexcept {
  if (is_forked()) return {};
  PoolStatistics now = sums();
  const std::lock_guard lock(ranges_mutex_);
  now.requested_bytes = ranges_.requested_bytes();
  return now;
}

PoolStatistics Pool::sums() noexcept {
  PoolStatistics now;
  for_each_cache([&](StreamCache& cache) {
    const std::lock_guard lock(cache.lock);
    const StreamCache::Counts& counts = cache.counts;
    now.live_bytes += counts.live_bytes;
    now.cached_bytes += cache.bytes() + counts.slack_bytes;
    now.cache_hits += counts.cache_hits();
    now.own_in_flight_hits += counts.own_in_flight_hits;
    now.available_hits += counts.available_hits;
    now.steals += counts.steals;
    now.grown_hits += counts.grown_hits;
    now.remapped_hits += counts.remapped_hits;
    now.known_refusals += counts.known_refusals;
  });
  {
    const std::lock_guard lock(ranges_mutex_);
    now.in_flight_bytes = ranges_.in_flight_granules() * granule_bytes;
    now.available_bytes = ranges_.available().total() * granule_bytes;
  }
  now.held_bytes = held_bytes_.load(std::memory_order_relaxed);
  now.unmapped_bytes = unmapped_bytes_.load(std::memory_order_relaxed);
  now.limit_bytes = limit_bytes_.load(std::memory_order_relaxed);
  now.peak_held_bytes = peak_held_bytes_.load(std::memory_order_relaxed);
  now.polls = polls_.load(std::memory_order_relaxed);
  now.seals = seals_.load(std::memory_order_relaxed);
  now.host_waits = host_waits_.load(std::memory_order_relaxed);
  now.grows = grows_.load(std::memory_order_relaxed);
  now.trims = trims_.load(std::memory_order_relaxed);
  now.pages_moved = pages_moved_.load(std::memory_order_relaxed);
  now.pages_created = pages_created_.load(std::memory_order_relaxed);
  now.pages_released = pages_released_.load(std::memory_order_relaxed);
  now.page_calls = page_calls_.load(std::memory_order_relaxed);
  now.aliases = alias_count_.load(std::memory_order_relaxed);
  return now;
}

Statistics Pool::statistics() noexcept {
  Statistics now;
  std::uint64_t allocations = 0;
  std::uint64_t peaks = 0;
  for_each_cache([&](StreamCache& cache) {
    const std::lock_guard lock(cache.lock);
    const StreamCache::Counts& counts = cache.counts;
    now.live_bytes += counts.live_bytes;
    now.requests += counts.requests();
    now.refusals += counts.refusals;
    now.frees += counts.frees;
    allocations += counts.allocations;
    now.reuses += counts.allocations - counts.grown_hits - counts.remapped_hits;
    peaks += counts.peak_live_bytes;
  });
  now.live_blocks = allocations - std::min(allocations, now.frees);
  const std::lock_guard lock(ranges_mutex_);
  now.pending_bytes = ranges_.in_flight_granules() * granule_bytes;
  now.reserved_bytes = held_bytes_.load(std::memory_order_relaxed);
  now.free_bytes = now.reserved_bytes - std::min(now.reserved_bytes, now.live_bytes);
  now.largest_free_bytes = ranges_.largest_available() * granule_bytes;
  // Two upper bounds of the true peak: the sum of the exact peaks of all streams, and the peak of
  // the bytes that were live or cached. The smaller one is closer.
  now.peak_live_bytes = std::min<std::uint64_t>(peaks, peak_outside_bytes_);
  return now;
}

Fragmentation Pool::fragmentation() noexcept {
  if (is_forked()) return {};
  const PoolStatistics all = pool_statistics();
  Fragmentation now = fragmentation(all);
  now.waste_bytes = all.live_bytes - std::min(all.live_bytes, all.requested_bytes);
  return now;
}

namespace {

/// Returns the largest request for which a range of `bytes` suffices: requests are rounded up.
std::size_t largest_request(std::size_t bytes) noexcept {
  while (bytes > 0 && granted_bytes(bytes) > bytes) {
    bytes -= bytes >= min_large_bytes ? bytes % page_bytes : granule_bytes;
  }
  return bytes;
}

}  // namespace

Fragmentation Pool::fragmentation(const PoolStatistics& all) noexcept {
  Fragmentation now;
  now.free_bytes = all.held_bytes - std::min(all.held_bytes, all.live_bytes);
  const std::lock_guard lock(ranges_mutex_);
  now.largest_now = largest_request(ranges_.available().exact_largest() * granule_bytes);
  now.largest_satisfiable = now.largest_now;
  const std::size_t most =
      all.limit_bytes != 0 ? all.limit_bytes : std::max(all.held_bytes, device_.info().total_bytes);
  const std::size_t room = most - std::min(most, all.held_bytes);
  if (has_pages_) {
    now.free_page_bytes = ranges_.free_pages() * page_bytes + all.unmapped_bytes;
    now.largest_satisfiable =
        std::max(now.largest_now, now.free_page_bytes + room / page_bytes * page_bytes);
  } else {
    now.free_page_bytes = now.largest_now;
    // Free segments can be returned to the driver to make room for one of another size.
    const std::size_t whole = ranges_.whole_granules() * granule_bytes;
    now.largest_satisfiable =
        std::max(now.largest_now, room / granule_bytes * granule_bytes + whole);
  }
  if (all.limit_bytes != 0) {
    const std::size_t below = all.limit_bytes - std::min(all.limit_bytes, all.live_bytes);
    now.largest_satisfiable = std::min(now.largest_satisfiable, below);
  }
  now.largest_satisfiable = largest_request(now.largest_satisfiable);
  return now;
}

bool Pool::check_invariants() noexcept {
  const PoolStatistics now = pool_statistics();
  const std::lock_guard growth(growth_mutex_);
  const std::lock_guard lock(ranges_mutex_);
  const Ranges::Census census = ranges_.count();
  if (!census.check_invariants) return false;
  if (census.held * granule_bytes != now.live_bytes + now.cached_bytes) return false;
  const std::uint64_t granules =
      census.held + census.in_flight + census.available + census.lent - census.in_aliases;
  return granules * granule_bytes + now.unmapped_bytes == now.held_bytes;
}

// Chooses the message by the cause: no recycled memory, device full, above the limit, memory in
// flight, fragmentation, or limit reached.
Failure Pool::refusal(const Search& search) noexcept {
  const PoolStatistics now = sums();
  const Fragmentation pieces = fragmentation(now);
  const std::size_t bytes = search.granules * granule_bytes;
  // The largest number of bytes that the limit allows, in whole pages or granules.
  const std::size_t most = now.limit_bytes / (has_pages_ ? page_bytes : granule_bytes) *
                           (has_pages_ ? page_bytes : granule_bytes);
  const bool is_in_pieces =
      now.live_bytes <= now.limit_bytes && bytes <= now.limit_bytes - now.live_bytes;
  const char* text =
      "a pool on '{device}' cannot allocate {requested}: {live} of {limit} are in use. Free "
      "something, raise the limit, or ask for less.";
  if (search.request.only_recycled) {
    text =
        "a pool on '{device}' cannot allocate {requested}: the stream has not freed enough itself, "
        "and the request allows no other memory.";
  } else if (search.reason && search.reason->number("addresses")) {
    text =
        "a pool on '{device}' cannot allocate {requested}: it holds {held}, of which {live} are in "
        "use, and the driver has no {addresses} of contiguous addresses left. Free something, or "
        "ask for less.";
  } else if (now.limit_bytes == 0) {
    text =
        "a pool on '{device}' cannot allocate {requested}: it holds {held}, of which {live} are in "
        "use, and the driver rejects more with {free} of {total} free. Free something, or ask for "
        "less.";
  } else if (bytes > most) {
    // Report the excess: rounded to a tenth of a unit, size and limit may look the same.
    text = has_pages_
               ? "a pool on '{device}' cannot allocate {requested}, which needs {would_grant}: its "
                 "limit of {limit} allows {most} in pages of 2.0 MiB, {above} too few, even if "
                 "everything is freed. Raise the limit, or ask for less."
               : "a pool on '{device}' cannot allocate {requested}, which needs {would_grant}: the "
                 "request exceeds its limit of {limit} by {above}, even if everything is freed. "
                 "Raise the limit, or ask for less.";
  } else if (now.in_flight_bytes >= bytes) {
    text =
        "a pool on '{device}' cannot allocate {requested} now: {live} of {limit} are in use, and "
        "{in_flight} more are in flight. Wait for their streams, or allow the request to wait.";
  } else if (search.reason) {
    text =
        "a pool on '{device}' cannot allocate {requested}: {live} of {limit} are in use, but the "
        "driver rejects more with {free} of {total} free. Free something, or ask for less.";
  } else if (is_in_pieces) {
    text =
        "a pool on '{device}' cannot allocate {requested} in one piece: {live} of {held} held are "
        "in "
        "use, the largest free piece has {largest_now}, and the limit of {limit} allows {room} "
        "more, "
        "so at most {largest_satisfiable} fit. Ask for less at a time, or raise the limit.";
  }
  Failure refused(ErrorCode::out_of_memory, text, search.request.site);
  refused.with("device", device_.spec())
      .with_bytes("requested", search.request.bytes)
      .with_bytes("would_grant", bytes)
      .with_bytes("live", now.live_bytes)
      .with_bytes("cached", now.cached_bytes)
      .with_bytes("in_flight", now.in_flight_bytes)
      .with_bytes("held", now.held_bytes)
      .with_bytes("limit", now.limit_bytes)
      .with_bytes("free_pages", pieces.free_page_bytes)
      .with_bytes("largest_now", pieces.largest_now)
      .with_bytes("largest_satisfiable", pieces.largest_satisfiable)
      .with("tag", search.request.tag.name());
  add_free_and_total(search, now, refused);
  if (now.limit_bytes != 0 && bytes > most) {
    return refused.with_bytes("most", most).with_bytes("above", bytes - std::min(bytes, most));
  }
  if (!search.reason) {
    if (is_in_pieces) {
      refused.with_bytes("room", now.limit_bytes - std::min(now.limit_bytes, now.held_bytes));
    }
    return refused;
  }
  // Report the driver's code and call, as in the driver's own failure.
  if (const auto code = search.reason->number("code")) refused.with("code", *code);
  if (const auto missing = search.reason->number("addresses")) {
    refused.with_bytes("addresses", *missing);
  }
  if (const auto call = search.reason->string("call")) refused.with("call", *call);
  return refused;
}

void Pool::add_free_and_total(const Search& search, const PoolStatistics& now,
                              Failure& refused) noexcept {
  // Report the device's free memory if the driver failed or there is no limit. Otherwise report the
  // limit, which avoids a driver call.
  if (now.limit_bytes != 0 && !search.reason) {
    const std::size_t free = now.limit_bytes - std::min(now.limit_bytes, now.live_bytes);
    refused.with_bytes("free", free).with_bytes("total", now.limit_bytes);
    return;
  }
  const Result<MemoryInfo> memory = device_.try_memory();
  refused.with_bytes("free", memory ? memory->free_bytes : 0)
      .with_bytes("total", memory ? memory->total_bytes : device_.info().total_bytes);
}

}  // namespace tern::pool
