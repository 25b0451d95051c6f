// The end of a device's default resources, for shutdown().

#pragma once

#include <vector>

#include "tern/device/device.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

/// As shutdown_default_resource(), for every kind of memory: returns those there were, which end
/// when the caller drops them and nobody holds a block of them. Once ended, it returns none. Throws
/// std::bad_alloc.
[[nodiscard]] std::vector<ResourceHandle> end_default_resources(const Device& device);

}  // namespace tern
