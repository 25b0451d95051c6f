// What one stream keeps of the blocks it has freed, to have them again without asking anybody.
//
// Blocks of a class are in a stack: the last one freed is used first. Larger ones are in two
// places for the most recent, and are found by their exact size, which hardly comes twice. Where
// threads wait for each other at the lock that all streams share, blocks below 16 MiB are in stacks
// too, by about their size, and a request may have one that is larger by up to an eighth: what it
// does not use stays behind the block, as its slack, and belongs to the cache.
//
// All of it is bounded in bytes; what has no room leaves, the coldest first. Reuse needs no mark
// and no event, because one stream's work is in order. It also counts what the stream did.
// Everything but the lock is guarded by it.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "memory/pool/descriptor.hpp"
#include "memory/pool/ranges.hpp"
#include "memory/pool/size_class.hpp"
#include "memory/pool/spin_lock.hpp"
#include "tern/device/mark.hpp"

namespace tern::pool {

struct CacheBounds {
  std::size_t class_bytes = std::size_t{8} << 20;
  std::size_t recent_bytes = std::size_t{128} << 20;
  std::size_t middle_bytes = 0;  // in stacks, and without a class
};

/// When memory is short.
inline constexpr CacheBounds tight_bounds{std::size_t{1} << 20, 0, 0};

class alignas(64) StreamCache {
 public:
  static constexpr std::size_t most_per_class = 32;
  static constexpr std::size_t recent_count = 2;
  /// A block may be larger than what is granted by such a part of that.
  static constexpr std::uint64_t slack_share = 8;

  struct Counts {
    std::uint64_t allocations = 0;
    std::uint64_t frees = 0;
    std::uint64_t live_bytes = 0;  // of blocks that were allocated here
    std::uint64_t peak_live_bytes = 0;
    // Seldom changed, from here on.
    std::uint64_t slack_bytes = 0;  // behind those blocks
    // Where blocks came from that were not in the cache.
    std::uint64_t own_in_flight_hits = 0, quiescent_hits = 0, steals = 0, grown_hits = 0,
                  remapped_hits = 0;
    // Requests that were given nothing.
    std::uint64_t empty_requests = 0, refusals = 0, known_refusals = 0;

    [[nodiscard]] std::uint64_t requests() const noexcept {
      return allocations + empty_requests + refusals;
    }
    [[nodiscard]] std::uint64_t cache_hits() const noexcept {
      return allocations - own_in_flight_hits - quiescent_hits - steals - grown_hits -
             remapped_hits;
    }
  };

  /// `slot`: of the streams it is for.
  explicit StreamCache(std::size_t slot_of_it = 0) noexcept : slot(slot_of_it) {}

