#include "memory/pool/stream_cache.hpp"

#include <algorithm>
#include <utility>

namespace tern::pool {
namespace {

std::size_t bytes_of(const Descriptor& block) noexcept { return block.size * granule_bytes; }

void push(Descriptor& block, Descriptor*& list) noexcept {
  block.next = std::exchange(list, &block);
}

}  // namespace

void StreamCache::shed(Stack& stack, Descriptor*& leaving) noexcept {
  const std::uint32_t leave = (stack.count + 1) / 2;
  for (std::uint32_t i = 0; i < leave; ++i) {
    class_bytes_ -= bytes_of(*stack.blocks[i]);
    push(*stack.blocks[i], leaving);
  }
  std::copy(stack.blocks.begin() + leave, stack.blocks.begin() + stack.count, stack.blocks.begin());
  stack.count -= leave;
}

Descriptor* StreamCache::put_with_care(Descriptor& block, const CacheBounds& bounds) noexcept {
  Descriptor* leaving = nullptr;
  const std::size_t bytes = bytes_of(block);
  if (recent_bytes_ > bounds.recent_bytes) {
    for (Descriptor*& old : recent_) {
      if (old != nullptr) push(*std::exchange(old, nullptr), leaving);
    }
    recent_bytes_ = 0;
  }
  if (bytes > largest_class_bytes) {
    put_recent(block, bounds.recent_bytes, leaving);
    return leaving;
  }
  Stack& stack = stacks_[class_of(bytes)];
  if (stack.count == most_per_class) shed(stack, leaving);
  // One round: stacks take turns, so that no class keeps what it does not use.
  for (std::size_t turns = 0; class_bytes_ + bytes > bounds.class_bytes && turns < 2 * class_count;
       ++turns) {
    shed(stacks_[hand_], leaving);
    hand_ = (hand_ + 1) % class_count;
  }
  if (class_bytes_ + bytes > bounds.class_bytes) {
    push(block, leaving);
    return leaving;
  }
  stack.blocks[stack.count++] = &block;
  class_bytes_ += bytes;
  return leaving;
}

Descriptor* StreamCache::take_aligned(std::size_t bytes, std::uint64_t alignment) noexcept {
  if (bytes > largest_class_bytes) return take_recent(granted_bytes(bytes), alignment);
  const Stack& stack = stacks_[class_of(bytes)];
  if (stack.count == 0 || stack.blocks[stack.count - 1]->offset % alignment != 0) return nullptr;
  return take(bytes);
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

void StreamCache::put_recent(Descriptor& block, std::size_t most_bytes,
                             Descriptor*& leaving) noexcept {
  const std::size_t bytes = bytes_of(block);
  if (bytes > most_bytes) {
    push(block, leaving);
    return;
  }
  for (std::size_t i = recent_count; i > 0; --i) {
    Descriptor*& old = recent_[i - 1];
    if (old == nullptr) continue;
    const bool has_room = recent_.back() == nullptr && recent_bytes_ + bytes <= most_bytes;
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
  for (Stack& stack : stacks_) {
    while (stack.count > 0) push(*stack.blocks[--stack.count], all);
  }
  for (Descriptor*& one : recent_) {
    if (one != nullptr) push(*std::exchange(one, nullptr), all);
  }
  class_bytes_ = recent_bytes_ = 0;
  return all;
}

}  // namespace tern::pool
