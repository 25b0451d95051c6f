// Is this build fast enough for the long form of a test? Sanitizers and debug builds run a short
// one.

#pragma once

namespace tern::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(NDEBUG)
inline constexpr bool is_thorough = false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(memory_sanitizer)
inline constexpr bool is_thorough = false;
#else
inline constexpr bool is_thorough = true;
#endif
#else
inline constexpr bool is_thorough = true;
#endif

}  // namespace tern::test
