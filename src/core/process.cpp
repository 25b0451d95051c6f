#include "tern/core/process.hpp"

#include <pthread.h>
#include <unistd.h>

#include "core/fork_count.hpp"

namespace tern {

std::atomic<std::uint64_t> fork_count = 0;

namespace {

void count_fork() noexcept { fork_count.fetch_add(1, std::memory_order_relaxed); }

}  // namespace

std::uint64_t process_generation() noexcept {
  // Registered on first use and not at load time: a library that is never used must not slow down
  // anybody's fork. If it fails for want of memory, a child is not told apart: the same as without.
  static const int registered = pthread_atfork(nullptr, nullptr, count_fork);
  static_cast<void>(registered);
  return fork_count.load(std::memory_order_relaxed);
}

Result<void> check_not_forked(std::uint64_t expected) noexcept {
  if (is_same_process(expected)) return {};
  return Failure(ErrorCode::after_fork).with("pid", static_cast<std::uint64_t>(getpid()));
}

}  // namespace tern
