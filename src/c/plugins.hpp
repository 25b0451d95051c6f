// The resources that other libraries allocate from, and what all allocating functions of the C API
// share.

#pragma once

#include <cstddef>
#include <memory>

#include "memory/pointer_owner.hpp"
#include "tern/c/tern.h"

namespace tern::c {

/// Allocates for the stream with this handle.
[[nodiscard]] Result<void*> allocate_on(PointerOwner& owner, const Request& request,
                                        void* handle) noexcept;
/// Frees in the order of the stream with this handle.
[[nodiscard]] Result<void> free_on(void* address, void* handle, CallSite site) noexcept;
/// Frees in the order of the stream of the allocation.
[[nodiscard]] Result<void> free_in_order(void* address, CallSite site) noexcept;

/// Allocates from the resource of a library, or from an open arena.
tern_status allocate_for(tern_library library, int ordinal, std::size_t bytes, void* handle,
                         void** address) noexcept;

/// Returns the handle that was set for a library, or null. Throws std::bad_alloc.
[[nodiscard]] std::shared_ptr<const tern_resource> plugin_of(tern_library library, int ordinal);
/// Fails for a device that no plug-in can have.
[[nodiscard]] Result<void> check_ordinal(int ordinal) noexcept;
/// For a library that has no resource on the device.
tern_status fail_no_plugin(tern_library library, int ordinal) noexcept;
inline constexpr int max_ordinals = 64;

}  // namespace tern::c
