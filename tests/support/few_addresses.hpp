// Whether processes of this build have few addresses: under the thread sanitizer, some 20 GiB on
// aarch64.

#pragma once

namespace tern::test {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool has_few_addresses = true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
inline constexpr bool has_few_addresses = true;
#else
inline constexpr bool has_few_addresses = false;
#endif
#else
inline constexpr bool has_few_addresses = false;
#endif

}  // namespace tern::test
