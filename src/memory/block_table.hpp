// The table of all blocks of the process: what a generation stands for.
//
// A place holds what is known of one block. Whoever frees the block claims it first, and of several
// that try, one succeeds. A place is used again when its block is gone, with another count, so that
// an old generation never matches. Lookups take no lock. Immortal, like everything that outlives
// main. Thread-safe.
//
// An allocator that hands out the same ranges again and again keeps places of its own: it renews
// them for block after block, without the table's lock and without a step that others contend for.

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"
#include "tern/device/mark.hpp"
#include "tern/memory/block.hpp"

namespace tern {

class Resource;

/// What is known of a block beside what it carries itself.
struct BlockFacts {
  void* address = nullptr;
  std::size_t bytes = 0;
  DeviceId device = {};
  const Resource* owner = nullptr;
  StreamId stream = {};
  Tag tag = {};
  std::uint64_t note = 0;  // the owner's
};

/// What a place is for, in the low bits of its word, below the count.
enum class BlockPhase : std::uint64_t { free, live, claimed, retired, quarantined };

/// One line of the table. Written only by whoever holds it: between its taking and its first live
/// word, by the claimer, and by the owner of a kept place, who has a lock of its own. Readers of
/// others' places look at the word before and after.
struct alignas(64) BlockPlace {
  static constexpr unsigned phase_bits = 8;
  static constexpr std::uint64_t last_count = (std::uint64_t{1} << Generation::count_bits) - 1;

  std::atomic<std::uint64_t> word = 0;
  std::atomic<void*> address = nullptr;
  std::atomic<std::size_t> bytes = 0;
  std::atomic<const Resource*> owner = nullptr;
  std::atomic<StreamId> stream = {};        // that uses it first; once freed, that used it last
  std::atomic<std::uint64_t> sequence = 0;  // of the mark that ends the last use
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
  /// Whoever has the block has it from its allocation, and sees the rest of the place as it was.
  [[nodiscard]] bool is_live(std::uint64_t count) const noexcept {
    return word.load(std::memory_order_relaxed) == word_of(count, BlockPhase::live);
  }
  /// A live block of a new generation, at the address and of the size the place has. Gives its
  /// count. For kept places whose count is below the last.
  std::uint64_t renew(StreamId first_user, Tag its_tag) noexcept {
    const std::uint64_t next = count() + 1;
    stream.store(first_user, std::memory_order_relaxed);
    tag.store(its_tag, std::memory_order_relaxed);
    word.store(word_of(next, BlockPhase::live), std::memory_order_release);
    return next;
  }
  /// Freed: retired until the mark is done. For kept places, and by the claimer.
  void retire(std::uint64_t its_count, Mark last_use) noexcept {
    stream.store(last_use.stream, std::memory_order_relaxed);
    sequence.store(last_use.sequence, std::memory_order_relaxed);
    word.store(word_of(its_count, BlockPhase::retired), std::memory_order_release);
  }
};

/// A place for its owner to renew, until it is dropped; no block yet. Its slot is half of every
/// generation made with it.
[[nodiscard]] Result<std::uint32_t> try_keep_place(const Resource* owner, DeviceId device,
                                                   std::uint64_t note) noexcept;
inline constexpr std::size_t places_per_chunk = 4096;
inline constexpr std::size_t most_place_chunks =
    (std::size_t{1} << Generation::slot_bits) / places_per_chunk;
/// The table itself; filled from the front, and never emptied.
extern std::array<std::atomic<BlockPlace*>, most_place_chunks> place_chunks;

/// Null for a slot that was never made. Places never move.
[[nodiscard]] inline BlockPlace* find_place(std::uint32_t slot) noexcept {
  BlockPlace* chunk = place_chunks[slot / places_per_chunk].load(std::memory_order_acquire);
  return chunk == nullptr ? nullptr : chunk + slot % places_per_chunk;
}
/// No block is live in it any more. One that has counted to the end is not used again.
void drop_place(std::uint32_t slot) noexcept;

/// Why a block is not its resource's to free: use_after_free, device_mismatch or out_of_bounds. The
/// place is that of the block's slot, or null.
[[nodiscard]] Failure why_not_live(const Block& block, const BlockPlace* place) noexcept;

/// A live block from now on. Refused with out_of_memory if the host has none, and with capacity if
/// there are 2^28 blocks.
[[nodiscard]] Result<Generation> try_begin_block(const BlockFacts& facts) noexcept;

/// The right to free the block, for one caller. Refused: use_after_free, device_mismatch,
/// out_of_bounds; then nothing has changed. Until it ends the block is neither live nor free.
[[nodiscard]] Result<BlockFacts> try_claim_block(const Block& block,
                                                 const Resource* owner) noexcept;
/// The free came to nothing: live again.
void unclaim_block(Generation generation) noexcept;
/// It is freed. The place may be used again when the mark is done.
void end_block(Generation generation, Mark last_use) noexcept;
/// It is freed, and held back.
void quarantine_block(Generation generation) noexcept;

/// Every live block of the process, by its generation; those that come and go meanwhile may be left
/// out.
template <class Visit>
void for_each_live_block(Visit visit) {
  for (std::uint32_t slot = 0; slot < places_per_chunk * most_place_chunks; ++slot) {
    const BlockPlace* const place = find_place(slot);
    if (place == nullptr) return;  // filled from the front
    const std::uint64_t word = place->word.load(std::memory_order_acquire);
    const std::uint64_t count = word >> BlockPlace::phase_bits;
    if (word == BlockPlace::word_of(count, BlockPhase::live)) visit(Generation(slot, count));
  }
}

/// What there is to know; nothing if the block is freed.
[[nodiscard]] Result<BlockFacts> try_find_block(Generation generation) noexcept;
[[nodiscard]] BlockState state_of(Generation generation) noexcept;

}  // namespace tern
