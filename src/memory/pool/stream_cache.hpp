// A StreamCache keeps blocks that one stream has freed, so that the stream can reuse them without
// asking the rest of the pool.
//
// Blocks with a size class are in one stack per class: the block freed last is reused first. Of
// larger blocks only the two freed last are kept, because large sizes rarely repeat. They are found
// by their exact size. If threads contend for the lock of the ranges, blocks below 16 MiB are in
// stacks too, grouped by similar size. A request may then get a block that is larger by up to an
// eighth; the unused end, the slack, stays with the block and belongs to the cache.
//
// The cache is bounded in bytes; blocks without room leave, the coldest first. Reuse needs no mark
// and no event, because the work of one stream runs in order. The cache also counts the operations
// of the stream. Everything except `lane` is guarded by `lock`.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "memory/pool/descriptor.hpp"
#include "memory/pool/ranges.hpp"
#include "memory/pool/size_class.hpp"
#include "tern/detail/core/mutex.hpp"
#include "tern/device/mark.hpp"

namespace tern::pool {

/// Upper bounds on the bytes in a cache.
struct CacheBounds {
  std::size_t class_bytes = std::size_t{8} << 20;
  std::size_t recent_bytes = std::size_t{128} << 20;
  std::size_t middle_bytes = 0;  // blocks above the classes, in stacks
};

/// The bounds while memory is short.
inline constexpr CacheBounds tight_bounds{std::size_t{1} << 20, 0, 0};

class alignas(64) StreamCache {
 public:
  static constexpr std::size_t max_per_class = 32;
  static constexpr std::size_t recent_count = 2;
  /// A cached block may be larger than the granted size by 1/8 of it.
  static constexpr std::uint64_t slack_share = 8;

  struct Counts {
    std::uint64_t allocations = 0;
    std::uint64_t frees = 0;
    std::uint64_t live_bytes = 0;  // blocks that were allocated from this cache
    std::uint64_t peak_live_bytes = 0;
    // The counters below change rarely.
    std::uint64_t slack_bytes = 0;  // slack of those blocks
    // Sources of blocks that were not in the cache.
    std::uint64_t own_in_flight_hits = 0, available_hits = 0, steals = 0, grown_hits = 0,
                  remapped_hits = 0;
    // Requests that allocated nothing.
    std::uint64_t empty_requests = 0, refusals = 0, known_refusals = 0;

    [[nodiscard]] std::uint64_t requests() const noexcept {
      return allocations + empty_requests + refusals;
    }
    [[nodiscard]] std::uint64_t cache_hits() const noexcept {
      return allocations - own_in_flight_hits - available_hits - steals - grown_hits -
             remapped_hits;
    }
  };

  /// `slot_of_it` is the slot of the streams that use this cache.
  explicit StreamCache(std::size_t slot_of_it = 0) noexcept : slot(slot_of_it) {}

  /// Takes a block for `bytes`, of exactly the granted size or with slack. Returns null if there is
  /// none.
  [[nodiscard]] Descriptor* take(std::size_t bytes) noexcept {
    return bytes <= largest_class_bytes ? take_classed(bytes)
                                        : take_larger(granted_bytes(bytes), 1);
  }
  /// Takes a block of at most largest_class_bytes.
  [[nodiscard]] Descriptor* take_classed(std::size_t bytes) noexcept {
    Stack& stack = stacks_[class_of(bytes)];
    if (stack.count == 0) return nullptr;
    Descriptor* const top = stack.pop();
    class_bytes_ -= top->size * granule_bytes;
    return top;
  }
  /// Takes a larger block. The size is the granted size; the address is a multiple of `alignment`
  /// granules.
  [[nodiscard]] Descriptor* take_larger(std::size_t granted_bytes,
                                        std::uint64_t alignment) noexcept;
  /// Takes a larger block if it is the one that was freed last: a stream often wants back the large
  /// block it has just freed. The block has no slack.
  [[nodiscard]] Descriptor* take_newest(std::size_t granted_bytes) noexcept {
    Descriptor* const newest = recent_.front();
    if (newest == nullptr || newest->size * granule_bytes != granted_bytes) return nullptr;
    for (std::size_t i = 1; i < recent_count; ++i) recent_[i - 1] = recent_[i];
    recent_.back() = nullptr;
    recent_bytes_ -= granted_bytes;
    return newest;
  }
  /// Keeps a larger block as the newest. Returns false if there is no room.
  [[nodiscard]] bool try_put_newest(Descriptor& block, const CacheBounds& bounds) noexcept {
    const std::size_t bytes = block.size * granule_bytes;
    if (block.slack != 0 || middle_bytes_ != 0 || bytes <= bounds.middle_bytes ||
        bytes <= largest_class_bytes || recent_.back() != nullptr ||
        recent_bytes_ + bytes > bounds.recent_bytes) {
      return false;
    }
    for (std::size_t i = recent_count - 1; i > 0; --i) recent_[i] = recent_[i - 1];
    recent_.front() = &block;
    recent_bytes_ += bytes;
    return true;
  }
  /// Takes a block for `bytes`, of any size, at a multiple of `alignment` granules. Of a size
  /// class, only the block on top is tried.
  [[nodiscard]] Descriptor* take_aligned(std::size_t bytes, std::uint64_t alignment) noexcept;
  /// Keeps the block with its slack. Returns the blocks that have to leave, perhaps this one,
  /// linked by next.
  [[nodiscard]] Descriptor* put(Descriptor& block, const CacheBounds& bounds) noexcept {
    return try_put(block, bounds.class_bytes) ? nullptr : put_slow(block, bounds);
  }
  /// Keeps a block that has a class. Returns false if there is no room.
  [[nodiscard]] bool try_put(Descriptor& block, std::size_t max_class_bytes) noexcept {
    const std::size_t bytes = block.size * granule_bytes;
    if (bytes > largest_class_bytes || class_bytes_ + bytes > max_class_bytes) return false;
    Stack& stack = stacks_[class_of(bytes)];
    if (stack.count == max_per_class) return false;
    stack.push(block);
    class_bytes_ += bytes;
    return true;
  }
  /// The slow path of put(), if there is no room.
  [[nodiscard]] Descriptor* put_slow(Descriptor& block, const CacheBounds& bounds) noexcept;
  /// Takes all blocks, linked by next.
  [[nodiscard]] Descriptor* take_all() noexcept;
  /// Bytes of the cached blocks, without the slack of live blocks.
  [[nodiscard]] std::size_t bytes() const noexcept {
    return class_bytes_ + recent_bytes_ + middle_bytes_;
  }

