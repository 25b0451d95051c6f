// Text functions that need no heap, so that a Failure can be printed when memory is exhausted.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tern {

/// Returns the length of the longest prefix of `text` that has at most `limit` bytes and ends
/// between two UTF-8 characters.
[[nodiscard]] std::size_t utf8_prefix_bytes(std::string_view text, std::size_t limit) noexcept;

/// Like format_bytes(), but writes into a buffer of at least 16 bytes. Returns the length. Writes
/// no terminating zero.
std::size_t format_bytes_to(char* buffer, std::size_t capacity, std::uint64_t bytes) noexcept;

/// Converts ASCII letters only. Device names and units are not words of any language.
[[nodiscard]] constexpr char ascii_lower(char c) noexcept {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}
/// Compares two texts, ignoring the case of ASCII letters.
[[nodiscard]] bool equals_ignoring_case(std::string_view a, std::string_view b) noexcept;

}  // namespace tern
