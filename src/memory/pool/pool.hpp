// The implementation of PoolResource: one cache per stream, the free ranges shared by all streams,
// and the pages or segments below.
//
// A request tries these sources in order and stops at the first success:
//
//   1. the cache of its stream
//   2. ranges available to every stream, then ranges that its own stream has freed
//   3. ranges that have become available since, after querying streams
//   4. free pages mapped to contiguous addresses
//   5. new memory from the driver
//   6. ranges that another stream has freed, after a wait on the device (see PoolPreference for the
//      order of 5 and 6)
//   7. everything that flushing caches and waiting can recover
//
// Locks: one per stream cache, one for the ranges, one for growth. Only the growth lock is held
// during driver calls and while another of these locks is taken. The other two are held together
// only by release_slack(), the cache's lock first. A cache hit takes the lock of its cache and
// nothing else. A forked child takes none of them.
//
// A block belongs to the cache of the stream on which it was allocated, until it is freed. The
// thread that frees the block claims it under the lock of that cache, so of two threads that free
// it, one succeeds.

#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "core/fork_count.hpp"
#include "device/device_state.hpp"
#include "memory/block_table.hpp"
#include "memory/memory_events.hpp"
#include "memory/pool/alias_store.hpp"
#include "memory/pool/block_poisoning.hpp"
#include "memory/pool/counting_lock.hpp"
#include "memory/pool/page_store.hpp"
#include "memory/pool/ranges.hpp"
#include "memory/pool/segment_store.hpp"
#include "memory/pool/size_class.hpp"
#include "memory/pool/stream_cache.hpp"
#include "tern/core/bytes.hpp"
#include "tern/detail/core/mutex.hpp"
#include "tern/memory/pool_resource.hpp"
#include "trace/recording.hpp"

namespace tern::pool {

/// See the top of this file, and docs/architecture.md for the main paths.
class Pool final : private trace::RecordingListener {
 public:
  Pool(const Resource& owner, Device device, const PoolOptions& options);
  ~Pool() override;
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  [[nodiscard]] const Device& device() const noexcept { return device_; }
  [[nodiscard]] MemoryKind kind() const noexcept { return options_.kind; }
  /// Returns true in a forked child, where a lock may be held by a thread that does not exist.
  [[nodiscard]] bool is_forked() const noexcept { return !is_same_process(process_); }

  /// The result of the fast path.
  struct Hit {
    Descriptor* range = nullptr;
    /// The stream's cache has no block for the request, so the slow path need not search it.
    bool is_miss = false;
  };
  /// The fast path: takes a block from the stream's cache. Returns no range if the slow path has to
  /// serve the request. Accepts any request, checked or not.
  [[nodiscard]] [[gnu::always_inline]] Hit try_hit(const Request& request) noexcept;
  /// Returns the block of a range that the caller has just allocated, so no other thread can free
  /// it.
  [[nodiscard]] Result<Block> result_of(const Descriptor& range) const noexcept {
    const BlockWords words = words_of(range);
    Result<Block> result = Block{};
    words.write(*result);
    return result;
  }
  void write_block(const Descriptor& range, Block& block) const noexcept {
    words_of(range).write(block);
  }
  /// The slow path. The request has been checked and has at least one byte. `is_miss` is as in Hit.
  [[nodiscard]] Result<Block> try_allocate(const Request& request, bool is_miss) noexcept;
  [[nodiscard]] [[gnu::always_inline]] Result<void> try_free(const Block& block, StreamRef stream,
                                                             const CallSite& site) noexcept;
  /// Counts a request for 0 bytes.
  void note_empty_request() noexcept;
  /// Counts a request that failed.
  void note_refusal(const Request& request, const Failure& why) noexcept;

  std::size_t trim(std::size_t keep_bytes) noexcept;
  /// Queries streams whether their frees have completed, at most `max_questions` times. Returns
  /// the bytes that became available to every stream.
  /// `which` excludes marks that have no event yet, because a query would record one.
  enum class Marks : std::uint8_t { all, recorded };
  std::size_t poll(std::size_t max_questions, Marks which = Marks::all) noexcept;
  void set_limit(std::size_t limit_bytes) noexcept;
  /// See PoolResource.
  void add_budget(const Budget& budget);
  void remove_budget(const Budget& budget) noexcept;
  void update_bound() noexcept;
  /// Allocates `bytes` from the driver in advance.
  [[nodiscard]] Result<void> try_hold(std::size_t bytes) noexcept;

