// Which process this is: devices opened before a fork do not work in the child.
//
// The generation is 0 in a process that has not been forked since Tern was first used, and one more
// in each forked child. Whoever owns threads or driver handles keeps the generation they belong to
// and compares: one relaxed load, no system call. Thread-safe.

#pragma once

#include <cstdint>

#include "tern/core/export.hpp"
#include "tern/core/result.hpp"

namespace tern {

/// Installs the fork hook on its first call; callers that keep a generation call this first.
[[nodiscard]] TERN_EXPORT std::uint64_t process_generation() noexcept;

/// Success in the process that `generation` belongs to, after_fork with this pid in a child of it.
[[nodiscard]] TERN_EXPORT Result<void> check_not_forked(std::uint64_t generation) noexcept;

}  // namespace tern
