// Pool::find() decides what a request does: reuse, poll, remap, alias, grow, steal or wait. How a
// pool gets memory from the driver, remaps pages and returns memory, and is_past_goal(), which
// decides whether stealing and aliases come before growing: pool_driver_memory.cpp. Aliases:
// pool_alias.cpp.

#include "memory/pool/pool.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "core/no_host_memory.hpp"
#include "core/process.hpp"
#include "tern/core/bytes.hpp"
#include "trace/nvtx.hpp"

namespace tern::pool {
namespace {

/// A mark is recorded after this many freed blocks, or bytes of freed blocks. An event costs as
/// much as several requests, so while memory is plentiful large blocks count by their share of the
/// pool. A stream reuses its own blocks without a mark, so a single stream needs few: they bound
/// how much of the pool a second stream finds without an event.
constexpr std::size_t seal_blocks = 64;
constexpr std::uint64_t seal_granules = 32 * mib / granule_bytes;
constexpr std::uint64_t seals_per_pool = 256, seals_for_one_stream = 4;
/// Frees that the host has seen complete are settled after this many bytes were freed: at least as
/// many as are in flight, and 1/256 of the pool.
constexpr std::uint64_t settle_granules = mib / granule_bytes;
constexpr std::uint64_t settles_per_pool = 256;
/// If memory is short, streams are queried when this fraction of the free memory is in flight:
/// available ranges can be joined, and ranges in flight cannot.
constexpr std::size_t in_flight_share = 32;
/// Upper bound on the stream queries of one poll.
constexpr std::size_t max_questions_per_request = 16;
/// How often a request polls before it calls the driver or takes memory of another stream. The
/// polls take about 10 us, and a driver call takes 50 us or more. After each failure in a row,
/// twice as many requests skip the polls.
constexpr int polls_before_growth = 24;
constexpr std::uint32_t max_failed_awaits = 6;
/// The fraction of a device for which addresses are reserved at a time, because other code needs
/// addresses too, and the minimum.
constexpr std::size_t regions_per_device = 8;
constexpr std::size_t min_region_bytes = 64 * mib;
/// The fraction of the available memory that a stream's cache may hold, and the maximum.
constexpr std::size_t class_share = 64, larger_share = 32;
constexpr std::size_t max_class_bytes = 64 * mib, max_larger_bytes = 128 * mib;
/// In a pool without a limit all caches together keep at most this fraction of the held memory:
/// what they keep lies between other blocks. Each may keep a little in any case, and all may keep
/// more if threads contend for the lock of the ranges, or if the pool is small.
constexpr std::size_t class_share_of_pool = 256, larger_share_of_pool = 128;
constexpr std::size_t min_cache_bytes = 10 * mib, min_bounded_pool = 256 * mib;
/// The lock of the ranges is contended if one in so many changes had to wait for it. It counts as
/// uncontended again after a number of windows without that.
constexpr std::uint32_t changes_per_window = 256, changes_per_wait = 32, calm_windows = 64;
/// The bounds of the caches are computed again after this many changes, unless what they depend on
/// most has changed.
constexpr std::uint32_t changes_per_check = 16;

bool can_have_pages(const Device& device, const PoolOptions& options) {
  if (options.kind != MemoryKind::device) return false;
  return device.can(Capability::virtual_memory) && page_bytes % device.info().page_bytes == 0;
}

bool choose_pages(const Device& device, const PoolOptions& options) {
  const bool can = can_have_pages(device, options);
  if (options.backing == PoolBacking::pages && !can) {
    raise(Failure(ErrorCode::unsupported,
                  "a pool of {what} on '{device}' cannot use pages, which need device memory and "
                  "virtual memory. Use segments.")
              .with("what", name(options.kind))
              .with("device", device.spec()));
  }
  return can && options.backing != PoolBacking::segments;
}

std::uint64_t word_of(DeviceId device) noexcept {
  std::uint64_t word = 0;
  std::memcpy(&word, &device, sizeof device);
  return word;
}

/// In granules.
std::uint64_t requested_alignment(const Request& request) noexcept {
  return std::max<std::uint64_t>(request.alignment / granule_bytes, 1);
}

/// Every request reads these values, so they are written only when they change.
template <class Value>
void set(std::atomic<Value>& to, std::type_identity_t<Value> value) noexcept {
  if (to.load(std::memory_order_relaxed) != value) to.store(value, std::memory_order_relaxed);
}

Suballocation as_note(const Block& block) noexcept {
  return {block.address, block.bytes, block.generation.value()};
}

}  // namespace

Pool::Pool(const Resource& owner, Device device, const PoolOptions& options)
    : owner_(owner),
      device_(std::move(device)),
      device_id_(device_.id()),
      device_word_(word_of(device_id_)),
      options_(options),
      process_(process_generation()),
      wants_notes_(device_.info().wants_notes),
      host_shares_(options.kind != MemoryKind::device),
      has_pages_(choose_pages(device_, options)),
      total_bytes_(device_.info().total_bytes),
      poisoning_(host_shares_ || device_.can(Capability::host_access)),
      number_(trace::new_number()),
      ranges_(&owner, device_id_, has_pages_ ? PageStore::page_granules : 0),
      limit_bytes_(options.limit_bytes),
      own_limit_bytes_(options.limit_bytes) {
  if (has_pages_) {
    const std::size_t most = total_bytes_;
    pages_.emplace(device_, std::max(most / regions_per_device, std::min(most, min_region_bytes)),
                   poisoning_);
    ranges_.set_handles(pages_->handles());
    aliases_.emplace(*pages_);
  } else {
    segments_.emplace(device_, options.kind, poisoning_);
  }
  static_cast<void>(try_cache(host_slot).value());
  set_bounds({});
  note_change();
  start_listening();
}

void Pool::recording_changed(bool is_on) noexcept {
  is_plain_.store(!is_on && !wants_notes_ && !host_shares_ && !poisoning_.is_on(),
                  std::memory_order_relaxed);
  // A forked child takes no lock of the pool.
  if (is_on && !is_forked()) record_now();
}

Pool::~Pool() {
  stop_listening();
  if (is_same_process(process_)) {
    // Wait first for streams that may still use freed blocks.
    static_cast<void>(device_.try_synchronize());
  }
  if (trace::is_recording() && held_bytes_.load(std::memory_order_relaxed) != 0) {
    record_held(recorded(), 0, 0, 0);
  }
  StreamCache* cache = newest_cache_.load(std::memory_order_acquire);
  while (cache != nullptr) delete std::exchange(cache, cache->older);
}

Result<StreamCache*> Pool::try_cache(std::size_t slot) noexcept {
  if (StreamCache* known = caches_[slot].load(std::memory_order_acquire)) return known;
  const std::lock_guard lock(caches_mutex_);
  if (StreamCache* known = caches_[slot].load(std::memory_order_acquire)) return known;
  auto* made = new (std::nothrow) StreamCache(slot);
  if (made == nullptr) return no_host_memory(sizeof(StreamCache), "the cache of a stream");
  made->older = newest_cache_.load(std::memory_order_relaxed);
  newest_cache_.store(made, std::memory_order_release);
  cache_count_.fetch_add(1, std::memory_order_relaxed);
  caches_[slot].store(made, std::memory_order_release);
  return made;
}

// --- Allocating

void Pool::note_begin(const Descriptor& range, const Request& request) noexcept {
  poisoning_.unpoison(range);
  if (trace::is_recording()) {
    record_allocation(recorded(), *result_of(range), request, request.stream.id());
  }
  if (!wants_notes_) return;
  const Suballocation note = as_note(*result_of(range));
  if (host_shares_ || !request.stream.id()) {
    device_.note_suballocate(note, request.tag, request.site);
  } else {
    request.stream.note_suballocate(note, request.tag, request.site);
  }
}

Pool::Hit Pool::take_larger(StreamCache& cache, std::size_t bytes) noexcept {
  const std::size_t granted = granted_bytes(bytes);
  Descriptor* const range = cache.take_larger(granted, 1);
  if (range == nullptr) return {nullptr, true};
  if (range->place->count() == BlockPlace::last_count) {
    static_cast<void>(cache.put_slow(*range, boundless));
    return {};
  }
  // The block had the whole range before, or another part of it.
  range->place->bytes.store(granted, std::memory_order_relaxed);
  cache.begin_slack(*range, granted / granule_bytes);
  return {range};
}

Result<Block> Pool::try_begin_block(Descriptor& range, Search& search) noexcept {
  if (range.place->count() == BlockPlace::last_count) {
    std::unique_lock lock(ranges_mutex_);
    if (Result<void> replaced = ranges_.store().try_replace_place(range); !replaced) {
      // The rest is handled like a freed block.
      lock.unlock();
      range.next = nullptr;
      // Host-shared memory has no stream to wait for and is available only when its use is done.
      const StreamId stream = host_shares_ ? StreamId{} : search.request.stream.id();
      range.place->sequence.store(device_.next_mark(stream).sequence, std::memory_order_relaxed);
      retire(&range, search.cache, stream);
      return replaced.failure();
    }
  }
  range.place->address.store(reinterpret_cast<void*>(range.offset * granule_bytes),
                             std::memory_order_relaxed);
  range.place->bytes.store(search.granules * granule_bytes, std::memory_order_relaxed);
  {
    const std::lock_guard lock(search.cache.lock);
    if (search.rung != nullptr) ++(search.cache.counts.*search.rung);
    search.cache.begin_slack(range, search.granules);
    begin_block(range, search.cache, search.request);
  }
  note_begin(range, search.request);
  return result_of(range);
}

Result<Block> Pool::try_allocate(const Request& request, bool is_miss) noexcept {
  const StreamId id = request.stream.id();
  if (!is_same_process(process_)) return check_not_forked(process_).failure();
  if (id) {
    // A stream that takes the range must not end without a mark after its work.
    if (!request.stream.is_usable()) return request.stream.try_next_mark().failure();
    DeviceState::state_of(request.stream)->hold_next_of_free();
  }
  const Result<StreamCache*> cache = try_cache(home_of(id));
  if (!cache) return cache.failure();
  Search search(request, granted_bytes(request.bytes) / granule_bytes, requested_alignment(request),
                **cache);
  if (request.bytes >= min_large_bytes && has_pages_) {
    search.alignment = std::max(search.alignment, PageStore::page_granules);
  }
  search.is_miss = is_miss;
  Descriptor* const range = find(search);
  if (range == nullptr) {
    if (search.failure) return *search.failure;
    const bool is_lack = !search.reason || search.reason->code() == ErrorCode::out_of_memory;
    return is_lack ? refusal(search) : *search.reason;
  }
  return try_begin_block(*range, search);
}

Descriptor* Pool::find(Search& search) noexcept {
  using Counts = StreamCache::Counts;
  if (!search.is_miss) {
    const std::lock_guard lock(search.cache.lock);
    const StreamId id = search.request.stream.id();
    if (!host_shares_ && id) search.cache.stream = id;
    if (Descriptor* range = search.cache.take_aligned(search.request.bytes, search.alignment)) {
      return range;
    }
  }
  const bool is_recycled = search.request.only_recycled;
  if (has_budgets_.load(std::memory_order_relaxed) && !search.request.is_charged) {
    note_uncharged_request();
  }
  // Budgets have compared the live bytes with their limits already.
  const std::size_t own_limit = own_limit_bytes_.load(std::memory_order_relaxed);
  if (is_over_limit()) {
    poll(SIZE_MAX);
    if (exceeds(search.granules, own_limit)) return nullptr;
  }
  if (is_polling_due_.load(std::memory_order_relaxed) && !is_recycled) {
    poll(max_questions_per_request);
  } else if (is_settling_due_.load(std::memory_order_relaxed)) {
    // Otherwise fresh memory of a segment would be used before freed memory.
    static_cast<void>(settle_seen());
  }
  if (Descriptor* range = take(search, Thoroughness::quick)) return range;
  if (is_recycled || search.failure) return nullptr;
  if (is_known_refusal(search)) {
    const std::lock_guard lock(search.cache.lock);
    ++search.cache.counts.known_refusals;
    return nullptr;
  }
  if (exceeds(search.granules, own_limit)) return nullptr;
  const trace::TagRange range_of_tag(search.request.tag);
  // Query a few streams first. Before the pool grows, query every stream that may have passed
  // enough; otherwise their memory would never be reused.
  for (const std::size_t max_questions : {max_questions_per_request, SIZE_MAX}) {
    if (max_questions == SIZE_MAX && !may_have_enough(search.granules)) break;
    if (poll(max_questions) == 0) continue;
    if (Descriptor* range = take(search, Thoroughness::quick)) return range;
    if (search.failure) return nullptr;
  }
  const std::size_t limit = limit_bytes_.load(std::memory_order_relaxed);
  // Without a limit, growing costs less than moving handles.
  const bool is_large = search.granules * granule_bytes >= min_large_bytes;
  if (is_large && has_pages_ && limit != 0) {
    search.rung = &Counts::remapped_hits;
    const std::lock_guard growth(growth_mutex_);
    if (Descriptor* range = remap(search)) return range;
    if (search.failure) return nullptr;
  }
  const bool is_past = options_.preference == PoolPreference::automatic && is_past_goal(search);
  const bool may_alias = is_past && limit == 0 && may_use_alias(search);
  if (may_alias) {
    const std::lock_guard growth(growth_mutex_);
    if (Descriptor* range = take_alias(search)) return range;
    if (search.failure) return nullptr;
  }
  if (is_past && limit == 0) {
    // Blocks in the caches of streams are free memory, too.
    flush_caches();
    poll(max_questions_per_request);
    if (Descriptor* range = take(search, Thoroughness::quick)) return range;
    if (search.failure) return nullptr;
  }
  if (Descriptor* range = await_frees(search, may_alias)) return range;
  if (search.failure) return nullptr;
  const bool prefers_reuse = options_.preference == PoolPreference::reuse || is_past;
  for (const bool is_stealing : {prefers_reuse, !prefers_reuse}) {
    if (is_stealing) {
      if (Descriptor* range = steal(search)) return range;
    } else {
      const std::lock_guard growth(growth_mutex_);
      if (may_alias) {
        if (Descriptor* range = make_alias(search)) return range;
        if (search.failure) return nullptr;
      }
      if (Descriptor* range = grow(search)) return range;
    }
    if (search.failure) return nullptr;
  }
  if (Descriptor* range = reclaim(search)) return range;
  if (search.failure) return nullptr;
  // The same request fails again until something is freed, unless a stream may have made progress.
  // Frees since the beginning of the search are checked once more, after the counter that announces
  // them, and a large block need not begin at a page if nothing else is left.
  const std::uint64_t since = epoch();
  search.alignment = requested_alignment(search.request);
  if (Descriptor* range = take(search, Thoroughness::thorough)) return range;
  if (search.failure || search.reason) return nullptr;
  // The budgets have admitted the request. The free memory under their limits is in pages or
  // segments that blocks use partly, so the pool holds more than the limits instead of refusing.
  if (search.request.is_charged &&
      limit_for(search) != own_limit_bytes_.load(std::memory_order_relaxed)) {
    search.may_exceed_budgets = true;
    const std::lock_guard growth(growth_mutex_);
    if (has_pages_) {
      search.rung = &Counts::remapped_hits;
      if (Descriptor* range = remap(search)) return range;
      if (search.failure) return nullptr;
    }
    if (Descriptor* range = grow(search)) return range;
    if (search.failure || search.reason) return nullptr;
  }
  // Blocks that another stream has freed into its cache meanwhile were not searched, but are
  // counted.
  if (has_cached()) return nullptr;
  const std::lock_guard lock(ranges_mutex_);
  // The driver failed to free this segment and may succeed another time.
  const bool has_tried_all = has_pages_ || ranges_.first_holder() == nullptr;
  if (has_tried_all && ranges_.in_flight_granules() == 0 &&
      limit_bytes_.load(std::memory_order_relaxed) != 0) {
    refused_granules_ = search.granules;
    refused_alignment_ = search.alignment;
    refused_epoch_ = since;
  }
  return nullptr;
}

bool Pool::is_known_refusal(const Search& search) noexcept {
  std::uint64_t then = 0;
  {
    const std::lock_guard lock(ranges_mutex_);
    if (refused_granules_ == 0 || search.granules < refused_granules_) return false;
    if (search.alignment < refused_alignment_) return false;
    then = refused_epoch_;
  }
  return epoch() == then;
}

bool Pool::has_cached() noexcept {
  std::size_t bytes = 0;
  for_each_cache([&](StreamCache& cache) {
    const std::lock_guard lock(cache.lock);
    bytes += cache.bytes() + cache.counts.slack_bytes;
  });
  return bytes > 0;
}

bool Pool::may_have_enough(std::uint64_t granules) noexcept {
  const std::lock_guard lock(ranges_mutex_);
  return ranges_.in_flight_granules() > 0 &&
         ranges_.in_flight_granules() + ranges_.available().total() >= granules;
}

Descriptor* Pool::await_frees(Search& search, bool may_alias) noexcept {
  if (!may_have_enough(search.granules)) return nullptr;
  const std::uint32_t failed = failed_awaits_.load(std::memory_order_relaxed);
  const std::uint32_t skipped = skipped_awaits_.load(std::memory_order_relaxed);
  if (skipped + 1 < (1U << failed)) {
    skipped_awaits_.store(skipped + 1, std::memory_order_relaxed);
    return nullptr;
  }
  skipped_awaits_.store(0, std::memory_order_relaxed);
  for (int i = 0; i < polls_before_growth; ++i) {
    if (poll(max_questions_per_request) == 0) continue;
    Descriptor* range = take(search, Thoroughness::quick);
    bool is_over = range != nullptr || search.failure.has_value();
    if (!is_over && may_alias) {
      const std::lock_guard growth(growth_mutex_);
      range = take_alias(search);
      is_over = range != nullptr || search.failure.has_value() || can_make_alias(search);
    }
    if (!is_over && may_have_enough(search.granules)) continue;
    failed_awaits_.store(0, std::memory_order_relaxed);
    return range;
  }
  failed_awaits_.store(std::min(failed + 1, max_failed_awaits), std::memory_order_relaxed);
  return nullptr;
}

bool Pool::exceeds(std::uint64_t granules, std::size_t max_bytes) noexcept {
  if (max_bytes == 0) return false;
  const std::uint64_t live = live_bytes();
  return live > max_bytes || granules * granule_bytes > max_bytes - live;
}

Descriptor* Pool::take(Search& search, Thoroughness how) noexcept {
  using Counts = StreamCache::Counts;
  const std::lock_guard lock(ranges_mutex_);
  if (Result<void> prepared = ranges_.store().try_prepare(Ranges::descriptors_per_take);
      !prepared) {
    search.failure = prepared.failure();
    return nullptr;
  }
  // Completed ranges of the only stream join the available ones first. Otherwise the same program
  // would place the same blocks elsewhere in each of its periods.
  if (Lane& lane = search.cache.lane; lane.oldest != nullptr && stream_count() == 1) {
    const std::uint64_t done = DeviceState::of(device_)->last_done(lane.stream);
    close_settled(lane, done);
    ranges_.settle(lane, done);
  }
  const FitIndex::Effort effort =
      how == Thoroughness::thorough ? FitIndex::Effort::thorough : FitIndex::Effort::quick;
  Descriptor* available = nullptr;
  if (!search.request.only_recycled) {
    available =
        ranges_.find(ranges_.available(), search.granules, search.alignment, effort,
                     is_tight_.load(std::memory_order_relaxed) ? Ranges::Placement::together
                                                               : Ranges::Placement::tightest);
  }
  Descriptor* own = nullptr;
  const bool is_exact = available != nullptr && available->size == search.granules;
  if (!is_exact && !host_shares_ && search.request.stream.id()) {
    own = ranges_.find(search.cache.lane.index, search.granules, search.alignment, effort);
  }
  // The tighter fit keeps large ranges whole.
  if (available != nullptr && own != nullptr) {
    (own->size < available->size ? available : own) = nullptr;
  }
  Descriptor* range = nullptr;
  if (available != nullptr) {
    search.rung = &Counts::available_hits;
    range = ranges_.take_available(*available, search.granules, search.alignment);
  } else if (own != nullptr) {
    search.rung = &Counts::own_in_flight_hits;
    range = ranges_.take_in_flight(*own, search.granules, search.alignment);
  }
  if (range != nullptr) note_change();
  return range;
}

Descriptor* Pool::steal(Search& search) noexcept {
  const StreamRef stream = search.request.stream;
  if (host_shares_ || !stream.id()) return nullptr;
  Descriptor* range = nullptr;
  Mark behind;
  StreamCache* donor = nullptr;
  {
    const std::lock_guard lock(ranges_mutex_);
    if (Result<void> prepared = ranges_.store().try_prepare(Ranges::descriptors_per_take);
        !prepared) {
      search.failure = prepared.failure();
      return nullptr;
    }
    for_each_cache([&](StreamCache& cache) {
      if (range != nullptr || &cache == &search.cache) return;
      range = ranges_.find(cache.lane.index, search.granules, search.alignment);
      if (range == nullptr) return;
      if (DeviceState::of(device_)->is_out_of_reach({cache.lane.stream, range->sequence})) {
        range = nullptr;
        return;
      }
      ranges_.take_in_flight(*range, search.granules, search.alignment);
      donor = &cache;
      behind = {cache.lane.stream, range->sequence};
    });
    if (range == nullptr) return nullptr;
    note_change();
  }
  search.rung = &StreamCache::Counts::steals;
  const Result<void> waited = stream.try_wait(behind, search.request.site);
  if (waited) return range;
  search.fail_for(waited.failure());
  const std::lock_guard lock(ranges_mutex_);
  ranges_.return_in_flight(*range, donor->lane, behind.sequence);
  note_change();
  return nullptr;
}

Descriptor* Pool::reclaim(Search& search) noexcept {
  // While other threads allocate and free, memory may be free at no moment of one round, although
  // little is live. So rounds are repeated as long as something happens.
  constexpr int max_rounds = 100;
  for (int round = 0; round < max_rounds; ++round) {
    const std::uint64_t before = activity();
    if (Descriptor* range = reclaim_once(search)) return range;
    if (search.failure || search.request.wait == Wait::never) return nullptr;
    const std::size_t limit = own_limit_bytes_.load(std::memory_order_relaxed);
    if (activity() == before || exceeds(search.granules, limit != 0 ? limit : total_bytes_)) {
      return nullptr;
    }
  }
  return nullptr;
}

Descriptor* Pool::reclaim_once(Search& search) noexcept {
  flush_caches();
  poll(SIZE_MAX);
  if (Descriptor* range = take_or_make(search)) return range;
  if (search.failure) return nullptr;
  if (Descriptor* range = steal(search)) return range;
  if (search.failure || search.request.wait == Wait::never) return nullptr;
  Descriptor* found = nullptr;
  for_each_cache([&](StreamCache& cache) {
    if (found != nullptr || search.failure) return;
    const Mark newest = newest_mark(cache);
    if (!newest) return;
    host_waits_.fetch_add(1, std::memory_order_relaxed);
    const Result<void> waited = Device::try_wait(newest);
    if (!waited && waited.failure().code() != ErrorCode::device_lost) return;
    settle(cache, newest.sequence);
    found = take_or_make(search);
  });
  return found;
}

Descriptor* Pool::take_or_make(Search& search) noexcept {
  if (Descriptor* range = take(search, Thoroughness::thorough)) return range;
  if (search.failure) return nullptr;
  const std::lock_guard growth(growth_mutex_);
  if (has_pages_) {
    search.rung = &StreamCache::Counts::remapped_hits;
    Descriptor* range = remap(search);
    if (range != nullptr || search.failure) return range;
  } else {
    // Free segments of other sizes are released to allow one of this size.
    const std::size_t bytes = search.granules * granule_bytes;
    const std::size_t limit = limit_bytes_.load(std::memory_order_relaxed);
    if (limit == 0 || bytes <= limit) release_free(limit == 0 ? 0 : limit - bytes, 0);
    Descriptor* range = grow(search);
    if (range != nullptr || search.failure || !search.reason) return range;
    // The driver may have room for the segment once it has all other free ones back.
    if (release_free(0, 0) == 0) return nullptr;
  }
  return grow(search);
}

std::uint64_t Pool::activity() noexcept {
  std::uint64_t sum = 0;
  for_each_cache([&](StreamCache& cache) {
    const std::lock_guard lock(cache.lock);
    sum += cache.counts.allocations + cache.counts.frees;
  });
  return sum;
}

// --- Freeing

[[gnu::noinline]] Result<void> Pool::refuse_free(const Block& block, const BlockPlace* place,
                                                 const CallSite& site) noexcept {
  return why_not_live(block, place).at(site);
}

[[gnu::noinline]] Descriptor* Pool::put_slow(StreamCache& cache, Descriptor& range) noexcept {
  __builtin_prefetch(&range.before);  // the block probably leaves the cache and gets neighbours
  return cache.put_slow(range, bounds());
}

Result<void> Pool::free_slow(const Block& block, const BlockPlace* place, StreamRef stream,
                             const CallSite& site) noexcept {
  const bool is_ours = place != nullptr && place->is_live(block.generation.count()) &&
                       place->owner.load(std::memory_order_relaxed) == &owner_ &&
                       place->address.load(std::memory_order_relaxed) == block.address &&
                       place->bytes.load(std::memory_order_relaxed) == block.bytes &&
                       block.device == device_id_;
  if (!is_ours) return why_not_live(block, place).at(site);
  // In a forked child there is nothing to free.
  if (!is_same_process(process_)) return {};
  const StreamId id = stream.id();
  if (id.device() != device_id_) {
    return Failure(ErrorCode::device_mismatch,
                   "memory of '{a}' was freed on a stream of {b}. Free it on a stream of '{a}'.",
                   site)
        .with("a", device_.spec())
        .with("b", Place::device(id.device()).text());
  }
  // A foreign stream between two loans still has marks, and the free needs no more than that.
  if (const StreamPin idle(stream, StreamPin::Idle::accepted); idle) {
    const Mark last_use{id, DeviceState::state_of(stream)->promise_next_of_free()};
    return free_pinned(stream, last_use, block, site);
  }
  // The stream has ended. If it allocated from this pool, it left a mark after its work; otherwise
  // wait for all work.
  const bool has_mark = place->stream.load(std::memory_order_relaxed) == id;
  const Result<void> waited =
      has_mark ? Device::try_wait(device_.next_mark(id), site) : device_.try_synchronize(site);
  if (!waited && waited.failure().code() != ErrorCode::device_lost) {
    return Failure(waited.failure()).at(site);
  }
  return try_free(block, StreamRef(), site);
}

Result<void> Pool::free_elsewhere(const BlockPlace* place, StreamRef stream, Mark last_use,
                                  const Block& block, const CallSite& site) noexcept {
  // The owner of the stream may end it in another thread. Then a mark must follow its work and this
  // free.
  const StreamPin stay(stream);
  if (stream.id() && !stay) return free_slow(block, place, stream, site);
  return free_pinned(stream, last_use, block, site);
}

Result<void> Pool::free_pinned(StreamRef stream, Mark last_use, const Block& block,
                               const CallSite& site) noexcept {
  const BlockPlace& place = *find_place(block.generation.slot());
  auto& range = *reinterpret_cast<Descriptor*>(place.note.load(std::memory_order_relaxed));
  StreamCache& home = *range.home.load(std::memory_order_relaxed);
  const StreamId id = stream.id();
  if (id && !try_cache(id.slot())) {
    // Without memory for the cache of the stream, wait for the stream.
    if (Result<void> waited = Device::try_wait(last_use, site);
        !waited && waited.failure().code() != ErrorCode::device_lost) {
      return Failure(waited.failure()).at(site);
    }
    return try_free(block, StreamRef(), site);
  }
  {
    const std::lock_guard lock(home.lock);
    // Two threads may free the block at the same time; one of them fails here.
    if (!range.place->is_live(block.generation.count())) {
      return why_not_live(block, range.place).at(site);
    }
    range.place->retire(block.generation.count(), last_use);
    home.note_free(block.bytes);
    home.end_slack(range);
  }
  finish_free(range, stream, last_use, block, site);
  return {};
}

void Pool::finish_free(Descriptor& range, StreamRef stream, Mark last_use, const Block& block,
                       CallSite site) noexcept {
  const StreamId id = stream.id();
  if (trace::is_recording()) {
    record_free(recorded(), block, range.place->tag.load(std::memory_order_relaxed),
                {id, last_use.sequence}, site);
  }
  // The host reuses the block only when its mark is done, so the mark must get an event.
  if (host_shares_ && last_use) DeviceState::state_of(stream)->need_seal();
  if (wants_notes_) {
    if (id && last_use) {
      // A stream that nobody borrows takes no note.
      if (stream.is_usable()) {
        stream.note_subrelease(as_note(block), site);
      } else {
        device_.note_subrelease(as_note(block), site);
      }
      // Another thread may have recorded the mark before the free was announced; the next mark
      // covers it.
      last_use.sequence = DeviceState::state_of(stream)->promise_next_of_free();
      range.place->sequence.store(last_use.sequence, std::memory_order_relaxed);
    } else {
      device_.note_subrelease(as_note(block), site);
    }
  }
  // Before another thread can allocate it.
  if (poisoning_.is_on()) {
    const Result<bool> is_done = last_use ? Device::try_is_done(last_use) : Result<bool>(true);
    if (is_done && *is_done) poisoning_.poison(range);
  }
  range.next = nullptr;
  if (!id || !last_use) {
    // The host used it last, or has waited for the last use.
    StreamCache& cache = *caches_[host_slot].load(std::memory_order_acquire);
    Descriptor* leaving = nullptr;
    {
      const std::lock_guard lock(cache.lock);
      leaving = cache.put(range, bounds());
    }
    if (leaving != nullptr) retire(leaving, cache, StreamId{});
    return;
  }
  StreamCache& cache = *caches_[id.slot()].load(std::memory_order_acquire);
  Descriptor* leaving = &range;
  if (!host_shares_) {
    const std::lock_guard lock(cache.lock);
    cache.stream = id;
    leaving = cache.put(range, bounds());
  }
  if (leaving != nullptr) retire(leaving, cache, id);
}

void Pool::retire(Descriptor* list, StreamCache& cache, StreamId stream) noexcept {
  if (!stream) {
    put_all_available(list);
    return_excess();
    trim_if_idle();
    return;
  }
  bool is_full = false;
  {
    const std::lock_guard lock(ranges_mutex_);
    Lane& lane = cache.lane;
    // Of several streams that had the slot, use the last; the marks of earlier ones are complete.
    if (lane.stream < stream) lane.stream = stream;
    // The neighbours are read below and are rarely in the processor's cache.
    __builtin_prefetch(list->before);
    __builtin_prefetch(list->after);
    // Completed ranges become available before a neighbour in flight can join them.
    ranges_.settle(lane, DeviceState::of(device_)->last_done(stream));
    while (list != nullptr) {
      Descriptor& range = *std::exchange(list, list->next);
      ++lane.unsealed_blocks;
      lane.unsealed_granules += range.size;
      retired_granules_ += range.size;
      // Use the mark of each block's own free: another thread may have freed it later than this
      // call began, or long before.
      ranges_.put_in_flight(range, lane, range.place->sequence.load(std::memory_order_relaxed));
    }
    const std::uint64_t held_granules = held_bytes_.load(std::memory_order_relaxed) / granule_bytes;
    if (retired_granules_ >
        std::max({settle_granules, held_granules / settles_per_pool, unsettled_granules_})) {
      is_settling_due_.store(true, std::memory_order_relaxed);
    }
    std::uint64_t max_unsealed = seal_granules;
    if (!is_tight_.load(std::memory_order_relaxed)) {
      const std::uint64_t seals = stream_count() > 1 ? seals_per_pool : seals_for_one_stream;
      max_unsealed = std::max(max_unsealed, held_granules / seals);
    }
    is_full = lane.unsealed_blocks >= seal_blocks || lane.unsealed_granules >= max_unsealed;
    if (is_full) {
      lane.unsealed_blocks = lane.unsealed_granules = 0;
      lane.sealed = lane.newest->sequence;
    }
    note_change();
  }
  if (is_full) {
    seals_.fetch_add(1, std::memory_order_relaxed);
    // If this fails, the first thread that waits for the mark records it.
    static_cast<void>(device_.try_record_mark(stream));
    // Ranges that streams have passed are joined with their neighbours, so that large blocks fit.
    poll(max_questions_per_request, Marks::recorded);
    trim_if_idle();
  } else if (is_over_limit()) {
    poll(max_questions_per_request);
  }
}

void Pool::put_all_available(Descriptor* list) noexcept {
  if (list == nullptr) return;
  const std::lock_guard lock(ranges_mutex_);
  while (list != nullptr) {
    Descriptor& range = *std::exchange(list, list->next);
    poisoning_.poison(range);
    ranges_.put_available(range);
  }
  note_change();
}

void Pool::release_slack(StreamCache& cache) noexcept {
  Descriptor* pieces = nullptr;
  StreamId stream;
  {
    // With both locks held, the block cannot be freed and its neighbours cannot change.
    const std::lock_guard cache_lock(cache.lock);
    stream = cache.stream;
    if (cache.first_with_slack() == nullptr) return;
    const std::lock_guard lock(ranges_mutex_);
    while (Descriptor* const block = cache.first_with_slack()) {
      // Without memory for a descriptor, the slack stays with its block.
      if (!ranges_.store().try_prepare(Ranges::descriptors_per_take)) break;
      const std::uint64_t granules = block->size - block->slack;
      cache.end_slack(*block);
      ranges_.cut(*block, block->offset, granules,
                  [&pieces](Descriptor& rest) { rest.next = std::exchange(pieces, &rest); });
    }
  }
  if (pieces == nullptr) return;
  if (&cache == caches_[host_slot].load(std::memory_order_relaxed)) {
    put_all_available(pieces);
    return;
  }
  // Earlier work of the stream may still use the range.
  const std::uint64_t sequence = device_.next_mark(stream).sequence;
  for (Descriptor* piece = pieces; piece != nullptr; piece = piece->next) {
    piece->place->sequence.store(sequence, std::memory_order_relaxed);
  }
  retire(pieces, cache, stream);
}

void Pool::flush_caches() noexcept {
  for_each_cache([this](StreamCache& cache) {
    release_slack(cache);
    Descriptor* all = nullptr;
    StreamId stream;
    {
      const std::lock_guard lock(cache.lock);
      all = cache.take_all();
      stream = cache.stream;
    }
    if (all == nullptr) return;
    if (&cache == caches_[host_slot].load(std::memory_order_relaxed)) {
      put_all_available(all);
    } else {
      retire(all, cache, stream);
    }
  });
}

// --- Marks

Mark Pool::oldest_mark(StreamCache& cache, Marks which) noexcept {
  const std::lock_guard lock(ranges_mutex_);
  if (cache.lane.oldest == nullptr) return {};
  if (which == Marks::recorded && cache.lane.oldest->sequence > cache.lane.sealed) return {};
  return {cache.lane.stream, cache.lane.oldest->sequence};
}

Mark Pool::newest_mark(StreamCache& cache) noexcept {
  const std::lock_guard lock(ranges_mutex_);
  if (cache.lane.newest == nullptr) return {};
  return {cache.lane.stream, cache.lane.newest->sequence};
}

void Pool::close_settled(const Lane& lane, std::uint64_t sequence) const noexcept {
  if (!poisoning_.is_on()) return;
  for (const Descriptor* range = lane.oldest; range != nullptr && range->sequence <= sequence;
       range = range->newer) {
    poisoning_.poison(*range);
  }
}

std::size_t Pool::settle(StreamCache& cache, std::uint64_t sequence) noexcept {
  const std::lock_guard lock(ranges_mutex_);
  close_settled(cache.lane, sequence);
  const std::uint64_t granules = ranges_.settle(cache.lane, sequence);
  if (granules > 0) note_change();
  return granules * granule_bytes;
}

std::size_t Pool::settle_seen() noexcept {
  const DeviceState& device = *DeviceState::of(device_);
  std::uint64_t granules = 0;
  const std::lock_guard lock(ranges_mutex_);
  for_each_cache([&](StreamCache& cache) {
    if (cache.lane.oldest == nullptr) return;
    const std::uint64_t done = device.last_done(cache.lane.stream);
    close_settled(cache.lane, done);
    granules += ranges_.settle(cache.lane, done);
  });
  retired_granules_ = 0;
  unsettled_granules_ = ranges_.in_flight_granules();
  is_settling_due_.store(false, std::memory_order_relaxed);
  if (granules > 0) note_change();
  return granules * granule_bytes;
}

std::size_t Pool::ask(StreamCache& cache, std::size_t& questions_left, Marks which) noexcept {
  std::size_t settled = 0;
  while (questions_left > 0) {
    const Mark oldest = oldest_mark(cache, which);
    if (!oldest) break;
    --questions_left;
    polls_.fetch_add(1, std::memory_order_relaxed);
    const Result<bool> is_done = Device::try_is_done(oldest);
    // A lost device does no more work.
    const bool is_over = is_done ? *is_done : is_done.failure().code() == ErrorCode::device_lost;
    if (!is_over) break;
    // One answer may cover many frees: all that the stream has passed.
    const std::uint64_t done = DeviceState::of(device_)->last_done(oldest.stream);
    settled += settle(cache, std::max(oldest.sequence, done));
  }
  return settled;
}

std::size_t Pool::poll(std::size_t max_questions, Marks which) noexcept {
  if (is_forked()) return 0;
  std::size_t settled = settle_seen();
  std::size_t left = max_questions;
  for_each_cache([&](StreamCache& cache) { settled += ask(cache, left, which); });
  return_excess();
  return settled;
}

void Pool::note_change() noexcept {
  // Only one thread at a time writes this number.
  const std::uint64_t changes = changes_.load(std::memory_order_relaxed) + 1;
  changes_.store(changes, std::memory_order_relaxed);
  const std::size_t held =
      held_bytes_.load(std::memory_order_relaxed) - unmapped_bytes_.load(std::memory_order_relaxed);
  const std::size_t free =
      (ranges_.available().total() + ranges_.in_flight_granules()) * granule_bytes;
  const std::size_t outside = held > free ? held - free : 0;
  min_idle_ = std::min(min_idle_, idle_bytes());
  peak_outside_bytes_ = std::max<std::uint64_t>(peak_outside_bytes_, outside);
  const std::size_t limit = limit_bytes_.load(std::memory_order_relaxed);
  const std::size_t most = limit != 0 ? limit : total_bytes_;
  const bool is_tight = most != 0 && outside >= most / 4 * 3;
  const std::size_t in_flight = ranges_.in_flight_granules() * granule_bytes;
  set(is_polling_due_, is_tight && in_flight >= free / in_flight_share);
  // Other facts, on which the bounds of the caches depend too, change rarely.
  if (changes % changes_per_check == 0 || held != bounds_basis_.held ||
      is_tight != bounds_basis_.is_tight || is_over_limit() != bounds_basis_.is_over_limit) {
    update_bounds({.held = held, .is_tight = is_tight});
  }
}

[[gnu::noinline]] void Pool::update_bounds(BoundsBasis basis) noexcept {
  basis.limit = own_limit_bytes_.load(std::memory_order_relaxed);
  basis.streams = stream_count();
  basis.is_contended = is_contended();
  basis.is_over_limit = is_over_limit();
  if (basis == bounds_basis_) return;
  bounds_basis_ = basis;
  set_bounds(basis);
}

void Pool::set_bounds(const BoundsBasis& basis) noexcept {
  const std::size_t most = basis.limit != 0 ? basis.limit : total_bytes_;
  const std::size_t larger = std::min(most / larger_share, max_larger_bytes);
  CacheBounds bounds{std::clamp(most / class_share, tight_bounds.class_bytes, max_class_bytes),
                     larger, basis.is_contended ? larger : 0};
  if (basis.is_over_limit) {
    bounds = {0, 0, 0};  // memory that is freed is returned
  } else if (basis.is_tight) {
    bounds = tight_bounds;
  } else if (basis.limit == 0 && !basis.is_contended && basis.held >= min_bounded_pool) {
    const std::size_t each = basis.held / std::max<std::size_t>(basis.streams, 1);
    const auto at_most = [](std::size_t bytes, std::size_t bound) {
      return std::min(std::max(bytes, min_cache_bytes), bound);
    };
    bounds.class_bytes = at_most(each / class_share_of_pool, bounds.class_bytes);
    bounds.recent_bytes = at_most(each / larger_share_of_pool, larger);
  }
  set(is_tight_, basis.is_tight);
  set(class_bound_, bounds.class_bytes);
  set(recent_bound_, bounds.recent_bytes);
  set(middle_bound_, bounds.middle_bytes);
}

bool Pool::is_contended() noexcept {
  const std::uint64_t changes = changes_.load(std::memory_order_relaxed);
  const std::uint64_t changes_of_window = changes - window_begin_;
  if (changes_of_window >= changes_per_window) {
    const std::uint32_t waits = ranges_mutex_.waits() - waits_before_;
    if (waits >= changes_of_window / changes_per_wait) {
      contended_windows_ = calm_windows;
    } else if (contended_windows_ > 0) {
      --contended_windows_;
    }
    waits_before_ += waits;
    window_begin_ = changes;
  }
  return options_.thread_caches || contended_windows_ > 0;
}

std::uint64_t Pool::epoch() noexcept {
  std::uint64_t sum = changes_.load(std::memory_order_relaxed);
  for_each_cache([&](StreamCache& cache) {
    const std::lock_guard lock(cache.lock);
    sum += cache.counts.frees;
  });
  return sum;
}

void Pool::note_empty_request() noexcept {
  if (is_forked()) return;
  StreamCache& cache = *caches_[host_slot].load(std::memory_order_acquire);
  const std::lock_guard lock(cache.lock);
  ++cache.counts.empty_requests;
}

void Pool::note_refusal(const Request& request, const Failure& why) noexcept {
  if (is_forked()) return;
  {
    StreamCache& cache = *caches_[host_slot].load(std::memory_order_acquire);
    const std::lock_guard lock(cache.lock);
    ++cache.counts.refusals;
  }
  if (trace::is_recording()) {
    record_refusal(recorded(), request, held_bytes_.load(std::memory_order_relaxed), why,
                   RecordedLimit{limit_bytes_.load(std::memory_order_relaxed),
                                 has_pages_ ? trace::Backing::pages : trace::Backing::segments});
  }
}

}  // namespace tern::pool
