// Asks a question in a forked child of the test.

#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include "tern/core/result.hpp"

namespace tern::test {

/// What `check()` says in a forked child: 0 for true, 1 for false; -1 if the child did not end by
/// itself.
template <class Check>
[[nodiscard]] int in_a_forked_child(Check check) {
  const pid_t child = fork();
  if (child == 0) {
    // A child that hangs would hang the test: the alarm ends it, and -1 says so.
    alarm(20);
    _exit(check() ? 0 : 1);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

/// Is it refused because this process is a fork, and does it say which process this is?
template <class T>
[[nodiscard]] bool is_after_fork(const Result<T>& result) {
  return !result && result.failure().code() == ErrorCode::after_fork &&
         result.failure().number("pid") == static_cast<std::uint64_t>(getpid());
}

/// ThreadSanitizer ends a forked child that starts a thread, if its parent had several.
/// AddressSanitizer's allocator takes its locks into the child as they were, so a child waits for
/// ever if a thread that it does not have was allocating; malloc of the C library does not do that.
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