  [[nodiscard]] Statistics statistics() noexcept;
  [[nodiscard]] PoolStatistics pool_statistics() noexcept;
  [[nodiscard]] Fragmentation fragmentation() noexcept;
  [[nodiscard]] bool check_invariants() noexcept;

 private:
  /// A request on the slow path.
  struct Search {
    Search(const Request& for_request, std::uint64_t granted_granules,
           std::uint64_t granule_alignment, StreamCache& of_stream) noexcept
        : request(for_request),
          granules(granted_granules),
          alignment(granule_alignment),
          cache(of_stream) {}

    const Request& request;
    std::uint64_t granules;
    std::uint64_t alignment;  // in granules
    StreamCache& cache;
    /// The counter of the source that served the request.
    std::uint64_t StreamCache::Counts::*rung = nullptr;
    /// The fast path has searched the stream's cache.
    bool is_miss = false;
    /// Only the pool's own limit counts, not the limits of its budgets.
    bool may_exceed_budgets = false;
    /// Set if the request must fail now.
    std::optional<Failure> failure = {};
    /// Why a source failed; added to the error if all sources fail.
    std::optional<Failure> reason = {};

    /// Records the failure of a source. If the device is lost, all other sources would fail, too. A
    /// lack of addresses is kept: with them, the free memory would have sufficed.
    void fail_for(const Failure& why) noexcept {
      if (why.code() == ErrorCode::device_lost) {
        failure = why;
      } else if (!reason || !reason->number("addresses")) {
        reason = why;
      }
    }
  };
  /// A block as pairs of words: a caller that keeps the block copies pairs, and a processor that
  /// has to join two stores for one load waits as long as for a lock.
  struct BlockWords {
    using Pair [[gnu::vector_size(16)]] = std::uint64_t;
    Pair where, which;

    void write(Block& block) const noexcept {
      static_assert(offsetof(Block, bytes) == 8 && offsetof(Block, device) == 16 &&
                    offsetof(Block, generation) == 24);
      auto* const at = reinterpret_cast<std::byte*>(&block);
      std::memcpy(at, &where, sizeof where);
      std::memcpy(at + sizeof where, &which, sizeof which);
    }
  };
  [[nodiscard]] BlockWords words_of(const Descriptor& range) const noexcept {
    const BlockPlace& place = *range.place;
    using Pair = BlockWords::Pair;
    return {Pair{range.offset * granule_bytes, place.bytes.load(std::memory_order_relaxed)},
            Pair{device_word_, Generation(range.slot, place.count()).value()}};
  }
  /// How long a search for a fitting range may take, see FitIndex::Effort.
  enum class Thoroughness : std::uint8_t { quick, thorough };

  static constexpr CacheBounds boundless{SIZE_MAX, SIZE_MAX, SIZE_MAX};
  static constexpr std::size_t stream_slots = std::size_t{1} << StreamId::slot_bits;
  /// The cache of blocks that the host used last.
  static constexpr std::size_t host_slot = stream_slots;

  [[nodiscard]] std::size_t home_of(StreamId stream) const noexcept {
    return host_shares_ || !stream ? host_slot : stream.slot();
  }
  [[nodiscard]] Result<StreamCache*> try_cache(std::size_t slot) noexcept;
  /// How many streams have a cache.
  [[nodiscard]] std::size_t stream_count() const noexcept {
    return cache_count_.load(std::memory_order_relaxed) - 1;
  }
  [[nodiscard]] CacheBounds bounds() const noexcept {
    return {class_bound_.load(std::memory_order_relaxed),
            recent_bound_.load(std::memory_order_relaxed),
            middle_bound_.load(std::memory_order_relaxed)};
  }

  /// Returns all counters except those that need a visit of every range.
  [[nodiscard]] PoolStatistics sums() noexcept;
  [[nodiscard]] Fragmentation fragmentation(const PoolStatistics& all) noexcept;

