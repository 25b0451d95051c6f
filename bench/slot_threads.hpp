// Threads that allocate and free at random, each on a stream and in slots of its own.

#pragma once

#include <cstddef>
#include <span>

#include "tern/device/stream.hpp"
#include "tern/memory/resource.hpp"

namespace tern::bench {

/// Millions of allocations and frees a second, of all threads together, for sizes log-uniform from
/// 256 bytes up. A refusal throws.
[[nodiscard]] double slot_mops(Resource& resource, std::span<const Stream> streams,
                               std::size_t threads, std::size_t max_bytes, double seconds);

}  // namespace tern::bench
