// Runs a check in a forked child of the test.

#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include "tern/core/result.hpp"

namespace tern::test {

/// Returns the result of `check()` in a forked child: 0 for true, 1 for false, -1 if the child was
/// killed.
template <class Check>
[[nodiscard]] int in_a_forked_child(Check check) {
  const pid_t child = fork();
  if (child == 0) {
    // If the child hangs, the alarm kills it, and the result is -1.
    alarm(20);
    _exit(check() ? 0 : 1);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

/// Returns whether the call failed with after_fork and the id of this process.
template <class T>
[[nodiscard]] bool is_after_fork(const Result<T>& result) {
  return !result && result.failure().code() == ErrorCode::after_fork &&
         result.failure().number("pid") == static_cast<std::uint64_t>(getpid());
}

/// ThreadSanitizer kills a forked child that starts a thread if the parent had several threads. The
/// allocator of AddressSanitizer keeps its locks in the child, so a child may wait forever for a
/// lock of a thread that does not exist there. malloc of the C library has no such problem.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool children_can_start_threads = false, children_can_allocate = true;
#elif defined(__SANITIZE_ADDRESS__)
inline constexpr bool children_can_start_threads = true, children_can_allocate = false;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
inline constexpr bool children_can_start_threads = false, children_can_allocate = true;
#elif __has_feature(address_sanitizer)
inline constexpr bool children_can_start_threads = true, children_can_allocate = false;
#else
inline constexpr bool children_can_start_threads = true, children_can_allocate = true;
#endif
#else
inline constexpr bool children_can_start_threads = true, children_can_allocate = true;
#endif

}  // namespace tern::test
