// Internal access to the default resources of a device, for shutdown().

#pragma once

#include <vector>

#include "tern/device/device.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

/// Like shutdown_default_resource(), for every kind of memory. Returns the last default resources;
/// each is destroyed when the caller drops it and no memory keeps it alive. A second call returns
/// none. Throws std::bad_alloc.
[[nodiscard]] std::vector<ResourceHandle> end_default_resources(const Device& device);

}  // namespace tern
