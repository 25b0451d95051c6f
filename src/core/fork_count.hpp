// How often this process has been forked since Tern was first used, for checks on hot paths.

#pragma once

#include <atomic>
#include <cstdint>

namespace tern {

/// What process_generation() returns, without making sure that the fork hook is installed: whoever
/// compares with a generation it was given before need not ask again.
extern std::atomic<std::uint64_t> fork_count;

[[nodiscard]] inline bool is_same_process(std::uint64_t generation) noexcept {
  return fork_count.load(std::memory_order_relaxed) == generation;
}

}  // namespace tern
