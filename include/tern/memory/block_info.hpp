// What is known of a block beside what it carries itself, found by its generation.
//
// A block passes through up to four states, and each is visible here: live, retired while its
// stream may still use it, quarantined by a guard, freed. Thread-safe; takes no lock.

#pragma once

#include <cstddef>
#include <string_view>

#include "tern/core/export.hpp"
#include "tern/core/place.hpp"
#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"
#include "tern/device/mark.hpp"
#include "tern/memory/block.hpp"

namespace tern {

class Resource;

struct BlockInfo {
  void* address = nullptr;
  std::size_t bytes = 0;
  /// Of the address as it is: the largest power of two that divides it.
  std::size_t alignment = 0;
  DeviceId device = {};
  /// The resource that made the block: at the bottom of a stack, or a guard. Valid while it lives.
  const Resource* resource = nullptr;
  /// The stream that uses it first; once freed, the one that used it last.
  StreamId stream = {};
  Tag tag = {};
  BlockState state = BlockState::freed;
};

/// "live", "retired", "quarantined" or "freed".
[[nodiscard]] TERN_EXPORT std::string_view name(BlockState state) noexcept;
/// freed for a generation that was never issued. Asks the device about a retired block.
[[nodiscard]] TERN_EXPORT BlockState block_state(Generation generation) noexcept;
/// Refused with use_after_free once the block's place has a new owner, or if it never had one.
[[nodiscard]] TERN_EXPORT Result<BlockInfo> try_block_info(Generation generation) noexcept;

}  // namespace tern
