// Detects that the process was forked: devices opened before a fork do not work in the child.
//
// Each process has a generation: 0 until the first fork after Tern was first used, and one more in
// each forked child. An object that owns threads or driver handles stores the generation in which
// it was created and compares it before each use. The comparison is one relaxed load and no system
// call. Both functions are safe from any thread.

#pragma once

#include <cstdint>

#include "tern/core/result.hpp"
#include "tern/detail/core/visibility.hpp"

namespace tern {

/// Returns the generation of this process. The first call installs the fork hook, so call this
/// function before anything depends on the generation.
[[nodiscard]] TERN_EXPORT std::uint64_t process_generation() noexcept;

/// Succeeds if this process has the given generation. Fails with after_fork, which carries the
/// process id, in a forked child.
[[nodiscard]] TERN_EXPORT Result<void> check_not_forked(std::uint64_t generation) noexcept;

}  // namespace tern
