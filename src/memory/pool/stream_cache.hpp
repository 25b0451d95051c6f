// What one stream keeps of the blocks it has freed, to have them again without asking anybody.
//
// Blocks of a class are in a stack: the last one freed is used first. Larger ones are in two
// places for the most recent, and are found by their exact size. All of it is bounded in bytes;
// what has no room leaves, the coldest first. Reuse needs no mark and no event, because one
// stream's work is in order. It also counts what the stream did. Everything but the lock is
// guarded by it.

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
};

/// When memory is short.
inline constexpr CacheBounds tight_bounds{std::size_t{1} << 20, 0};

class alignas(64) StreamCache {
 public:
  static constexpr std::size_t most_per_class = 32;
  static constexpr std::size_t recent_count = 2;

  struct Counts {
    std::uint64_t allocations = 0;
    std::uint64_t frees = 0;
    std::uint64_t live_bytes = 0;  // of blocks that were allocated here
    std::uint64_t peak_live_bytes = 0;
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

  /// A block for so many bytes, of the size that is granted for them; null if there is none.
  [[nodiscard]] Descriptor* take(std::size_t bytes) noexcept {
    if (bytes > largest_class_bytes) return take_recent(granted_bytes(bytes), 1);
    Stack& stack = stacks_[class_of(bytes)];
    if (stack.count == 0) return nullptr;
    Descriptor* const top = stack.blocks[--stack.count];
    class_bytes_ -= top->size * granule_bytes;
    return top;
  }
  /// The same at a multiple of `alignment` granules.
  [[nodiscard]] Descriptor* take_aligned(std::size_t bytes, std::uint64_t alignment) noexcept;
  /// Keeps the block. What has to leave for it, perhaps itself, is linked by next.
  [[nodiscard]] Descriptor* put(Descriptor& block, const CacheBounds& bounds) noexcept {
    const std::size_t bytes = block.size * granule_bytes;
    if (bytes <= largest_class_bytes && class_bytes_ + bytes <= bounds.class_bytes) {
      Stack& stack = stacks_[class_of(bytes)];
      if (stack.count < most_per_class) {
        stack.blocks[stack.count++] = &block;
        class_bytes_ += bytes;
        return nullptr;
      }
    }
    return put_with_care(block, bounds);
  }
  /// Everything, linked by next.
  [[nodiscard]] Descriptor* take_all() noexcept;
  [[nodiscard]] std::size_t bytes() const noexcept { return class_bytes_ + recent_bytes_; }

  void note_allocation(std::size_t granted_bytes) noexcept {
    ++counts.allocations;
    counts.live_bytes += granted_bytes;
    if (counts.live_bytes > counts.peak_live_bytes) counts.peak_live_bytes = counts.live_bytes;
  }
  void note_free(std::size_t granted_bytes) noexcept {
    ++counts.frees;
    counts.live_bytes -= granted_bytes;
  }

  SpinLock lock;
  const std::size_t slot;
  StreamId stream = {};  // the last that was here
  Counts counts;
  StreamCache* older = nullptr;  // of the pool; never changes once it is known

 private:
  struct Stack {
    std::uint32_t count = 0;
    std::array<Descriptor*, most_per_class> blocks = {};
  };
  [[nodiscard]] Descriptor* take_recent(std::size_t granted_bytes,
                                        std::uint64_t alignment) noexcept;
  void put_recent(Descriptor& block, std::size_t most_bytes, Descriptor*& leaving) noexcept;
  [[nodiscard]] Descriptor* put_with_care(Descriptor& block, const CacheBounds& bounds) noexcept;
  /// The older half of a stack.
  void shed(Stack& stack, Descriptor*& leaving) noexcept;

  std::size_t class_bytes_ = 0;
  std::size_t recent_bytes_ = 0;
  std::array<Descriptor*, recent_count> recent_ = {};  // the newest first
  std::array<Stack, class_count> stacks_ = {};
  std::size_t hand_ = 0;  // the stack that sheds next

 public:
  Lane lane;  // guarded by the lock of the ranges
};

}  // namespace tern::pool
