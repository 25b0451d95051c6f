// Is this build fast enough for the long form of a test? Sanitizers and debug builds run a short
// one; where only sanitizers are too slow, a test asks for those.
//
// Some tests have a form that takes a minute or more, and is run when somebody asks for it:
// TESTS_IN_FULL=1 build/dev/tests/tern_memory_test --gtest_filter='PoolModel*'.

#pragma once

#include <cstdlib>

namespace tern::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool is_sanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
inline constexpr bool is_sanitized = true;
#else
inline constexpr bool is_sanitized = false;
#endif
#else
inline constexpr bool is_sanitized = false;
#endif

#if defined(NDEBUG)
inline constexpr bool is_thorough = !is_sanitized;
#else
inline constexpr bool is_thorough = false;
#endif

/// Was the longest form asked for?
inline bool in_full() { return std::getenv("TESTS_IN_FULL") != nullptr; }

/// How often two threads race for a moment that most tries miss. Under a sanitizer tries are slow,
/// and what it looks for shows in each.
inline int races(int usual) {
  if (in_full()) return 20 * usual;
  return is_sanitized ? usual / 8 : usual;
}

}  // namespace tern::test
