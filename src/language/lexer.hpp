// Splits the text of kernels into tokens: names, numbers and symbols, without spaces and comments.
//
// The text may come from a file, or as one line from the preprocessor, which replaces each comment
// by a space. Bytes outside of ASCII are only allowed inside of comments.

#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "language/syntax.hpp"

namespace tern::language {

struct Token {
  /// `bad` is a part of the text that is no token: the parser reports it when it comes to it, and
  /// then knows the kernel. The tokens end there.
  enum class Kind : std::uint8_t { end, bad, name, number, symbol };
  Kind kind = Kind::end;
  Position at;
  std::string_view text;          // a view of the text of the program
  const char* problem = nullptr;  // of a bad token: the sentence that reports it

  [[nodiscard]] bool is(std::string_view word) const noexcept { return text == word; }
};

/// Upper bounds of a text and of a name, in bytes.
inline constexpr std::size_t max_text_bytes = 1024 * 1024;
inline constexpr std::size_t max_name_bytes = 128;

/// Returns the tokens of the text, at least one. The last one is of kind `end` and has no text.
/// Throws std::bad_alloc.
[[nodiscard]] std::vector<Token> tokens_of(std::string_view text);

/// A number of the text, as C reads it: with the first type of C that holds the value.
struct Number {
  Scalar type = Scalar::i32;
  std::uint64_t integer = 0;
  double real = 0;                // for f32: the nearest float
  const char* problem = nullptr;  // if it is no number: the sentence that reports it
};

[[nodiscard]] Number number_of(std::string_view text) noexcept;

}  // namespace tern::language
