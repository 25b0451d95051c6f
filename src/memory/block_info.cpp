// The public lookup of block facts, on top of the block table.

#include <bit>
#include <cstdint>
#include <string_view>

#include "memory/block_table.hpp"
#include "tern/memory/owned_block.hpp"

namespace tern {

std::string_view name(BlockState state) noexcept {
  switch (state) {
    case BlockState::live:
      return "live";
    case BlockState::retired:
      return "retired";
    case BlockState::quarantined:
      return "quarantined";
    case BlockState::freed:
      break;
  }
  return "freed";
}

BlockState block_state(Generation generation) noexcept { return state_of(generation); }

Result<BlockInfo> try_block_info(Generation generation) noexcept {
  const Result<BlockFacts> facts = try_find_block(generation);
  if (!facts) return facts.failure();
  const auto address = reinterpret_cast<std::uintptr_t>(facts->address);
  return BlockInfo{.address = facts->address,
                   .bytes = facts->bytes,
                   .alignment = std::size_t{1} << std::countr_zero(address),
                   .device = facts->device,
                   .resource = facts->owner,
                   .stream = facts->stream,
                   .tag = facts->tag,
                   .state = state_of(generation)};
}

}  // namespace tern
