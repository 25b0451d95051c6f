// The pool behind PoolResource: caches per stream, the ranges they share, and the memory below.
//
// A request goes down a ladder and stops at the first rung that serves it: its stream's cache, what
// its stream has freed, what is free for everybody, what has become free since (a question to each
// stream), pages from here and there put together, more memory from the driver, what another stream
// has freed (behind a wait on the device), and in the end everything that waiting can give.
//
// Locks: one per stream's cache, one for the ranges, one for growth. Only that for growth is held
// while the driver is called, and while one of the others is taken. Those two are held together,
// the cache's first, only by release_slack(). A hit takes its cache's lock and nothing else. A
// forked child takes none of them. A block belongs to the cache of the stream it was allocated on
// until it is freed: whoever frees it claims it under that lock, so of two that try one succeeds.

#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "core/fork_count.hpp"
#include "device/device_state.hpp"
#include "memory/block_table.hpp"
#include "memory/pool/closed_blocks.hpp"
#include "memory/pool/page_store.hpp"
#include "memory/pool/ranges.hpp"
#include "memory/pool/segment_store.hpp"
#include "memory/pool/size_class.hpp"
#include "memory/pool/stream_cache.hpp"
#include "tern/core/bytes.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern::pool {

class Pool {
 public:
  Pool(const Resource& owner, Device device, const PoolOptions& options);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  [[nodiscard]] const Device& device() const noexcept { return device_; }
  [[nodiscard]] MemoryKind kind() const noexcept { return options_.kind; }
  /// In a forked child a lock may be held by a thread that does not exist there.
  [[nodiscard]] bool is_forked() const noexcept { return !is_same_process(process_); }

  /// A block from the stream's cache, or null. For requests of any size and origin.
  [[nodiscard]] const Descriptor* try_hit(const Request& request) noexcept;
  /// What the caller has, by its range: nobody else can end it. Put together in the result, because
  /// a block that is written word by word and copied at once costs as much as a lock.
  [[nodiscard]] Result<Block> result_of(const Descriptor& range) const noexcept {
    void* const address = reinterpret_cast<void*>(range.offset * granule_bytes);
    const std::size_t bytes = range.place->bytes.load(std::memory_order_relaxed);
    const Generation generation(range.slot, range.place->count());
    Result<Block> result = Block{};
    result->address = address;
    result->bytes = bytes;
    result->device = device_id_;
    result->generation = generation;
    return result;
  }
  /// For checked requests of at least a byte.
  [[nodiscard]] Result<Block> try_allocate(const Request& request) noexcept;
  [[nodiscard]] [[gnu::always_inline]] Result<void> try_free(const Block& block, StreamRef stream,
                                                             const CallSite& site) noexcept;
  void note_request(bool is_refused) noexcept;

  std::size_t trim(std::size_t keep_bytes) noexcept;
  std::size_t poll(std::size_t most_questions) noexcept;
  void set_limit(std::size_t limit_bytes) noexcept;
  [[nodiscard]] Result<void> try_hold(std::size_t bytes) noexcept;

  [[nodiscard]] Statistics statistics() noexcept;
  [[nodiscard]] PoolStatistics pool_statistics() noexcept;
  [[nodiscard]] Fragmentation fragmentation() noexcept;
  [[nodiscard]] bool is_well() noexcept;

 private:
  /// A request on its way down the ladder.
  struct Search {
    const Request& request;
    std::uint64_t granules;
    std::uint64_t alignment;  // in granules
    StreamCache& cache;
    /// Which rung it was.
    std::uint64_t StreamCache::Counts::*rung = nullptr;
    /// Ends it.
    std::optional<Failure> failure = {};
    /// Why a rung did not hold; said if none does.
    std::optional<Failure> reason = {};

    /// A rung did not hold. On a device that is lost none will.
    void fail_for(const Failure& why) noexcept {
      (why.code() == ErrorCode::device_lost ? failure : reason) = why;
    }
  };
  enum class Thoroughness : std::uint8_t { quick, thorough };

  static constexpr CacheBounds boundless{SIZE_MAX, SIZE_MAX, SIZE_MAX};
  static constexpr std::size_t stream_slots = std::size_t{1} << StreamId::slot_bits;
  /// The cache of blocks that nobody but the host has used last.
  static constexpr std::size_t host_slot = stream_slots;

