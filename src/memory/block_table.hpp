// The table of all blocks of the process: what a generation stands for.
//
// A place holds what is known of one block. Whoever frees the block claims it first, and of several
// that try, one succeeds. A place is used again when its block is gone, with another count, so that
// an old generation never matches. Lookups take no lock. Immortal, like everything that outlives
// main. Thread-safe.

#pragma once

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

/// What there is to know; nothing if the block is freed.
[[nodiscard]] Result<BlockFacts> try_find_block(Generation generation) noexcept;
[[nodiscard]] BlockState state_of(Generation generation) noexcept;

}  // namespace tern
