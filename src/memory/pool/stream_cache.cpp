// The slow paths of a stream cache: making room, blocks above the size classes, and flushing.

#include "memory/pool/stream_cache.hpp"

#include <algorithm>
#include <utility>

namespace tern::pool {
namespace {

/// The largest share of the tight bound that one block may take.
constexpr std::size_t tight_share = 8;

std::size_t bytes_of(const Descriptor& block) noexcept { return block.size * granule_bytes; }

void push(Descriptor& block, Descriptor*& list) noexcept {
  block.next = std::exchange(list, &block);
}

// Returns whether a block of this size belongs in the middle stacks: above 1 MiB and below 16 MiB.
bool is_middle(std::size_t granted_bytes) noexcept {
  return granted_bytes > largest_class_bytes && granted_bytes < min_large_bytes;
}

}  // namespace

// Keeps the upper half of the stack, which was freed last, and adds the rest to `leaving`.
void StreamCache::shed(Stack& stack, std::size_t& bytes, Descriptor*& leaving) noexcept {
  const std::size_t keep = stack.count / 2;
  Descriptor** cut = &stack.top;
  for (std::size_t i = 0; i < keep; ++i) cut = &(*cut)->next;
  Descriptor* const old = std::exchange(*cut, nullptr);
  if (old == nullptr) return;
  Descriptor* last = nullptr;
  for (Descriptor* block = old; block != nullptr; block = block->next) {
    bytes -= bytes_of(*block);
    last = block;
  }
  last->next = std::exchange(leaving, old);
  stack.count = keep;
}

// First enforces bounds that may have shrunk, then makes room for the block.
Descriptor* StreamCache::put_slow(Descriptor& block, const CacheBounds& bounds) noexcept {
  Descriptor* leaving = nullptr;
  const std::size_t bytes = bytes_of(block);
  if (recent_bytes_ > bounds.recent_bytes) {
    for (Descriptor*& old : recent_) {
      if (old != nullptr) push(*std::exchange(old, nullptr), leaving);
    }
    recent_bytes_ = 0;
  }
  if (middle_bytes_ > bounds.middle_bytes) shed_middle(0, bounds.middle_bytes, leaving);
  if (bytes > largest_class_bytes) {
    end_slack(block);
    if (is_middle(bytes) && bytes <= bounds.middle_bytes) {
      put_middle(block, bounds.middle_bytes, leaving);
    } else {
      put_recent(block, bounds.recent_bytes, leaving);
    }
    return leaving;
  }
  const bool is_short = bounds.class_bytes <= tight_bounds.class_bytes;
  // If memory is short, one block must not displace many smaller ones.
  if (is_short && bytes > bounds.class_bytes / tight_share && class_bytes_ <= bounds.class_bytes) {
    push(block, leaving);
    return leaving;
  }
  Stack& stack = stacks_[class_of(bytes)];
  if (stack.count == max_per_class) shed(stack, class_bytes_, leaving);
  // Stacks shed in turn, so that no class keeps blocks that it does not use. A stack of small
  // blocks sheds only if it holds its share of the bytes, because small blocks are soon missed and
  // free little memory. If memory is short, small blocks are shed too: a small block keeps a page
  // in use as well as a large one.
  while (class_bytes_ > 0 && class_bytes_ + bytes > bounds.class_bytes) {
    const std::size_t held = stacks_[hand_].count * class_bytes(hand_);
    if (is_short || held * class_count >= class_bytes_) {
      shed(stacks_[hand_], class_bytes_, leaving);
    }
    hand_ = (hand_ + 1) % class_count;
  }
  if (class_bytes_ + bytes > bounds.class_bytes) {
    push(block, leaving);
    return leaving;
  }
  stack.push(block);
  class_bytes_ += bytes;
  return leaving;
}

Descriptor* StreamCache::take_aligned(std::size_t bytes, std::uint64_t alignment) noexcept {
  if (bytes > largest_class_bytes) return take_larger(granted_bytes(bytes), alignment);
  const Stack& stack = stacks_[class_of(bytes)];
  if (stack.count == 0 || stack.top->offset % alignment != 0) return nullptr;
  return take_classed(bytes);
}

// --- Blocks above the size classes

Descriptor* StreamCache::take_larger(std::size_t granted_bytes, std::uint64_t alignment) noexcept {
  if (middle_bytes_ > 0 && is_middle(granted_bytes)) {
    if (Descriptor* block = take_middle(granted_bytes, alignment)) return block;
  }
  return take_recent(granted_bytes, alignment);
}

Descriptor* StreamCache::take_middle(std::size_t granted_bytes, std::uint64_t alignment) noexcept {
  // Blocks of up to this size are in the stack of the size and the two stacks after it.
  const std::size_t max_bytes = granted_bytes + granted_bytes / slack_share;
  const std::size_t first = class_of(granted_bytes) - class_count;
  const std::size_t last = std::min(first + 3, middle_.size());
  for (std::size_t at = first; at < last; ++at) {
    Stack& stack = middle_[at];
    // Choose the tightest fit, so that larger blocks stay for larger requests.
    Descriptor** best = nullptr;
    std::size_t best_bytes = max_bytes + 1;
    for (Descriptor** link = &stack.top; *link != nullptr && best_bytes > granted_bytes;
         link = &(*link)->next) {
      const std::size_t bytes = bytes_of(**link);
      if (bytes < granted_bytes || bytes >= best_bytes || (*link)->offset % alignment != 0) {
        continue;
      }
      best = link;
      best_bytes = bytes;
    }
    if (best == nullptr) continue;
    Descriptor* const block = *best;
    *best = block->next;
    --stack.count;
    middle_bytes_ -= best_bytes;
    return block;
  }
  return nullptr;
}

Descriptor* StreamCache::take_recent(std::size_t granted_bytes, std::uint64_t alignment) noexcept {
  for (std::size_t i = 0; i < recent_count; ++i) {
    Descriptor* block = recent_[i];
    if (block == nullptr || bytes_of(*block) != granted_bytes || block->offset % alignment != 0) {
      continue;
    }
    for (std::size_t later = i + 1; later < recent_count; ++later) {
      recent_[later - 1] = recent_[later];
    }
    recent_.back() = nullptr;
    recent_bytes_ -= granted_bytes;
    return block;
  }
  return nullptr;
}

void StreamCache::shed_middle(std::size_t bytes, std::size_t max_bytes,
                              Descriptor*& leaving) noexcept {
  while (middle_bytes_ > 0 && middle_bytes_ + bytes > max_bytes) {
    shed(middle_[middle_hand_], middle_bytes_, leaving);
    middle_hand_ = (middle_hand_ + 1) % middle_.size();
  }
}

void StreamCache::put_middle(Descriptor& block, std::size_t max_bytes,
                             Descriptor*& leaving) noexcept {
  const std::size_t bytes = bytes_of(block);
  shed_middle(bytes, max_bytes, leaving);
  Stack& stack = middle_[class_of(bytes) - class_count];
  if (stack.count == max_per_class) shed(stack, middle_bytes_, leaving);
  stack.push(block);
  middle_bytes_ += bytes;
}

// Keeps the block as the newest; older ones leave until the count and the bytes allow it.
void StreamCache::put_recent(Descriptor& block, std::size_t max_bytes,
                             Descriptor*& leaving) noexcept {
  const std::size_t bytes = bytes_of(block);
  if (bytes > max_bytes) {
    push(block, leaving);
    return;
  }
  for (std::size_t i = recent_count; i > 0; --i) {
    Descriptor*& old = recent_[i - 1];
    if (old == nullptr) continue;
    const bool has_room = recent_.back() == nullptr && recent_bytes_ + bytes <= max_bytes;
    if (has_room) break;
    recent_bytes_ -= bytes_of(*old);
    push(*std::exchange(old, nullptr), leaving);
  }
  for (std::size_t i = recent_count - 1; i > 0; --i) recent_[i] = recent_[i - 1];
  recent_.front() = &block;
  recent_bytes_ += bytes;
}

Descriptor* StreamCache::take_all() noexcept {
  Descriptor* all = nullptr;
  const auto empty = [&all](auto& stacks) {
    for (Stack& stack : stacks) {
      while (stack.count > 0) push(*stack.pop(), all);
    }
  };
  empty(stacks_);
  empty(middle_);
  for (Descriptor*& one : recent_) {
    if (one != nullptr) push(*std::exchange(one, nullptr), all);
  }
  class_bytes_ = recent_bytes_ = middle_bytes_ = 0;
  return all;
}

}  // namespace tern::pool
