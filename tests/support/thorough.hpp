// How long a test may take. is_thorough is true in optimised builds without a sanitizer; tests run
// more rounds in them. is_sanitized is for tests that only a sanitizer makes too slow.
//
// Some tests also have a long form of a minute or more, which the environment selects:
// LONG_TESTS=1 build/dev/tests/tern_memory_test --gtest_filter='PoolModel*'.

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

/// Whether LONG_TESTS is set.
inline bool in_full() { return std::getenv("LONG_TESTS") != nullptr; }

/// Returns the number of attempts of a race that most attempts do not hit. A sanitizer makes each
/// attempt slow but finds the race without the unlucky interleaving, so it needs fewer.
inline int races(int usual) {
  if (in_full()) return 20 * usual;
  return is_sanitized ? usual / 8 : usual;
}

}  // namespace tern::test
