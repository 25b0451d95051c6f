// What the default resources of devices and shutdown() need of each other.

#pragma once

#include <vector>

#include "tern/device/device.hpp"
#include "tern/memory/resource.hpp"

namespace tern {

/// Like shutdown_default_resource(), for every kind of memory. Returns the last default resources;
/// each is destroyed when the caller drops it and no memory keeps it alive. A second call returns
/// none. Throws std::bad_alloc.
[[nodiscard]] std::vector<ResourceHandle> end_default_resources(const Device& device);

/// Calls shutdown() when the program exits, and prints what is still live as a table. May be called
/// more than once.
void report_leaks_at_exit();

}  // namespace tern
