// The arenas of CUDA graphs that are open on each device, for plug-ins.

#pragma once

#include <functional>
#include <memory>

#include "memory/pointer_owner.hpp"
#include "tern/c/tern.h"

namespace tern::c {

using StreamFilter = std::function<bool(void*)>;

/// Opens an arena, which is made over `upstream` if the id is unknown. Throws.
void begin_arena(int ordinal, tern_arena_id id, StreamFilter filter,
                 const ResourceHandle& upstream);
[[nodiscard]] Result<void> end_arena(int ordinal, tern_arena_id id) noexcept;
[[nodiscard]] Result<void> release_arena(int ordinal, tern_arena_id id) noexcept;
/// Returns the open arena whose filter accepts the stream, or null. One load if none is open.
[[nodiscard]] std::shared_ptr<PointerOwner> open_arena_for(int ordinal, void* handle) noexcept;

}  // namespace tern::c