  [[nodiscard]] std::size_t home_of(StreamId stream) const noexcept {
    return host_shares_ || !stream ? host_slot : stream.slot();
  }
  [[nodiscard]] Result<StreamCache*> try_cache(std::size_t slot) noexcept;
  [[nodiscard]] CacheBounds bounds() const noexcept {
    return {class_bound_.load(std::memory_order_relaxed),
            recent_bound_.load(std::memory_order_relaxed),
            middle_bound_.load(std::memory_order_relaxed)};
  }

  /// All but what takes a look at every range.
  [[nodiscard]] PoolStatistics sums() noexcept;
  [[nodiscard]] Fragmentation fragmentation(const PoolStatistics& all) noexcept;

  // --- Allocating
  [[nodiscard]] Descriptor* find(Search& search) noexcept;
  /// Of what is free for all, and of what the request's stream has freed itself.
  [[nodiscard]] Descriptor* take(Search& search, Thoroughness how) noexcept;
  [[nodiscard]] Descriptor* steal(Search& search) noexcept;
  [[nodiscard]] Descriptor* reclaim(Search& search) noexcept;
  /// With the lock of the cache held.
  void begin_block(Descriptor& range, StreamCache& cache, const Request& request) noexcept;
  /// Of a cache whose last stream is the request's, or that the host shares.
  [[nodiscard]] Descriptor* begin_cached(StreamCache& cache, const Request& request) noexcept;
  /// A cached block, ready to begin. With the lock of the cache held.
  [[nodiscard]] static Descriptor* take_cached(StreamCache& cache, std::size_t bytes) noexcept;
  /// A cached block without a class, ready to begin. With the lock of the cache held.
  [[nodiscard]] static Descriptor* take_larger(StreamCache& cache, std::size_t bytes) noexcept;
  /// Of a range that was not in a cache.
  [[nodiscard]] Result<Block> try_begin_block(Descriptor& range, Search& search) noexcept;
  void note_begin(const Descriptor& range, const Request& request) noexcept;
  /// Was as much refused before, with nothing freed since?
  [[nodiscard]] bool is_known_refusal(const Search& search) noexcept;
  /// Does any stream keep blocks for itself?
  [[nodiscard]] bool has_cached() noexcept;
  /// Could it be enough if streams have passed all that they have freed?
  [[nodiscard]] bool may_have_enough(std::uint64_t granules) noexcept;
  /// Would the live blocks alone go above the limit?
  [[nodiscard]] bool exceeds_limit(std::uint64_t granules) noexcept;
  [[nodiscard]] Failure refusal(const Search& search) noexcept;
  void add_free_and_total(const Search& search, const PoolStatistics& now,
                          Failure& refused) noexcept;

  // --- More memory. All of these with the growth lock held
  [[nodiscard]] Descriptor* grow(Search& search) noexcept;
  [[nodiscard]] Descriptor* grow_pages(Search& search) noexcept;
  [[nodiscard]] Descriptor* grow_segments(Search& search) noexcept;
  [[nodiscard]] Descriptor* remap(Search& search) noexcept;
  /// Addresses without memory, held: so many pages behind the last ones, or pages at a multiple of
  /// `alignment` pages from where there are any, and new ones only if there are none.
  [[nodiscard]] Result<Descriptor*> try_add_addresses(std::uint64_t pages) noexcept;
  [[nodiscard]] Result<Descriptor*> try_take_addresses(std::uint64_t pages,
                                                       std::uint64_t alignment) noexcept;
  /// Addresses that were not backed after all.
  void give_up_addresses(Descriptor& range) noexcept;
  /// Cuts what is asked for out of a held range; the rest is free for all.
  Descriptor* cut_out(Descriptor& range, const Search& search) noexcept;
  void put_back(Descriptor* list) noexcept;
  [[nodiscard]] std::uint64_t limit_pages() const noexcept;
  void note_held() noexcept;
  std::size_t release_free(std::size_t keep_bytes) noexcept;

