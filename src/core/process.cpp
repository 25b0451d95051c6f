#include "core/process.hpp"

#include <pthread.h>
#include <unistd.h>

#include <atomic>

#include "core/fork_count.hpp"
#include "core/spans_in_flight.hpp"

namespace tern {

std::atomic<std::uint64_t> fork_count = 0;

namespace {

void before_fork() noexcept { spans_before_fork(); }
void after_fork_in_parent() noexcept { spans_after_fork(false); }
void after_fork_in_child() noexcept {
  fork_count.fetch_add(1, std::memory_order_relaxed);
  spans_after_fork(true);
}

}  // namespace

std::uint64_t process_generation() noexcept {
  // The hook is registered on first use and not at load time, so that an unused library does not
  // slow down forks. If registration fails for lack of memory, a child is not detected as a child.
  static const int registered =
      pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  static_cast<void>(registered);
  return fork_count.load(std::memory_order_relaxed);
}

Result<void> check_not_forked(std::uint64_t expected) noexcept {
  if (is_same_process(expected)) return {};
  return Failure(ErrorCode::after_fork).with("pid", static_cast<std::uint64_t>(getpid()));
}

}  // namespace tern
