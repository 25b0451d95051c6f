// Text without the heap: what Failure needs to print itself while memory is exhausted.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tern {

/// The longest prefix of `text` that is at most `limit` bytes and ends between two UTF-8
/// characters.
[[nodiscard]] std::size_t utf8_prefix_bytes(std::string_view text, std::size_t limit) noexcept;

/// format_bytes into a caller's buffer of at least 16 bytes; returns the length, without a closing
/// zero.
std::size_t format_bytes_to(char* buffer, std::size_t capacity, std::uint64_t bytes) noexcept;

/// ASCII only: device names and units are not words of any language.
[[nodiscard]] constexpr char ascii_lower(char c) noexcept {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}
[[nodiscard]] bool equals_ignoring_case(std::string_view a, std::string_view b) noexcept;

}  // namespace tern