  // --- Allocating
  [[nodiscard]] Descriptor* find(Search& search) noexcept;
  /// Takes a range that is available to every stream, or one that the request's stream has freed.
  [[nodiscard]] Descriptor* take(Search& search, Thoroughness how) noexcept;
  [[nodiscard]] Descriptor* steal(Search& search) noexcept;
  /// Polls for a few microseconds, because that costs less than a call of the driver. Returns null
  /// if no range fits then. With `may_alias` it also ends when make_alias() would succeed.
  [[nodiscard]] Descriptor* await_frees(Search& search, bool may_alias) noexcept;
  [[nodiscard]] Descriptor* reclaim(Search& search) noexcept;
  /// One round of reclaim().
  [[nodiscard]] Descriptor* reclaim_once(Search& search) noexcept;
  /// Takes a free range, or makes one with the driver's help.
  [[nodiscard]] Descriptor* take_or_make(Search& search) noexcept;
  /// Returns the number of allocations and frees so far.
  [[nodiscard]] std::uint64_t activity() noexcept;
  /// Starts a block in a held range. Call with the lock of the cache held.
  void begin_block(Descriptor& range, StreamCache& cache, const Request& request) noexcept;
  /// Takes a block from a cache whose last stream is the request's, or that the host shares.
  [[nodiscard]] Hit begin_cached(StreamCache& cache, StreamId id, const Request& request) noexcept;
  /// Takes a block from the cache. Call with the lock of the cache held.
  [[nodiscard]] static Hit take_cached(StreamCache& cache, std::size_t bytes) noexcept;
  /// Takes a block above the size classes from the cache. Call with the lock of the cache held.
  [[nodiscard]] static Hit take_larger(StreamCache& cache, std::size_t bytes) noexcept;
  /// Starts a block in a range that did not come from a cache.
  [[nodiscard]] Result<Block> try_begin_block(Descriptor& range, Search& search) noexcept;
  void note_begin(const Descriptor& range, const Request& request) noexcept;
  void recording_changed(bool is_on) noexcept override;
  [[nodiscard]] RecordedResource recorded() const noexcept {
    return {device_, owner_.name(), number_, options_.kind};
  }
  /// Returns whether the pool holds so much that memory of other streams is preferred to growth.
  [[nodiscard]] bool is_past_goal(const Search& search) noexcept;
  /// Bytes of all live blocks. Visits every cache.
  [[nodiscard]] std::uint64_t live_bytes() noexcept;
  /// Raises peak_at_growth_ to what is live with `more_bytes`, and returns it.
  std::uint64_t note_live_peak(std::size_t more_bytes) noexcept;
  /// Returns whether a request that was no harder has failed before and nothing was freed since.
  [[nodiscard]] bool is_known_refusal(const Search& search) noexcept;
  /// Returns whether any stream cache has blocks.
  [[nodiscard]] bool has_cached() noexcept;
  /// Returns whether the request could succeed once all streams have passed their frees.
  [[nodiscard]] bool may_have_enough(std::uint64_t granules) noexcept;
  /// Called for a request that no budget counts. From then on the budgets do not bound the pool,
  /// because they do not count all that it holds.
  void note_uncharged_request() noexcept;
  /// Sets limit_bytes_ from the pool's own limit and its budgets. Returns memory above it.
  void update_limit() noexcept;
  /// The most that the budgets allow the pool to hold, or 0. Call with limits_mutex_ held.
  [[nodiscard]] std::size_t bound_bytes() const noexcept;
  /// Returns whether the live blocks and this request alone would exceed `max_bytes`. 0 means that
  /// there is no maximum.
  [[nodiscard]] bool exceeds(std::uint64_t granules, std::size_t max_bytes) noexcept;
  [[nodiscard]] Failure refusal(const Search& search) noexcept;
  void add_free_and_total(const Search& search, const PoolStatistics& now,
                          Failure& refused) noexcept;