  // --- Freeing
  /// Of a block that is not live or not of this pool, or on a stream that takes no work.
  [[nodiscard]] Result<void> free_with_care(const Block& block, const BlockPlace* place,
                                            StreamRef stream, const CallSite& site) noexcept;
  [[nodiscard]] static Result<void> refuse_free(const Block& block, const BlockPlace* place,
                                                const CallSite& site) noexcept;
  /// What has to leave for it. With the lock of the cache held.
  [[nodiscard]] Descriptor* put_with_care(StreamCache& cache, Descriptor& range) noexcept;
  /// On another stream than it was allocated on, or with somebody to tell.
  [[nodiscard]] Result<void> free_elsewhere(Descriptor& range, StreamCache& home, StreamRef stream,
                                            Mark last_use, const Block& block,
                                            const CallSite& site) noexcept;
  [[nodiscard]] bool can_use(StreamRef stream) const noexcept;
  void finish_free(Descriptor& range, StreamRef stream, Mark last_use, const Block& block,
                   CallSite site) noexcept;
  /// What has left a stream's cache, or never was in one.
  void retire(Descriptor* list, StreamCache& cache, StreamId stream) noexcept;
  void put_all_quiescent(Descriptor* list) noexcept;
  /// Closes what the stream has freed up to this. With the lock of the ranges held.
  void close_settled(const Lane& lane, std::uint64_t sequence) const noexcept;
  /// Empties the caches, and takes the slack from behind live blocks.
  void flush_caches() noexcept;
  /// Cuts the slack off the cache's live blocks and retires it.
  void release_slack(StreamCache& cache) noexcept;
  void trim_if_idle() noexcept;
  /// Everything the stream has freed up to this is done.
  std::size_t settle(StreamCache& cache, std::uint64_t sequence) noexcept;
  /// Settles what the host has seen done, of every stream. Asks no driver.
  std::size_t settle_seen() noexcept;
  /// Asks about the stream until something is not done, or the questions are used up.
  std::size_t ask(StreamCache& cache, std::size_t& questions_left) noexcept;
  /// What the stream has freed first and not passed, as far as is known.
  [[nodiscard]] Mark oldest_mark(StreamCache& cache) noexcept;
  [[nodiscard]] Mark newest_mark(StreamCache& cache) noexcept;

  /// With the lock of the ranges held, after any change of them.
  void note_change() noexcept;
  /// Do threads wait for each other at the lock of the ranges?
  [[nodiscard]] bool is_crowded() noexcept;
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
  const PoolOptions options_;
  const std::uint64_t process_;
  const bool wants_notes_;
  /// The host uses this memory too, so a block is given out when its last use is done, not before.
  const bool host_shares_;
  const bool has_pages_;
  const ClosedBlocks closed_;
  /// No notes, no host and nothing closed: blocks stay with their streams, and nobody is told.
  const bool is_plain_;

  std::array<std::atomic<StreamCache*>, stream_slots + 1> caches_ = {};
  std::atomic<StreamCache*> newest_cache_ = nullptr;
  std::mutex caches_mutex_;  // for making one

  // On lines of their own, as all that is written often: hits read what is above.
  alignas(64) SpinLock ranges_mutex_;
  Ranges ranges_;                         // guarded by ranges_mutex_
  std::uint64_t peak_outside_bytes_ = 0;  // guarded by ranges_mutex_
  // A request of so many granules at such an alignment failed, and will again as long as the epoch
  // is this.
  std::uint64_t refused_granules_ = 0;   // guarded by ranges_mutex_
  std::uint64_t refused_alignment_ = 0;  // guarded by ranges_mutex_
  std::uint64_t refused_epoch_ = 0;      // guarded by ranges_mutex_
  // How many threads come here, by how often one waits.
  std::uint32_t changes_of_window_ = 0;  // guarded by ranges_mutex_
  std::uint32_t waits_before_ = 0;       // guarded by ranges_mutex_
  std::uint32_t crowded_windows_ = 0;    // guarded by ranges_mutex_

  std::mutex growth_mutex_;
  std::optional<PageStore> pages_;                        // guarded by growth_mutex_
  std::optional<SegmentStore> segments_;                  // guarded by growth_mutex_
  std::uint64_t stuck_pages_ = 0;                         // guarded by growth_mutex_
  std::chrono::steady_clock::time_point last_trim_ = {};  // guarded by growth_mutex_

