// Threads that allocate and free at random. Each thread has its own stream and its own slots for
// blocks.

#pragma once

#include <cstddef>
#include <span>

#include "tern/device/stream.hpp"
#include "tern/memory/resource.hpp"

namespace tern::bench {

/// Returns the rate of allocations and frees of all threads together, in millions per second. Sizes
/// are log-uniform from 256 bytes to `max_bytes`. Throws if an allocation fails.
[[nodiscard]] double slot_mops(Resource& resource, std::span<const Stream> streams,
                               std::size_t threads, std::size_t max_bytes, double seconds);

}  // namespace tern::bench
