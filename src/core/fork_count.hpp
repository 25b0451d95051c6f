// fork_count counts the forks of this process since Tern was first used, for checks on hot paths.

#pragma once

#include <atomic>
#include <cstdint>

namespace tern {

/// The value of process_generation(), without the check that the fork hook is installed. Code that
/// compares with a generation from process_generation() needs no second check.
[[gnu::visibility("hidden")]] extern std::atomic<std::uint64_t> fork_count;

/// Returns true if this process has the given generation, so was not forked since.
[[nodiscard]] inline bool is_same_process(std::uint64_t generation) noexcept {
  return fork_count.load(std::memory_order_relaxed) == generation;
}

}  // namespace tern
