#include "core/process.hpp"

#include <pthread.h>
#include <unistd.h>

#include "core/fork_count.hpp"

namespace tern {

std::atomic<std::uint64_t> fork_count = 0;

namespace {

void count_fork() noexcept { fork_count.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

std::uint64_t process_generation() noexcept {
  // The hook is registered on first use and not at load time, so that an unused library does not
  // slow down forks. If registration fails for lack of memory, a child is not detected as a child.
  static const int registered = pthread_atfork(nullptr, nullptr, count_fork);
  static_cast<void>(registered);
  return fork_count.load(std::memory_order_relaxed);
}

Result<void> check_not_forked(std::uint64_t expected) noexcept {
  if (is_same_process(expected)) return {};
  return Failure(ErrorCode::after_fork).with("pid", static_cast<std::uint64_t>(getpid()));
}

}  // namespace tern