  void note_allocation(std::size_t granted_bytes) noexcept {
    ++counts.allocations;
    counts.live_bytes += granted_bytes;
    if (counts.live_bytes > counts.peak_live_bytes) counts.peak_live_bytes = counts.live_bytes;
  }
  void note_free(std::size_t granted_bytes) noexcept {
    ++counts.frees;
    counts.live_bytes -= granted_bytes;
  }
  /// Shortens the block to `granules`; the rest becomes its slack.
  void begin_slack(Descriptor& block, std::uint64_t granules) noexcept {
    if (block.size == granules) return;
    block.slack = static_cast<std::uint32_t>(block.size - granules);
    counts.slack_bytes += block.slack * granule_bytes;
    block.older = nullptr;
    block.newer = with_slack_;
    if (with_slack_ != nullptr) with_slack_->older = &block;
    with_slack_ = &block;
  }
  /// Ends the slack of a freed block: it is one piece again.
  void end_slack(Descriptor& block) noexcept {
    if (block.slack == 0) return;
    counts.slack_bytes -= block.slack * granule_bytes;
    block.slack = 0;
    (block.older != nullptr ? block.older->newer : with_slack_) = block.newer;
    if (block.newer != nullptr) block.newer->older = block.older;
    block.older = block.newer = nullptr;
  }
  /// Returns a live block of this cache with slack, or null.
  [[nodiscard]] Descriptor* first_with_slack() const noexcept { return with_slack_; }

  // Everything that a hit or a free needs is in the first cache line.
  SpinLock lock;
  const std::size_t slot;
  StreamId stream = {};  // the last stream that used this cache

 private:
  std::size_t class_bytes_ = 0;

 public:
  Counts counts;
  StreamCache* older = nullptr;  // next cache of the pool; constant once published

 private:
  /// A stack linked by next. Only the top is touched, and the top is the block that is wanted.
  struct Stack {
    Descriptor* top = nullptr;
    std::size_t count = 0;

    void push(Descriptor& block) noexcept {
      block.next = top;
      top = &block;
      ++count;
    }
    Descriptor* pop() noexcept {
      Descriptor* const block = top;
      top = block->next;
      --count;
      return block;
    }
  };
  [[nodiscard]] Descriptor* take_middle(std::size_t granted_bytes,
                                        std::uint64_t alignment) noexcept;
  [[nodiscard]] Descriptor* take_recent(std::size_t granted_bytes,
                                        std::uint64_t alignment) noexcept;
  void put_middle(Descriptor& block, std::size_t max_bytes, Descriptor*& leaving) noexcept;
  void put_recent(Descriptor& block, std::size_t max_bytes, Descriptor*& leaving) noexcept;
  /// Removes blocks until there is room for `bytes` among the middle blocks.
  void shed_middle(std::size_t bytes, std::size_t max_bytes, Descriptor*& leaving) noexcept;
  /// Removes the older half of a stack.
  static void shed(Stack& stack, std::size_t& bytes, Descriptor*& leaving) noexcept;

  std::size_t recent_bytes_ = 0;
  std::size_t middle_bytes_ = 0;
  std::array<Descriptor*, recent_count> recent_ = {};  // newest first
  std::array<Stack, class_count> stacks_ = {};
  std::size_t hand_ = 0;  // the stack that sheds next
  // Stacks of blocks between 1 MiB and 16 MiB.
  std::array<Stack, middle_class_count> middle_ = {};
  std::size_t middle_hand_ = 0;
  Descriptor* with_slack_ = nullptr;  // linked by newer

 public:
  Lane lane;  // guarded by the lock of the ranges
};

}  // namespace tern::pool
