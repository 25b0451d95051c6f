// The uses of blocks that are no storage: a UseRecord for each block that a recorder has declared.
//
// A block has no owner here, so records are found by generation, which names one block for ever.
// Those of blocks that are freed are forgotten as the table grows, so it holds about as many as
// there are live blocks with uses. Thread-safe.

#pragma once

#include <cstddef>
#include <memory>

#include "tern/core/call_site.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/buffer/use_record.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

/// Made if there is none. Refused with out_of_memory.
[[nodiscard]] Result<std::shared_ptr<UseRecord>> try_uses_of(const Block& block,
                                                             CallSite site) noexcept;
/// Null if nobody has declared a use.
[[nodiscard]] std::shared_ptr<UseRecord> find_uses_of(const Block& block) noexcept;
/// How many records there are.
[[nodiscard]] std::size_t block_use_records() noexcept;

}  // namespace tern
