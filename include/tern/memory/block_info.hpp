// Looks up what the library knows about a block, given its generation.
//
//   if (block_state(block.generation) == BlockState::live) { ... }
//   Tag tag = try_block_info(block.generation).value().tag;
//
// A block goes through up to four states: live; retired, while its stream may still use the memory;
// quarantined, while a GuardResource keeps it; freed. All functions are thread-safe and take no
// lock.

#pragma once

#include <cstddef>
#include <string_view>

#include "tern/core/place.hpp"
#include "tern/core/result.hpp"
#include "tern/core/tag.hpp"
#include "tern/core/visibility.hpp"
#include "tern/device/mark.hpp"
#include "tern/memory/block.hpp"

namespace tern {

class Resource;

/// The facts about one block.
struct BlockInfo {
  void* address = nullptr;
  std::size_t bytes = 0;
  /// The largest power of two that divides the address. May be larger than the requested alignment.
  std::size_t alignment = 0;
  DeviceId device = {};
  /// The resource that allocated the block: the bottom of a stack of wrappers, or a GuardResource.
  /// The pointer is valid while the resource lives.
  const Resource* resource = nullptr;
  /// The stream of the request, which uses the block first. After the free: the stream of the free,
  /// which used the block last.
  StreamId stream = {};
  Tag tag = {};
  BlockState state = BlockState::freed;
};

/// Returns "live", "retired", "quarantined" or "freed".
[[nodiscard]] TERN_EXPORT std::string_view name(BlockState state) noexcept;
/// Returns the state of the block, or `freed` for a generation that was never issued. For a retired
/// block, the call queries the device whether the stream has passed the free. Does not wait.
[[nodiscard]] TERN_EXPORT BlockState block_state(Generation generation) noexcept;
/// Returns the facts about the block. Fails with use_after_free if the slot now belongs to a newer
/// block or the generation was never issued.
[[nodiscard]] TERN_EXPORT Result<BlockInfo> try_block_info(Generation generation) noexcept;

}  // namespace tern
