// The block table maps the generation of a block to what is known about the block. One per process.
//
// A place is one row of the table and describes one block. To free a block, a thread must first
// claim its place; if several threads try, one succeeds. After the free, the place is reused with a
// larger count, so an old generation never matches. Lookups take no lock. The table is never
// destroyed, because blocks may be freed after main() has ended. Thread-safe.
//
// An allocator that hands out the same ranges repeatedly keeps its own places (try_keep_place). It
// renews a place for each block without the table's lock and without an atomic operation that other
// threads contend for.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"
#include "tern/device/mark.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

class Resource;

/// What is known about a block beyond the fields of Block.
struct BlockFacts {
  void* address = nullptr;
  std::size_t bytes = 0;
  DeviceId device = {};
  const Resource* owner = nullptr;
  StreamId stream = {};
  Tag tag = {};
  std::uint64_t note = 0;  // private data of the owner
};

/// The state of a place, in the low bits of its word, below the count.
enum class BlockPhase : std::uint64_t { free, live, claimed, retired, quarantined };

/// One row of the table. Only its current holder writes it: the thread that has taken the slot,
/// before the first live word; the thread that has claimed the block; the owner of a kept place,
/// under a lock of its own. Other readers read the word before and after the fields and discard
/// what they read if the word changed.
struct alignas(64) BlockPlace {
  static constexpr unsigned phase_bits = 8;
  static constexpr std::uint64_t last_count = (std::uint64_t{1} << Generation::count_bits) - 1;

  std::atomic<std::uint64_t> word = 0;
  std::atomic<void*> address = nullptr;
  std::atomic<std::size_t> bytes = 0;
  std::atomic<const Resource*> owner = nullptr;
  std::atomic<StreamId> stream = {};        // first user of a live block, last user of a freed one
  std::atomic<std::uint64_t> sequence = 0;  // mark that ends the last use
  std::atomic<std::uint64_t> note = 0;
  std::atomic<DeviceId> device = {};
  std::atomic<Tag> tag = {};

  [[nodiscard]] static constexpr std::uint64_t word_of(std::uint64_t count,
                                                       BlockPhase phase) noexcept {
    return count << phase_bits | static_cast<std::uint64_t>(phase);
  }
  [[nodiscard]] std::uint64_t count() const noexcept {
    return word.load(std::memory_order_relaxed) >> phase_bits;
  }
  /// Relaxed is enough: the caller got the block from its allocation, which already ordered the
  /// fields.
  [[nodiscard]] bool is_live(std::uint64_t count) const noexcept {
    return word.load(std::memory_order_relaxed) == word_of(count, BlockPhase::live);
  }
  /// Starts a new live block at the address and with the size that the place already has. Returns
  /// its count. For kept places whose count is below last_count.
  std::uint64_t renew(StreamId first_user, Tag its_tag) noexcept {
    const std::uint64_t next = count() + 1;
    stream.store(first_user, std::memory_order_relaxed);
    tag.store(its_tag, std::memory_order_relaxed);
    word.store(word_of(next, BlockPhase::live), std::memory_order_release);
    return next;
  }
  /// Marks the block as freed; it is retired until the mark is done. For owners of kept places, and
  /// for the thread that has claimed the block.
  void retire(std::uint64_t its_count, Mark last_use) noexcept {
    stream.store(last_use.stream, std::memory_order_relaxed);
    sequence.store(last_use.sequence, std::memory_order_relaxed);
    word.store(word_of(its_count, BlockPhase::retired), std::memory_order_release);
  }
};

/// Reserves a place that `owner` renews block after block until it calls drop_place(). There is no
/// block yet. Returns the slot, which is part of every generation made with the place.
[[nodiscard]] Result<std::uint32_t> try_keep_place(const Resource* owner, DeviceId device,
                                                   std::uint64_t note) noexcept;
inline constexpr std::size_t places_per_chunk = 4096;
inline constexpr std::size_t max_place_chunks =
    (std::size_t{1} << Generation::slot_bits) / places_per_chunk;
/// The table itself, in chunks. Chunks are added in order and never removed.
[[gnu::visibility("hidden")]] extern std::array<std::atomic<BlockPlace*>, max_place_chunks>
    place_chunks;

/// Returns the place of a slot, or null for a slot that does not exist yet. Places never move.
[[nodiscard]] inline BlockPlace* find_place(std::uint32_t slot) noexcept {
  BlockPlace* chunk = place_chunks[slot / places_per_chunk].load(std::memory_order_acquire);
  return chunk == nullptr ? nullptr : chunk + slot % places_per_chunk;
}
/// Gives up a kept place whose block is no longer live. A place that has reached last_count is not
/// reused.
void drop_place(std::uint32_t slot) noexcept;

/// Returns why the block cannot be freed: use_after_free, device_mismatch or out_of_bounds. `place`
/// is the place of the block's slot, or null.
[[nodiscard]] Failure why_not_live(const Block& block, const BlockPlace* place) noexcept;

/// Registers a live block. Fails with out_of_memory if the host has no memory, and with capacity if
/// there are 2^28 blocks.
[[nodiscard]] Result<Generation> try_begin_block(const BlockFacts& facts) noexcept;

/// Claims the block, so that this caller alone may free it. Until unclaim_block() or end_block(),
/// nobody else can claim it. Fails with use_after_free, device_mismatch, out_of_bounds; then
/// nothing changed.
[[nodiscard]] Result<BlockFacts> try_claim_block(const Block& block,
                                                 const Resource* owner) noexcept;
/// The free failed: makes a claimed block live again.
void unclaim_block(Generation generation) noexcept;
/// The free succeeded. The place can be reused when the mark is done.
void end_block(Generation generation, Mark last_use) noexcept;
/// The block was freed by the program but is kept in quarantine.
void quarantine_block(Generation generation) noexcept;

/// Calls visit(generation) for every live block of the process. Blocks that are allocated or freed
/// meanwhile may be left out.
template <class Visit>
void for_each_live_block(Visit visit) {
  for (std::uint32_t slot = 0; slot < places_per_chunk * max_place_chunks; ++slot) {
    const BlockPlace* const place = find_place(slot);
    if (place == nullptr) return;
    const std::uint64_t word = place->word.load(std::memory_order_acquire);
    const std::uint64_t count = word >> BlockPlace::phase_bits;
    if (word == BlockPlace::word_of(count, BlockPhase::live)) visit(Generation(slot, count));
  }
}

/// Returns the facts about a block. Fails with use_after_free if the place is free or has a newer
/// block.
[[nodiscard]] Result<BlockFacts> try_find_block(Generation generation) noexcept;
[[nodiscard]] BlockState state_of(Generation generation) noexcept;

}  // namespace tern
