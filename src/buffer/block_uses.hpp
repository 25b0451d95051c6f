// Use records of blocks that are not storages: one UseRecord per block that a recorder has
// declared.
//
// Records are found by generation, which identifies a block for ever. Records of freed blocks are
// removed as the table grows, so the table has about as many entries as there are live blocks with
// uses. Thread-safe.

#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/buffer/use_record.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

/// Returns the record of a block, creating it if necessary. Fails with out_of_memory.
[[nodiscard]] Result<std::shared_ptr<UseRecord>> try_uses_of(const Block& block,
                                                             CallSite site) noexcept;
/// Appends the records of all live blocks that overlap the range. Fails with out_of_memory.
[[nodiscard]] Result<void> try_find_uses_in(const std::byte* address, std::size_t bytes,
                                            std::vector<std::shared_ptr<UseRecord>>& found,
                                            CallSite site) noexcept;
/// Returns null if no use of the block was declared.
[[nodiscard]] std::shared_ptr<UseRecord> find_uses_of(const Block& block) noexcept;
/// Returns the number of records.
[[nodiscard]] std::size_t block_use_records() noexcept;

}  // namespace tern
