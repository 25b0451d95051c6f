// How a pool gets memory from the driver, remaps pages and returns memory. is_past_goal() decides
// whether a pool holds so much that it steals before it grows.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <utility>

#include "memory/held_bound.hpp"
#include "memory/pool/pool.hpp"
#include "tern/core/bytes.hpp"

namespace tern::pool {
namespace {

constexpr std::uint64_t page_granules = PageStore::page_granules;
/// Under a limit every free page counts, so handles have one page, and the pool grows by 1/16 of
/// the held memory, at most 64 MiB, beyond what is needed.
constexpr std::uint64_t growth_share = 16;
constexpr std::uint64_t max_extra_pages = 64 * mib / page_bytes;
/// Without a limit the pool grows by large handles, because the driver charges per handle: by 1/32
/// of the held memory, at most 256 MiB and 1/32 of the device's memory in one handle. It grows
/// beyond what is needed only while it holds at most 1.06 times the peak of the bytes in use.
constexpr std::uint64_t large_growth_share = 32;
constexpr std::uint64_t max_handle_bytes = 256 * mib;
/// Pools that hold less than this always grow, because their growth costs little memory.
constexpr std::uint64_t min_footprint_goal = 256 * mib;
constexpr std::uint64_t device_share_of_handle = 32;
/// Idle memory is returned automatically if more than 256 MiB and more than a quarter of the held
/// memory were idle for a whole window (PoolOptions::idle_ms), until an eighth is left. Judged by
/// one moment, a program that frees everything between two steps would lose its memory each time.
constexpr std::size_t min_idle_bytes = 256 * mib;

std::uint64_t round_up_to(std::uint64_t value, std::uint64_t multiple) noexcept {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

std::uint64_t Pool::limit_pages(const Search& search) const noexcept {
  const std::size_t limit = limit_for(search);
  return limit == 0 ? UINT64_MAX : limit / page_bytes;
}

std::uint64_t Pool::max_handle_pages() const noexcept {
  if (limit_bytes_.load(std::memory_order_relaxed) != 0) return 1;
  const std::uint64_t total = device_.info().total_bytes;
  return std::max<std::uint64_t>(
      std::min(max_handle_bytes, total / device_share_of_handle) / page_bytes, 1);
}

std::uint64_t Pool::footprint_goal(std::uint64_t peak_bytes) noexcept {
  return peak_bytes + peak_bytes / 16;
}

bool Pool::is_past_goal(const Search& search) noexcept {
  const std::size_t limit = limit_bytes_.load(std::memory_order_relaxed);
  const std::size_t held = held_bytes_.load(std::memory_order_relaxed);
  if (limit != 0) return held >= limit / 4 * 3;
  if (!has_pages_) return false;
  const std::size_t bytes = search.granules * granule_bytes;
  const std::uint64_t goal = std::max(footprint_goal(note_live_peak(bytes)), min_footprint_goal);
  return held + bytes > goal;
}

std::uint64_t Pool::live_bytes() noexcept {
  std::uint64_t live = 0;
  for_each_cache([&](StreamCache& cache) {
    const std::lock_guard lock(cache.lock);
    live += cache.counts.live_bytes;
  });
  return live;
}

std::uint64_t Pool::note_live_peak(std::size_t more_bytes) noexcept {
  const std::uint64_t live = live_bytes() + more_bytes;
  const std::lock_guard lock(ranges_mutex_);
  peak_at_growth_ = std::max(peak_at_growth_, live);
  return peak_at_growth_;
}

std::uint64_t Pool::extra_pages(std::uint64_t need, std::uint64_t room,
                                const Search& search) noexcept {
  const std::uint64_t held = pages_->held_pages();
  if (search.may_exceed_budgets) return 0;
  if (limit_bytes_.load(std::memory_order_relaxed) != 0) {
    return std::min({held / growth_share, max_extra_pages, room - need});
  }
  const std::uint64_t wanted = std::min(held / large_growth_share, max_handle_bytes / page_bytes);
  const std::uint64_t goal =
      footprint_goal(note_live_peak(search.granules * granule_bytes)) / page_bytes;
  const std::uint64_t allowed = goal > held + need ? goal - held - need : 0;
  return std::min(wanted > need ? wanted - need : 0, allowed);
}

void Pool::note_held() noexcept {
  const auto set = [](std::atomic<std::uint64_t>& to, std::uint64_t value) {
    to.store(value, std::memory_order_relaxed);
  };
  std::size_t held = 0;
  if (has_pages_) {
    held = pages_->held_pages() * page_bytes;
    unmapped_bytes_.store((pages_->unmapped_pages() + stuck_pages_) * page_bytes,
                          std::memory_order_relaxed);
    set(page_calls_, pages_->driver_calls());
    set(pages_created_, pages_->created_pages());
    set(pages_released_, pages_->released_pages());
    set(alias_count_, aliases_->count());
  } else {
    held = segments_->held_bytes();
    set(page_calls_, segments_->driver_calls());
  }
  const bool is_changed = held_bytes_.exchange(held, std::memory_order_relaxed) != held;
  if (is_changed && trace::is_recording()) record_now();
  if (held > peak_held_bytes_.load(std::memory_order_relaxed)) {
    peak_held_bytes_.store(held, std::memory_order_relaxed);
  }
}

void Pool::record_now() noexcept {
  std::size_t in_flight = 0;
  {
    const std::lock_guard lock(ranges_mutex_);
    in_flight = ranges_.in_flight_granules() * granule_bytes;
  }
  record_held(recorded(), held_bytes_.load(std::memory_order_relaxed), live_bytes(), in_flight);
}

// Call with the lock of the ranges held.
Descriptor* Pool::cut_out(Descriptor& range, const Search& search) noexcept {
  const std::uint64_t begin = round_up_to(range.offset, search.alignment);
  ranges_.cut(range, begin, search.granules,
              [this](Descriptor& rest) { ranges_.put_available(rest); });
  note_change();
  return &range;
}

void Pool::put_back(Descriptor* list) noexcept {
  while (list != nullptr) ranges_.put_available(*std::exchange(list, list->next));
}

Descriptor* Pool::grow(Search& search) noexcept {
  // Another thread may have grown the pool while this one waited for the growth lock.
  if (Descriptor* range = take(search, Thoroughness::quick)) return range;
  if (search.failure) return nullptr;
  search.rung = &StreamCache::Counts::grown_hits;
  Descriptor* range = has_pages_ ? grow_pages(search) : grow_segments(search);
  if (range != nullptr) grows_.fetch_add(1, std::memory_order_relaxed);
  return range;
}

Result<Descriptor*> Pool::try_add_addresses(std::uint64_t pages) noexcept {
  {
    const std::lock_guard lock(ranges_mutex_);
    if (Result<void> prepared = ranges_.store().try_prepare(Ranges::descriptors_per_growth);
        !prepared) {
      return prepared.failure();
    }
  }
  const Result<std::uint64_t> offset = pages_->try_new_addresses(pages, 1);
  if (!offset) return offset.failure();
  const std::lock_guard lock(ranges_mutex_);
  Descriptor* last = ranges_.last();
  const bool touches =
      last != nullptr && last->end() == *offset && !pages_->begins_reservation(*offset);
  return &ranges_.add(*offset, pages * page_granules, touches ? last : nullptr);
}

Result<Descriptor*> Pool::try_take_addresses(std::uint64_t pages,
                                             std::uint64_t alignment) noexcept {
  const auto take = [&]() -> Result<Descriptor*> {
    const std::lock_guard lock(ranges_mutex_);
    if (Result<void> prepared = ranges_.store().try_prepare(Ranges::descriptors_per_growth);
        !prepared) {
      return prepared.failure();
    }
    return ranges_.take_unbacked(pages * page_granules, alignment * page_granules);
  };
  const auto add = [&](std::uint64_t count) -> Result<void> {
    const Result<Descriptor*> added = try_add_addresses(count);
    if (!added) return added.failure();
    const std::lock_guard lock(ranges_mutex_);
    ranges_.put_unbacked(**added);
    return {};
  };
  Result<Descriptor*> taken = take();
  if (!taken || *taken != nullptr) return taken;
  // The rest of a reservation may suffice together with free addresses next to it. If not, the rest
  // is still available to smaller requests.
  const std::uint64_t most = pages + alignment - 1;
  if (const std::uint64_t rest = pages_->room_pages(); rest > 0 && rest < most) {
    if (Result<void> added = add(rest); !added) return added.failure();
    taken = take();
    if (!taken || *taken != nullptr) return taken;
  }
  Result<void> added = add(most);
  if (!added && return_unused_reservations()) added = add(most);
  if (!added) return added.failure();
  return take();
}

bool Pool::return_unused_reservations() noexcept {
  bool has_returned = false;
  while (true) {
    Descriptor* unused = nullptr;
    {
      const std::lock_guard lock(ranges_mutex_);
      unused = ranges_.take_unbacked_alone([&](std::uint64_t offset, std::uint64_t granules) {
        return pages_->is_reservation(offset, granules);
      });
    }
    if (unused == nullptr) return has_returned;
    const Result<void> returned = pages_->try_unreserve(unused->offset);
    const std::lock_guard lock(ranges_mutex_);
    if (!returned) {
      ranges_.put_unbacked(*unused);
      return has_returned;
    }
    pages_->forget_reservation(unused->offset);
    ranges_.drop(*unused);
    has_returned = true;
  }
}

void Pool::give_up_addresses(Descriptor& range) noexcept {
  const std::uint64_t stuck = pages_->mapped_in(range.offset, range.size / page_granules);
  stuck_pages_ += stuck;
  const std::lock_guard lock(ranges_mutex_);
  if (stuck > 0) {
    ranges_.mark_stuck(range);
    range.next = std::exchange(stuck_, &range);
  } else if (&range == ranges_.last() && range.end() == pages_->next_address()) {
    // Return the newest addresses, so that the free range before them can be extended again.
    pages_->give_back_addresses(range.offset, range.size / page_granules);
    ranges_.drop(range);
  } else {
    ranges_.put_unbacked(range);
  }
}

void Pool::retry_stuck() noexcept {
  Descriptor* list = std::exchange(stuck_, nullptr);
  while (list != nullptr) {
    Descriptor& range = *std::exchange(list, list->next);
    const std::uint64_t pages = range.size / page_granules;
    const std::uint64_t before = pages_->mapped_in(range.offset, pages);
    pages_->unback_mapped(range.offset, pages);
    const std::uint64_t left = pages_->mapped_in(range.offset, pages);
    stuck_pages_ -= before - left;
    if (left > 0) {
      range.next = std::exchange(stuck_, &range);
      continue;
    }
    const std::lock_guard lock(ranges_mutex_);
    ranges_.put_unbacked(range);
  }
}

// Gets new pages for the request, plus some extra. If the last range is free, the new pages extend
// it. The steps: hold the last range, create pages, get addresses, map the pages, cut out the
// block. If a step fails, the steps before are undone.
Descriptor* Pool::grow_pages(Search& search) noexcept {
  retry_stuck();
  const std::uint64_t loose = pages_->unmapped_pages();
  const std::uint64_t held = pages_->held_pages();
  const std::uint64_t limit = limit_pages(search);
  const std::uint64_t room = loose + (limit > held ? limit - held : 0);
  const std::uint64_t addresses = pages_->room_pages();
  Descriptor* tail = nullptr;
  std::uint64_t need = PageStore::pages_for(search.granules);
  {
    // A free range at the end of the addresses is part of the block. Hold it while pages are added.
    const std::lock_guard lock(ranges_mutex_);
    if (Result<void> prepared = ranges_.store().try_prepare(Ranges::descriptors_per_growth);
        !prepared) {
      search.failure = prepared.failure();
      return nullptr;
    }
    const std::uint64_t end = pages_->next_address();
    Descriptor* last = ranges_.last();
    if (last != nullptr && last->state == State::available && last->end() == end &&
        !pages_->begins_reservation(end) && round_up_to(last->offset, search.alignment) < end) {
      const std::uint64_t needed_end =
          round_up_to(last->offset, search.alignment) + search.granules;
      const std::uint64_t missing = needed_end > end ? PageStore::pages_for(needed_end - end) : 0;
      if (missing <= addresses) {
        tail = last;
        need = missing;
        ranges_.take_whole(*tail);
        // The quick search of take() may have missed this range although it is large enough.
        if (need == 0) return cut_out(*tail, search);
      }
    }
  }
  const auto give_tail_back = [&] {
    if (tail == nullptr) return;
    const std::lock_guard lock(ranges_mutex_);
    ranges_.put_available(*std::exchange(tail, nullptr));
  };
  const auto fail = [&](const Failure& failure) -> Descriptor* {
    give_tail_back();
    pages_->release_unmapped(pages_->unmapped_pages() - std::min(loose, pages_->unmapped_pages()));
    note_held();
    search.fail_for(failure);
    return nullptr;
  };
  if (need > room) {
    give_tail_back();
    return nullptr;
  }
  const std::uint64_t handle_pages = max_handle_pages();
  std::uint64_t extra = extra_pages(need, room, search);
  if (tail != nullptr) extra = std::min(extra, addresses - need);
  Result<void> made = pages_->try_have_unmapped(need + extra, handle_pages);
  while (!made && extra > 0) {
    extra /= 4;
    made = pages_->try_have_unmapped(need + extra, handle_pages);
  }
  if (!made) return fail(made.failure());

  // Unmapped handles from an earlier failure may be larger than what is missing.
  std::uint64_t pages = pages_->whole_pages(need + extra);
  if (tail != nullptr && pages > addresses) {
    give_tail_back();
    need = PageStore::pages_for(search.granules);
    if (made = pages_->try_have_unmapped(need, handle_pages); !made) return fail(made.failure());
    pages = pages_->whole_pages(need);
  }
  const std::uint64_t alignment = std::max<std::uint64_t>(search.alignment / page_granules, 1);
  Result<Descriptor*> target =
      tail != nullptr ? try_add_addresses(pages) : try_take_addresses(pages, alignment);
  if (!target && tail == nullptr && pages > need) {
    pages_->release_unmapped(pages_->unmapped_pages() - std::min(loose, pages_->unmapped_pages()));
    if (made = pages_->try_have_unmapped(need, handle_pages); !made) return fail(made.failure());
    pages = pages_->whole_pages(need);
    target = try_take_addresses(pages, alignment);
  }
  if (!target) return fail(target.failure());
  Descriptor* range = *target;
  if (Result<void> backed = pages_->try_back(range->offset, pages); !backed) {
    give_up_addresses(*range);
    return fail(backed.failure());
  }
  note_held();
  const std::lock_guard lock(ranges_mutex_);
  if (tail != nullptr) {
    ranges_.join_held(*tail, *range);
    range = tail;
  }
  return cut_out(*range, search);
}

// Allocates a segment that is larger than the block, if possible. If the driver has no memory for
// it, tries smaller segments, down to the size of the block.
Descriptor* Pool::grow_segments(Search& search) noexcept {
  const std::size_t bytes = search.granules * granule_bytes;
  const std::size_t alignment =
      std::max({search.alignment * granule_bytes, std::size_t{4096}, device_.info().alignment});
  const std::size_t limit = limit_for(search);
  const std::size_t held = segments_->held_bytes();
  const std::size_t room = limit == 0 ? SIZE_MAX : limit > held ? limit - held : 0;
  if (bytes > std::min(room, max_request_bytes)) return nullptr;
  // Large blocks get segments of their own, which are returned with them.
  const bool is_own = bytes > SegmentStore::segment_bytes / 2 || search.may_exceed_budgets;
  std::size_t size = is_own ? bytes : std::min(SegmentStore::segment_bytes, room);
  size = size / granule_bytes * granule_bytes;
  {
    const std::lock_guard lock(ranges_mutex_);
    if (Result<void> prepared = ranges_.store().try_prepare(Ranges::descriptors_per_growth);
        !prepared) {
      search.failure = prepared.failure();
      return nullptr;
    }
  }
  Result<std::uint64_t> offset = segments_->try_add(size, alignment);
  while (!offset && size > bytes) {
    size = std::max(size / 4 / granule_bytes * granule_bytes, bytes);
    offset = segments_->try_add(size, alignment);
  }
  note_held();
  if (!offset) {
    search.fail_for(offset.failure());
    return nullptr;
  }
  const std::lock_guard lock(ranges_mutex_);
  return cut_out(ranges_.add(*offset, size / granule_bytes, nullptr), search);
}

// Collects free pages from available ranges, creates missing ones, and maps all of them to
// contiguous addresses. If a step fails, pages that were already unmapped stay loose and serve
// later requests.
Descriptor* Pool::remap(Search& search) noexcept {
  retry_stuck();
  std::uint64_t pages = PageStore::pages_for(search.granules);
  const std::uint64_t alignment = std::max<std::uint64_t>(search.alignment, page_granules);
  const std::uint64_t held = pages_->held_pages();
  const std::uint64_t limit = limit_pages(search);
  const std::uint64_t room = limit > held ? limit - held : 0;
  Descriptor* donors = nullptr;
  std::uint64_t found = pages_->unmapped_pages();
  const std::uint64_t loose = found;
  {
    const std::lock_guard lock(ranges_mutex_);
    // If there is no page to move, growing does the same and is simpler.
    const std::uint64_t free = ranges_.free_pages() + loose;
    if (free == 0 || (free < pages && pages - free > room)) return nullptr;
    while (found < pages && ranges_.free_pages() > 0) {
      if (Result<void> prepared = ranges_.store().try_prepare(Ranges::descriptors_per_growth);
          !prepared) {
        put_back(donors);
        search.failure = prepared.failure();
        return nullptr;
      }
      Descriptor* run = ranges_.take_handles(pages - found);
      found += run->size / page_granules;
      run->next = std::exchange(donors, run);
    }
    note_change();
  }
  const auto fail = [&](const Failure& failure) -> Descriptor* {
    note_held();
    search.fail_for(failure);
    const std::lock_guard lock(ranges_mutex_);
    put_back(donors);
    note_change();
    return nullptr;
  };
  // Create missing pages first: if that fails, nothing has been moved.
  if (found < pages) {
    if (Result<void> made = pages_->try_have_unmapped(loose + (pages - found), max_handle_pages());
        !made) {
      return fail(made.failure());
    }
  }
  if (donors != nullptr) {
    if (Result<void> dropped = aliases_->try_drop_idle(); !dropped) return fail(dropped.failure());
  }
  // Whole handles may have more pages than the block. All unmapped handles are used, unless they
  // suffice without the others.
  pages = loose >= pages ? pages_->whole_pages(pages) : std::max(pages, found);
  std::optional<Failure> refused;
  const auto unmap_donors = [&] {
    while (donors != nullptr && !refused) {
      Descriptor& run = *std::exchange(donors, donors->next);
      const std::uint64_t count = run.size / page_granules;
      const PageStore::Unbacked unbacked = pages_->unback(run.offset, count);
      const std::uint64_t moved = unbacked.pages;
      pages_moved_.fetch_add(moved, std::memory_order_relaxed);
      const std::lock_guard lock(ranges_mutex_);
      if (moved < count) {
        refused = unbacked.result.failure();
        // take() cannot fail here: the preparation for the target left a spare descriptor.
        Descriptor* kept = &run;
        if (moved > 0) {
          ranges_.cut(run, run.offset, moved * page_granules,
                      [&kept](Descriptor& rest) { kept = &rest; });
          ranges_.put_unbacked(run);
        }
        ranges_.put_available(*kept);
      } else {
        ranges_.put_unbacked(run);
      }
    }
  };
  Result<Descriptor*> addresses = try_take_addresses(pages, alignment / page_granules);
  if (!addresses && donors != nullptr) {
    // With the addresses of the donors there may be enough.
    unmap_donors();
    if (refused) return fail(*refused);
    addresses = try_take_addresses(pages, alignment / page_granules);
  }
  if (!addresses) return fail(addresses.failure());
  Descriptor* const target = *addresses;
  unmap_donors();
  Result<void> backed;
  if (!refused) backed = pages_->try_back(target->offset, pages);
  if (refused || !backed) {
    give_up_addresses(*target);
    return fail(refused ? *refused : backed.failure());
  }
  note_held();
  const std::lock_guard lock(ranges_mutex_);
  return cut_out(*target, search);
}

Result<void> Pool::try_hold(std::size_t bytes) noexcept {
  const Request request{.bytes = bytes};
  Search search(request, round_up(bytes, page_bytes) / granule_bytes, 1,
                *caches_[host_slot].load(std::memory_order_acquire));
  Descriptor* range = nullptr;
  {
    const std::lock_guard growth(growth_mutex_);
    range = grow(search);
  }
  if (range != nullptr) {
    range->next = nullptr;
    put_all_available(range);
    return {};
  }
  if (search.failure) return *search.failure;
  return search.reason ? *search.reason : refusal(search);
}

// --- Returning memory to the driver

// Returns whole handles or segments to the driver until at most `keep_bytes` are held, but not
// those that would leave fewer than `min_bytes`. Stops at the first error of the driver. Call with
// the growth lock held.
std::size_t Pool::release_free(std::size_t keep_bytes, std::size_t min_bytes) noexcept {
  const auto held = [this] {
    return has_pages_ ? pages_->held_pages() * page_bytes : segments_->held_bytes();
  };
  const std::size_t before = held();
  if (has_pages_) {
    const auto excess = [&] {
      return held() > keep_bytes ? (held() - keep_bytes + page_bytes - 1) / page_bytes : 0;
    };
    retry_stuck();
    pages_->release_unmapped(excess());
    while (excess() > 0) {
      Descriptor* run = nullptr;
      {
        const std::lock_guard lock(ranges_mutex_);
        if (!ranges_.store().try_prepare(Ranges::descriptors_per_growth)) break;
        if (ranges_.free_pages() > 0) run = ranges_.take_handles(excess());
        if (run != nullptr && held() - run->size * granule_bytes < min_bytes) {
          ranges_.put_available(*std::exchange(run, nullptr));
        }
        if (run != nullptr) note_change();
      }
      if (run == nullptr) break;
      // The handles are taken first: until then another thread may end the use of an alias of them.
      if (!aliases_->try_drop_idle()) {
        const std::lock_guard lock(ranges_mutex_);
        ranges_.put_available(*run);
        break;
      }
      const std::uint64_t count = run->size / page_granules;
      const std::uint64_t freed = pages_->unback(run->offset, count).pages;
      {
        const std::lock_guard lock(ranges_mutex_);
        Descriptor* kept = freed == count ? nullptr : run;
        if (freed > 0 && kept != nullptr) {
          ranges_.cut(*run, run->offset, freed * page_granules,
                      [&kept](Descriptor& rest) { kept = &rest; });
        }
        if (freed > 0) ranges_.put_unbacked(*run);
        if (kept != nullptr) ranges_.put_available(*kept);
      }
      if (pages_->release_unmapped(freed) < freed || freed < count) break;
    }
  } else {
    while (held() > keep_bytes) {
      Descriptor* segment = nullptr;
      {
        const std::lock_guard lock(ranges_mutex_);
        segment = ranges_.first_holder();
        if (segment != nullptr) ranges_.take_whole(*segment);
      }
      if (segment == nullptr) break;
      const Result<void> released = segments_->try_release(segment->offset);
      const std::lock_guard lock(ranges_mutex_);
      if (!released) {
        ranges_.put_available(*segment);
        break;
      }
      ranges_.drop(*segment);
    }
  }
  note_held();
  const std::lock_guard lock(ranges_mutex_);
  note_change();
  return before - std::min(before, held());
}

std::size_t Pool::trim(std::size_t keep_bytes) noexcept {
  if (!is_same_process(process_)) return 0;
  flush_caches();
  poll(SIZE_MAX);
  const std::lock_guard growth(growth_mutex_);
  const std::size_t released = release_free(keep_bytes, 0);
  if (released > 0) trims_.fetch_add(1, std::memory_order_relaxed);
  return released;
}

std::size_t Pool::idle_bytes() const noexcept {
  return has_pages_ ? ranges_.free_pages() * page_bytes
                    : ranges_.available().total() * granule_bytes;
}

void Pool::trim_if_idle() noexcept {
  if (!options_.auto_trim) return;
  const std::size_t held = held_bytes_.load(std::memory_order_relaxed);
  if (held <= std::max(min_idle_bytes, options_.initial_bytes)) return;
  std::size_t idle = 0;
  {
    const std::lock_guard lock(ranges_mutex_);
    const auto now = std::chrono::steady_clock::now();
    if (now - idle_since_ < std::chrono::milliseconds(options_.idle_ms)) return;
    idle_since_ = now;
    idle = std::exchange(min_idle_, idle_bytes());
  }
  if (idle <= min_idle_bytes || idle <= held / 4) return;
  const std::unique_lock growth(growth_mutex_, std::try_to_lock);
  if (!growth) return;
  const std::size_t keep = std::max(held - (idle - held / 8), options_.initial_bytes);
  if (release_free(keep, options_.initial_bytes) > 0) {
    trims_.fetch_add(1, std::memory_order_relaxed);
  }
}

void Pool::set_limit(std::size_t limit_bytes) noexcept {
  if (is_forked()) return;
  own_limit_bytes_.store(limit_bytes, std::memory_order_relaxed);
  update_limit();
}

void Pool::add_budget(const Budget& budget) {
  if (is_forked()) return;
  {
    const std::lock_guard lock(limits_mutex_);
    budgets_.push_back(&budget);
    has_budgets_.store(true, std::memory_order_relaxed);
  }
  update_limit();
}

void Pool::remove_budget(const Budget& budget) noexcept {
  if (is_forked()) return;
  {
    const std::lock_guard lock(limits_mutex_);
    budgets_.erase(std::ranges::find(budgets_, &budget));
    has_budgets_.store(!budgets_.empty(), std::memory_order_relaxed);
    if (budgets_.empty()) has_uncharged_.store(false, std::memory_order_relaxed);
  }
  update_limit();
}

void Pool::update_bound() noexcept {
  if (!is_forked()) update_limit();
}

void Pool::note_uncharged_request() noexcept {
  if (has_uncharged_.load(std::memory_order_relaxed)) return;
  has_uncharged_.store(true, std::memory_order_relaxed);
  update_limit();
}

std::size_t Pool::bound_bytes() const noexcept {
  if (budgets_.empty() || has_uncharged_.load(std::memory_order_relaxed)) return 0;
  const std::size_t bytes = held_bound(budgets_);
  if (bytes >= max_request_bytes || (has_pages_ && bytes >= total_bytes_)) return 0;
  // A block may need a whole page or segment, so the pool may hold one whatever the limit is.
  const std::size_t unit = has_pages_ ? page_bytes : SegmentStore::segment_bytes;
  return std::max(round_up_to(bytes, unit), unit);
}

void Pool::update_limit() noexcept {
  {
    const std::lock_guard lock(limits_mutex_);
    const std::size_t own = own_limit_bytes_.load(std::memory_order_relaxed);
    const std::size_t bound = bound_bytes();
    limit_bytes_.store(own == 0 || (bound != 0 && bound < own) ? bound : own,
                       std::memory_order_relaxed);
  }
  {
    const std::lock_guard lock(ranges_mutex_);
    note_change();
  }
  if (!is_over_limit()) return;
  flush_caches();
  poll(SIZE_MAX);
}

void Pool::return_excess() noexcept {
  if (!is_over_limit()) return;
  // Another thread that calls the driver comes back here at its next free.
  const std::unique_lock growth(growth_mutex_, std::try_to_lock);
  if (growth && release_free(limit_bytes_.load(std::memory_order_relaxed), 0) > 0) {
    trims_.fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace tern::pool
