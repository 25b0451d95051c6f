// Converts between resources of C++ and handles of the C API, for programs that use both.

#pragma once

#include "tern/c/tern.h"
#include "tern/core/tag.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

/// Returns a new handle, which shares the resource. The tag names the memory that is allocated
/// through the handle. Release the handle with tern_release_resource(). Throws as the constructor
/// of PointerAllocator does.
[[nodiscard]] TERN_EXPORT tern_resource* make_c_handle(ResourceHandle resource, Tag tag = {});

/// Returns the resource of a handle.
[[nodiscard]] TERN_EXPORT ResourceHandle resource_of(const tern_resource* handle) noexcept;

}  // namespace tern