  // --- Growth. Call these with the growth lock held.
  [[nodiscard]] Descriptor* grow(Search& search) noexcept;
  [[nodiscard]] Descriptor* grow_pages(Search& search) noexcept;
  [[nodiscard]] Descriptor* grow_segments(Search& search) noexcept;
  [[nodiscard]] Descriptor* remap(Search& search) noexcept;
  /// Returns whether whole free handles may serve the request through an alias.
  [[nodiscard]] bool may_use_alias(const Search& search) const noexcept;
  /// Takes an idle alias of about the requested size whose handles are all free. Makes no driver
  /// call.
  [[nodiscard]] Descriptor* take_alias(Search& search) noexcept;
  /// Returns whether there are free handles for an alias. Makes no driver call.
  [[nodiscard]] bool can_make_alias(const Search& search) noexcept;
  /// Makes an alias from free handles.
  [[nodiscard]] Descriptor* make_alias(Search& search) noexcept;
  /// Chooses free handles with at least `need` pages together. Returns the number of runs, or 0.
  [[nodiscard]] std::size_t choose_homes(
      std::uint64_t need, std::array<PageStore::Run, Alias::max_homes>& homes) noexcept;
  /// Takes all homes out of the available ranges, or none. Call with the lock of the ranges held
  /// too, and with descriptors prepared.
  [[nodiscard]] bool hold_homes(std::span<const PageStore::Run> homes, Alias::Held& held) noexcept;
  /// Both return a held range of addresses without memory. try_add_addresses() appends new
  /// addresses to the last ones. try_take_addresses() returns existing addresses at a multiple of
  /// `alignment` pages and adds new ones only if there are none.
  [[nodiscard]] Result<Descriptor*> try_add_addresses(std::uint64_t pages) noexcept;
  [[nodiscard]] Result<Descriptor*> try_take_addresses(std::uint64_t pages,
                                                       std::uint64_t alignment) noexcept;
  /// Returns the reservations that have no memory to the driver, so that it has room for a larger
  /// one. Returns whether there was one. Call with the growth lock held.
  bool return_unused_reservations() noexcept;
  /// Frees addresses that could not be backed with pages. If pages are stuck there, the addresses
  /// are never used again.
  void give_up_addresses(Descriptor& range) noexcept;
  /// Unmaps pages that the driver failed to unmap before. Call with the growth lock held.
  void retry_stuck() noexcept;
  /// Cuts the requested block out of a held range. The rest becomes available to every stream.
  Descriptor* cut_out(Descriptor& range, const Search& search) noexcept;
  void put_back(Descriptor* list) noexcept;
  /// Returns the limit that applies to the search; 0 means none.
  [[nodiscard]] std::size_t limit_for(const Search& search) const noexcept {
    return (search.may_exceed_budgets ? own_limit_bytes_ : limit_bytes_)
        .load(std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t limit_pages(const Search& search) const noexcept;
  void note_held() noexcept;
  /// Records what the pool holds now, and what is live.
  void record_now() noexcept;
  std::size_t release_free(std::size_t keep_bytes, std::size_t min_bytes) noexcept;
  /// Upper bound on the pages of a new handle: 1 under a limit.
  [[nodiscard]] std::uint64_t max_handle_pages() const noexcept;
  /// Returns how much more than `need` pages to create for the request. `room` is what the limit
  /// leaves.
  [[nodiscard]] std::uint64_t extra_pages(std::uint64_t need, std::uint64_t room,
                                          const Search& search) noexcept;
  /// What a pool without a limit holds at most before it prefers reuse to growth.
  [[nodiscard]] static std::uint64_t footprint_goal(std::uint64_t peak_bytes) noexcept;

  // --- Freeing
  /// The slow path of a free: the block is not live or not of this pool, or the stream accepts no
  /// work.
  [[nodiscard]] Result<void> free_slow(const Block& block, const BlockPlace* place,
                                       StreamRef stream, const CallSite& site) noexcept;
  [[nodiscard]] static Result<void> refuse_free(const Block& block, const BlockPlace* place,
                                                const CallSite& site) noexcept;
  /// Puts a block into a full cache. Returns the blocks that have to leave. Call with the cache's
  /// lock held.
  [[nodiscard]] Descriptor* put_slow(StreamCache& cache, Descriptor& range) noexcept;
  /// Frees a block on another stream than it was allocated on, or with a checker to notify.
  [[nodiscard]] Result<void> free_elsewhere(const BlockPlace* place, StreamRef stream,
                                            Mark last_use, const Block& block,
                                            const CallSite& site) noexcept;
  /// The same, for a stream that cannot end meanwhile.
  [[nodiscard]] Result<void> free_pinned(StreamRef stream, Mark last_use, const Block& block,
                                         const CallSite& site) noexcept;
  /// Returns whether memory can be freed in the order of the stream. A foreign stream may be idle:
  /// its mark needs no driver call, and the marks of a stream that vanishes meanwhile are covered
  /// by its seal.
  [[nodiscard]] bool can_use(StreamRef stream) const noexcept;
  void finish_free(Descriptor& range, StreamRef stream, Mark last_use, const Block& block,
                   CallSite site) noexcept;
  /// Makes ranges in flight that left a stream's cache or never were in one.
  void retire(Descriptor* list, StreamCache& cache, StreamId stream) noexcept;
  void put_all_available(Descriptor* list) noexcept;
  /// Closes the blocks whose frees the stream has passed up to `sequence` to the host, for a memory
  /// tool. The caller holds ranges_mutex_.
  void close_settled(const Lane& lane, std::uint64_t sequence) const noexcept;
  /// Empties all caches and takes the slack of live blocks.
  void flush_caches() noexcept;
  /// Cuts the slack off the cache's live blocks and retires it.
  void release_slack(StreamCache& cache) noexcept;
  /// Returns the bytes that could be returned to the driver. Call with the lock of the ranges held.
  [[nodiscard]] std::size_t idle_bytes() const noexcept;
  void trim_if_idle() noexcept;
  /// Returns memory above the limit to the driver, after set_limit() has lowered it.
  void return_excess() noexcept;
  [[nodiscard]] bool is_over_limit() const noexcept {
    const std::size_t limit = limit_bytes_.load(std::memory_order_relaxed);
    return limit != 0 && held_bytes_.load(std::memory_order_relaxed) > limit;
  }
  /// Makes everything available that the stream has freed up to this sequence number.
  std::size_t settle(StreamCache& cache, std::uint64_t sequence) noexcept;
  /// Calls settle() for all marks that the host already knows to be done, of every stream. Makes no
  /// driver call.
  std::size_t settle_seen() noexcept;
  /// Queries a stream until a free is not complete or the queries are used up.
  std::size_t ask(StreamCache& cache, std::size_t& questions_left, Marks which) noexcept;
  /// The mark of the oldest free of the stream that is not known to be complete.
  [[nodiscard]] Mark oldest_mark(StreamCache& cache, Marks which) noexcept;
  [[nodiscard]] Mark newest_mark(StreamCache& cache) noexcept;

  /// What the bounds of the caches depend on.
  struct BoundsBasis {
    std::size_t held = 0, limit = 0, streams = 0;
    bool is_tight = false, is_contended = false, is_over_limit = false;
    [[nodiscard]] bool operator==(const BoundsBasis&) const = default;
  };
  /// Call after every change of the ranges, with their lock held.
  void note_change() noexcept;
  /// Completes `basis` and sets the bounds of the caches if it has changed.
  void update_bounds(BoundsBasis basis) noexcept;
  void set_bounds(const BoundsBasis& basis) noexcept;
  /// Returns whether threads contend for the lock of the ranges.
  [[nodiscard]] bool is_contended() noexcept;
  [[nodiscard]] std::uint64_t epoch() noexcept;
  template <class Visit>
  void for_each_cache(Visit visit) noexcept {
    for (StreamCache* cache = newest_cache_.load(std::memory_order_acquire); cache != nullptr;
         cache = cache->older) {
      visit(*cache);
    }
  }

  const Resource& owner_;
  const Device device_;
  const DeviceId device_id_;
  const std::uint64_t device_word_;  // device_id_ as it is stored in a block
  const PoolOptions options_;
  const std::uint64_t process_;
  const bool wants_notes_;
  /// The host uses this memory too (pinned, managed), so a block is reused only after its last use
  /// is done.
  const bool host_shares_;
  const bool has_pages_;
  const std::size_t total_bytes_;  // of the device
  const BlockPoisoning poisoning_;
  /// The number of the pool in recordings.
  const std::uint32_t number_;
  /// No checker, no recording, no memory tool and not shared with the host: the fast path applies.
  std::atomic<bool> is_plain_ = false;

  std::array<std::atomic<StreamCache*>, stream_slots + 1> caches_ = {};
  std::atomic<StreamCache*> newest_cache_ = nullptr;
  std::atomic<std::size_t> cache_count_ = 0;  // with the cache of the host
  std::mutex caches_mutex_;                   // held while a cache is made

  // Members that are written often have cache lines of their own: hits read the members above.
  alignas(64) CountingLock ranges_mutex_;
  Ranges ranges_;  // guarded by ranges_mutex_
  // The peak of the bytes outside the free ranges. Blocks in caches are outside, too.
  std::uint64_t peak_outside_bytes_ = 0;  // guarded by ranges_mutex_
  // The most bytes that live blocks had when the pool was about to grow.
  std::uint64_t peak_at_growth_ = 0;  // guarded by ranges_mutex_
  // The fewest bytes that were idle at a time since idle_since_.
  std::size_t min_idle_ = 0;                               // guarded by ranges_mutex_
  std::chrono::steady_clock::time_point idle_since_ = {};  // guarded by ranges_mutex_
  // The last request that failed. A request that is at least as hard fails at once while the epoch
  // is the same.
  std::uint64_t refused_granules_ = 0;   // guarded by ranges_mutex_
  std::uint64_t refused_alignment_ = 0;  // guarded by ranges_mutex_
  std::uint64_t refused_epoch_ = 0;      // guarded by ranges_mutex_
  // Freed since completed frees were last collected, and in flight then.
  std::uint64_t retired_granules_ = 0;    // guarded by ranges_mutex_
  std::uint64_t unsettled_granules_ = 0;  // guarded by ranges_mutex_
  // Measures contention: the share of changes during which a thread had to wait.
  std::uint64_t window_begin_ = 0;       // guarded by ranges_mutex_; a value of changes_
  std::uint32_t waits_before_ = 0;       // guarded by ranges_mutex_
  std::uint32_t contended_windows_ = 0;  // guarded by ranges_mutex_

  std::mutex growth_mutex_;
  std::optional<PageStore> pages_;        // guarded by growth_mutex_
  std::optional<AliasStore> aliases_;     // guarded by growth_mutex_
  std::optional<SegmentStore> segments_;  // guarded by growth_mutex_
  std::uint64_t stuck_pages_ = 0;         // guarded by growth_mutex_
  Descriptor* stuck_ = nullptr;           // guarded by growth_mutex_; ranges with stuck pages

  Mutex limits_mutex_;                  // held while limit_bytes_ is computed
  std::vector<const Budget*> budgets_;  // guarded by limits_mutex_

  // Written with one of the locks above held, read without a lock.
  alignas(64) std::atomic<bool> is_tight_ = false;
  std::atomic<bool> is_polling_due_ = false;
  std::atomic<bool> is_settling_due_ = false;
  /// Calls of await_frees() that failed, one after the other, and calls that were skipped since.
  std::atomic<std::uint32_t> failed_awaits_ = 0, skipped_awaits_ = 0;
  std::atomic<std::size_t> class_bound_ = 0, recent_bound_ = 0,
                           middle_bound_ = 0;  // of each stream's cache
  /// What the pool may hold, and the limit of the pool itself. The first is smaller if the budgets
  /// allow less.
  std::atomic<std::size_t> limit_bytes_, own_limit_bytes_;
  std::atomic<bool> has_budgets_ = false, has_uncharged_ = false;
  BoundsBasis bounds_basis_ = {};  // guarded by ranges_mutex_
  alignas(64) std::atomic<std::uint64_t> changes_ = 0;
  std::atomic<std::size_t> held_bytes_ = 0, unmapped_bytes_ = 0, peak_held_bytes_ = 0;
  std::atomic<std::uint64_t> polls_ = 0, seals_ = 0, host_waits_ = 0, grows_ = 0, trims_ = 0,
                             pages_moved_ = 0, pages_created_ = 0, pages_released_ = 0,
                             page_calls_ = 0, alias_count_ = 0;
};

// --- The fast path, which nearly every call takes

/// Returns whether every block has this alignment.
[[nodiscard]] constexpr bool is_usual_alignment(std::size_t alignment) noexcept {
  return alignment <= granule_bytes && (alignment & (alignment - 1)) == 0;
}

inline void Pool::begin_block(Descriptor& range, StreamCache& cache,
                              const Request& request) noexcept {
  range.requested_bytes.store(request.bytes, std::memory_order_relaxed);
  range.home.store(&cache, std::memory_order_relaxed);
  cache.note_allocation(range.place->bytes.load(std::memory_order_relaxed));
  static_cast<void>(range.place->renew(request.stream.id(), request.tag));
}

inline bool Pool::can_use(StreamRef stream) const noexcept {
  const StreamId id = stream.id();
  if (!is_same_process(process_)) return false;
  return !id || (id.device() == device_id_ && DeviceState::state_of(stream)->accepts_frees_as(id));
}

// Hits and frees never take the address of a local variable, which would make the compiler add a
// stack guard. Code that needs an address is in a function of its own.

inline Pool::Hit Pool::take_cached(StreamCache& cache, std::size_t bytes) noexcept {
  Descriptor* range = nullptr;
  if (bytes <= largest_class_bytes) {
    range = cache.take_classed(bytes);
    if (range == nullptr) return {nullptr, true};
    if (range->place->count() != BlockPlace::last_count) return {range};
  } else {
    const std::size_t granted = granted_bytes(bytes);
    range = cache.take_newest(granted);
    if (range == nullptr) return take_larger(cache, bytes);
    if (range->place->count() != BlockPlace::last_count) {
      range->place->bytes.store(granted, std::memory_order_relaxed);
      return {range};
    }
  }
  // The place has reached its last count. The slow path gives the block another place.
  static_cast<void>(cache.put_slow(*range, boundless));  // no bounds: no block leaves
  return {};
}

inline Pool::Hit Pool::begin_cached(StreamCache& cache, StreamId id,
                                    const Request& request) noexcept {
  const std::lock_guard lock(cache.lock);
  // If the stream has used this cache before, it belongs to this device. A shared cache may never
  // have seen the stream.
  if (cache.stream != id && (!host_shares_ || id.device() != device_id_)) return {};
  // Request a mark now: if the stream ends before the block is freed, there must be a mark after
  // its work.
  if (id) DeviceState::state_of(request.stream)->hold_next_of_free();
  const Hit hit = take_cached(cache, request.bytes);
  if (hit.range != nullptr) begin_block(*hit.range, cache, request);
  return hit;
}

inline Pool::Hit Pool::try_hit(const Request& request) noexcept {
  const StreamId id = request.stream.id();
  // 0 bytes wrap around to the largest value and miss.
  if (request.bytes - 1 >= max_request_bytes ||
      (request.alignment != 0 && !is_usual_alignment(request.alignment)) ||
      !is_same_process(process_) ||
      (id && !DeviceState::state_of(request.stream)->is_open_as(id))) {
    return {};
  }
  StreamCache* const cache = caches_[home_of(id)].load(std::memory_order_acquire);
  if (cache == nullptr) return {};
  const Hit hit = begin_cached(*cache, id, request);
  if (hit.range == nullptr) return hit;
  if (!is_plain_.load(std::memory_order_relaxed)) note_begin(*hit.range, request);
  return hit;
}

inline Result<void> Pool::try_free(const Block& block, StreamRef stream,
                                   const CallSite& site) noexcept {
  BlockPlace* const place = find_place(block.generation.slot());
  const std::uint64_t count = block.generation.count();
  const StreamId id = stream.id();
  if (place == nullptr || !place->is_live(count) ||
      place->owner.load(std::memory_order_relaxed) != &owner_ ||
      place->address.load(std::memory_order_relaxed) != block.address ||
      place->bytes.load(std::memory_order_relaxed) != block.bytes || block.device != device_id_ ||
      !can_use(stream)) {
    return free_slow(block, place, stream, site);
  }
  const Mark last_use =
      id ? Mark{id, DeviceState::state_of(stream)->promise_next_of_free()} : Mark{};
  auto& range = *reinterpret_cast<Descriptor*>(place->note.load(std::memory_order_relaxed));
  // Do not use place->stream for this: another thread that frees the block may be changing it.
  StreamCache& home = *range.home.load(std::memory_order_relaxed);
  // The freeing stream did not allocate the block, so it may have no mark yet and may be about to
  // be destroyed.
  if (!is_plain_.load(std::memory_order_relaxed) || home_of(id) != home.slot ||
      place->stream.load(std::memory_order_relaxed) != id) {
    return free_elsewhere(place, stream, last_use, block, site);
  }
  Descriptor* leaving = nullptr;
  StreamId newest = id;
  {
    const std::lock_guard lock(home.lock);
    // If two threads free the block and both came this far, the second one fails.
    if (!place->is_live(count)) return refuse_free(block, place, site);
    place->retire(count, last_use);
    home.note_free(block.bytes);
    // The stream used this cache when it allocated. Since then its owner may have destroyed it and
    // its slot may have a new stream, whose frees complete independently.
    if (!home.try_put(range, class_bound_.load(std::memory_order_relaxed)) &&
        !home.try_put_newest(range, bounds())) {
      leaving = put_slow(home, range);
      newest = home.stream;
    }
  }
  if (leaving != nullptr) retire(leaving, home, newest);
  return {};
}

}  // namespace tern::pool