  /// A block for so many bytes, of the size that is granted for them or with some slack; null if
  /// there is none.
  [[nodiscard]] Descriptor* take(std::size_t bytes) noexcept {
    return bytes <= largest_class_bytes ? take_classed(bytes)
                                        : take_larger(granted_bytes(bytes), 1);
  }
  /// Of at most largest_class_bytes.
  [[nodiscard]] Descriptor* take_classed(std::size_t bytes) noexcept {
    Stack& stack = stacks_[class_of(bytes)];
    if (stack.count == 0) return nullptr;
    Descriptor* const top = stack.pop();
    class_bytes_ -= top->size * granule_bytes;
    return top;
  }
  /// Of more than that, in bytes as they are granted, at a multiple of `alignment` granules.
  [[nodiscard]] Descriptor* take_larger(std::size_t granted_bytes,
                                        std::uint64_t alignment) noexcept;
  /// Of more than that, if it is the one that was kept last: for who gives a large block back and
  /// wants it again. It has no slack.
  [[nodiscard]] Descriptor* take_newest(std::size_t granted_bytes) noexcept {
    Descriptor* const newest = recent_.front();
    if (newest == nullptr || newest->size * granule_bytes != granted_bytes) return nullptr;
    for (std::size_t i = 1; i < recent_count; ++i) recent_[i - 1] = recent_[i];
    recent_.back() = nullptr;
    recent_bytes_ -= granted_bytes;
    return newest;
  }
  /// The other way round: true if there is room for it as the newest.
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
  /// Any, at a multiple of `alignment` granules.
  [[nodiscard]] Descriptor* take_aligned(std::size_t bytes, std::uint64_t alignment) noexcept;
  /// Keeps the block, its slack included. What has to leave for it, perhaps itself, is linked by
  /// next.
  [[nodiscard]] Descriptor* put(Descriptor& block, const CacheBounds& bounds) noexcept {
    return try_put(block, bounds.class_bytes) ? nullptr : put_with_care(block, bounds);
  }
  /// If it has a class and there is room for it.
  [[nodiscard]] bool try_put(Descriptor& block, std::size_t most_class_bytes) noexcept {
    const std::size_t bytes = block.size * granule_bytes;
    if (bytes > largest_class_bytes || class_bytes_ + bytes > most_class_bytes) return false;
    Stack& stack = stacks_[class_of(bytes)];
    if (stack.count == most_per_class) return false;
    stack.push(block);
    class_bytes_ += bytes;
    return true;
  }
  /// The same as put(), for what there is no room for as it is.
  [[nodiscard]] Descriptor* put_with_care(Descriptor& block, const CacheBounds& bounds) noexcept;
  /// Everything, linked by next.
  [[nodiscard]] Descriptor* take_all() noexcept;
  /// Of blocks that can be taken, or asked to leave.
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
  /// The block is of so many granules, and the rest of it slack.
  void begin_slack(Descriptor& block, std::uint64_t granules) noexcept {
    if (block.size == granules) return;
    block.slack = static_cast<std::uint32_t>(block.size - granules);
    counts.slack_bytes += block.slack * granule_bytes;
    block.older = nullptr;
    block.newer = with_slack_;
    if (with_slack_ != nullptr) with_slack_->older = &block;
    with_slack_ = &block;
  }
  /// Of a block that was allocated here and is freed: it is one piece again.
  void end_slack(Descriptor& block) noexcept {
    if (block.slack == 0) return;
    counts.slack_bytes -= block.slack * granule_bytes;
    block.slack = 0;
    (block.older != nullptr ? block.older->newer : with_slack_) = block.newer;
    if (block.newer != nullptr) block.newer->older = block.older;
    block.older = block.newer = nullptr;
  }
  /// A live block of this cache that has slack; null if there is none.
  [[nodiscard]] Descriptor* first_with_slack() const noexcept { return with_slack_; }

  // What every hit and free needs is in one line: the first.
  SpinLock lock;
  const std::size_t slot;
  StreamId stream = {};  // the last that was here

 private:
  std::size_t class_bytes_ = 0;

 public:
  Counts counts;
  StreamCache* older = nullptr;  // of the pool; never changes once it is known

 private:
  /// Linked by next: what is to be touched of a stack is its top, which is wanted anyway.
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
  void put_middle(Descriptor& block, std::size_t most_bytes, Descriptor*& leaving) noexcept;
  void put_recent(Descriptor& block, std::size_t most_bytes, Descriptor*& leaving) noexcept;
  /// Until there is room in the middle for so many bytes.
  void shed_middle(std::size_t bytes, std::size_t most_bytes, Descriptor*& leaving) noexcept;
  /// The older half of a stack.
  static void shed(Stack& stack, std::size_t& bytes, Descriptor*& leaving) noexcept;

  std::size_t recent_bytes_ = 0;
  std::size_t middle_bytes_ = 0;
  std::array<Descriptor*, recent_count> recent_ = {};  // the newest first
  std::array<Stack, class_count> stacks_ = {};
  std::size_t hand_ = 0;  // the stack that sheds next
  // The same for those in the middle, of up to a class's size.
  std::array<Stack, middle_class_count> middle_ = {};
  std::size_t middle_hand_ = 0;
  Descriptor* with_slack_ = nullptr;  // linked by newer

 public:
  Lane lane;  // guarded by the lock of the ranges
};

}  // namespace tern::pool