  // Written by whoever holds a lock above, read by anybody.
  alignas(64) std::atomic<bool> is_tight_ = false;
  std::atomic<std::size_t> class_bound_ = 0, recent_bound_ = 0,
                           middle_bound_ = 0;  // of each stream's cache
  std::atomic<std::size_t> limit_bytes_;
  alignas(64) std::atomic<std::uint64_t> changes_ = 0;
  std::atomic<std::size_t> held_bytes_ = 0, loose_bytes_ = 0, peak_held_bytes_ = 0;
  std::atomic<std::uint64_t> polls_ = 0, seals_ = 0, host_waits_ = 0, grows_ = 0, trims_ = 0,
                             pages_moved_ = 0, pages_created_ = 0, pages_released_ = 0,
                             page_calls_ = 0;
};

// --- The short way, which nearly every call takes

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
  return !id || (id.device() == device_id_ && DeviceState::state_of(stream)->is_open_as(id));
}

// Hits and frees give nobody the address of a local variable, which would cost them a watched
// frame. Whatever needs one is a function of its own.

inline Descriptor* Pool::take_cached(StreamCache& cache, std::size_t bytes) noexcept {
  Descriptor* range = nullptr;
  if (bytes <= largest_class_bytes) {
    range = cache.take_classed(bytes);
    if (range == nullptr || range->place->count() != BlockPlace::last_count) return range;
  } else {
    const std::size_t granted = granted_bytes(bytes);
    range = cache.take_newest(granted);
    if (range == nullptr) return take_larger(cache, bytes);
    if (range->place->count() != BlockPlace::last_count) {
      range->place->bytes.store(granted, std::memory_order_relaxed);
      return range;
    }
  }
  // Its place has counted to the end; the long way gives it another.
  static_cast<void>(cache.put_with_care(*range, boundless));  // nothing leaves for it
  return nullptr;
}

inline Descriptor* Pool::begin_cached(StreamCache& cache, const Request& request) noexcept {
  const StreamId id = request.stream.id();
  const std::lock_guard lock(cache.lock);
  // A stream that was here is of this device.
  if (cache.stream != id) {
    if (!host_shares_ || id.device() != device_id_) return nullptr;
    // The cache is the host's, so it does not tell whether the stream was here before. If it ends
    // before the block is freed, there must be a mark behind its work.
    static_cast<void>(DeviceState::state_of(request.stream)->promise_next());
  }
  Descriptor* const range = take_cached(cache, request.bytes);
  if (range != nullptr) begin_block(*range, cache, request);
  return range;
}

inline const Descriptor* Pool::try_hit(const Request& request) noexcept {
  const StreamId id = request.stream.id();
  // No bytes wrap to the most there are.
  if (request.bytes - 1 >= max_request_bytes || request.alignment > granule_bytes ||
      !is_same_process(process_) ||
      (id && !DeviceState::state_of(request.stream)->is_open_as(id))) {
    return nullptr;
  }
  StreamCache* const cache = caches_[home_of(id)].load(std::memory_order_acquire);
  if (cache == nullptr || (request.alignment & (request.alignment - 1)) != 0) return nullptr;
  const Descriptor* const range = begin_cached(*cache, request);
  if (!is_plain_ && range != nullptr) note_begin(*range, request);
  return range;
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
    return free_with_care(block, place, stream, site);
  }
  const Mark last_use = id ? Mark{id, DeviceState::state_of(stream)->promise_next()} : Mark{};
  auto& range = *reinterpret_cast<Descriptor*>(place->note.load(std::memory_order_relaxed));
  // The place's stream will not do: another thread that frees the block is changing it.
  StreamCache& home = *range.home.load(std::memory_order_relaxed);
  // A stream that did not allocate it may have no mark yet, and is about to end, perhaps.
  if (!is_plain_ || home_of(id) != home.slot ||
      place->stream.load(std::memory_order_relaxed) != id) {
    return free_elsewhere(range, home, stream, last_use, block, site);
  }
  Descriptor* leaving = nullptr;
  StreamId newest = id;
  {
    const std::lock_guard lock(home.lock);
    // Of two that free it and came this far, one is too late.
    if (!place->is_live(count)) return refuse_free(block, place, site);
    place->retire(count, last_use);
    home.note_free(block.bytes);
    // The stream was here to allocate it. There may be another one in its slot, if its owner has
    // ended it meanwhile; what that has freed is not done with this one.
    if (!home.try_put(range, class_bound_.load(std::memory_order_relaxed)) &&
        !home.try_put_newest(range, bounds())) {
      leaving = put_with_care(home, range);
      newest = home.stream;
    }
  }
  if (leaving != nullptr) retire(leaving, home, newest);
  return {};
}

}  // namespace tern::pool
