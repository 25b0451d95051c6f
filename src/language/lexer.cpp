#include "language/lexer.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <system_error>

namespace tern::language {
namespace {

// The functions of <cctype> depend on the locale.
bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }
bool is_letter(char c) noexcept {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_space(char c) noexcept {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f';
}

constexpr std::string_view symbols[] = {
    "<<=", ">>=", "->", "++", "--", "<<", ">>", "<=", ">=", "==", "!=", "&&",
    "||",  "+=",  "-=", "*=", "/=", "%=", "&=", "|=", "^=", "::", "(",  ")",
    "{",   "}",   "[",  "]",  "<",  ">",  "=",  "+",  "-",  "*",  "/",  "%",
    "&",   "|",   "^",  "~",  "!",  "?",  ":",  ";",  ",",  ".",
};

class Lexer {
 public:
  explicit Lexer(std::string_view text) noexcept : rest_(text) {}

  /// Returns the next token. After a bad token, every further token is the end.
  Token next() noexcept {
    if (const char* const problem = skip_spaces()) return bad(rest_.size() < 2 ? 1 : 2, problem);
    if (rest_.empty()) return {Token::Kind::end, at_, {}, nullptr};
    const char first = rest_[0];
    if (is_letter(first)) return name();
    if (is_digit(first) || (first == '.' && rest_.size() > 1 && is_digit(rest_[1]))) {
      return take(Token::Kind::number, number_length());
    }
    for (const std::string_view symbol : symbols) {
      if (rest_.starts_with(symbol)) return take(Token::Kind::symbol, symbol.size());
    }
    return bad(1, problem_of(first));
  }

 private:
  static const char* problem_of(char first) noexcept {
    if (static_cast<unsigned char>(first) >= 0x80) {
      return "{where}: the text has a character outside of ASCII. Use such characters only in "
             "comments.";
    }
    switch (first) {
      case '#':
        return "{where}: a kernel has no preprocessor directives. Build the text before it is "
               "loaded.";
      case '"':
      case '\'':
        return "{where}: a kernel has no strings and no characters. Use numbers.";
      case '\\':
        return "{where}: a line cannot be continued with '\\'. Remove it: a statement may have "
               "several lines.";
      default:
        return "{where}: '{value}' is not a character of the language. Remove it.";
    }
  }

  /// Skips spaces and comments. Returns a problem if a comment has no end.
  const char* skip_spaces() noexcept {
    for (;;) {
      if (!rest_.empty() && is_space(rest_[0])) {
        skip(1);
      } else if (rest_.starts_with("//")) {
        skip(std::min(rest_.find('\n'), rest_.size()));
      } else if (rest_.starts_with("/*")) {
        const std::size_t end = rest_.find("*/", 2);
        if (end == rest_.npos) return "{where}: the comment has no end. Write '*/' after it.";
        skip(end + 2);
      } else {
        return nullptr;
      }
    }
  }

  Token name() noexcept {
    std::size_t length = 1;
    while (length < rest_.size() && (is_letter(rest_[length]) || is_digit(rest_[length]))) ++length;
    if (length > max_name_bytes) {
      return bad(length,
                 "{where}: the name '{value}' has more than 128 characters. Use a shorter one.");
    }
    return take(Token::Kind::name, length);
  }

  /// As in C, a number takes every letter and digit after it, so `0x1g` is one wrong number.
  std::size_t number_length() const noexcept {
    std::size_t length = 1;
    for (; length < rest_.size(); ++length) {
      const char c = rest_[length], before = rest_[length - 1];
      const bool is_hex = rest_.size() > 1 && (rest_[1] == 'x' || rest_[1] == 'X');
      const bool may_have_sign =
          is_hex ? before == 'p' || before == 'P' : before == 'e' || before == 'E';
      const bool is_sign = (c == '+' || c == '-') && may_have_sign;
      if (!is_letter(c) && !is_digit(c) && c != '.' && !is_sign) break;
    }
    return length;
  }

  Token take(Token::Kind kind, std::size_t length) noexcept {
    const Token token = {kind, at_, rest_.substr(0, length), nullptr};
    skip(length);
    return token;
  }

  Token bad(std::size_t length, const char* problem) noexcept {
    const Token token = {Token::Kind::bad, at_, rest_.substr(0, length), problem};
    rest_ = {};
    return token;
  }

  void skip(std::size_t length) noexcept {
    for (const char c : rest_.substr(0, length)) {
      if (c == '\n') {
        ++at_.line;
        at_.column = 1;
      } else {
        ++at_.column;
      }
    }
    rest_.remove_prefix(length);
  }

  std::string_view rest_;
  Position at_;
};

// --- Numbers

constexpr const char* no_number =
    "{where}: '{value}' is not a number of C. Write it like 10, 0x1f, 2u or 1.5f.";
constexpr const char* too_large =
    "{where}: the number {value} is too large for its type. Use a smaller one.";

/// Removes the suffix u, l, ll, ul or a form of these from the text.
struct IntegerSuffix {
  bool is_unsigned = false, is_long = false;
};

std::optional<IntegerSuffix> cut_suffix(std::string_view& text) noexcept {
  const std::size_t last = text.find_last_not_of("uUlL");
  const std::size_t length = last == text.npos ? 0 : last + 1;
  const std::string_view suffix = text.substr(length);
  text = text.substr(0, length);
  constexpr std::string_view unsigned_ones[] = {"u", "U"};
  constexpr std::string_view long_ones[] = {"l", "L", "ll", "LL"};
  if (suffix.empty()) return IntegerSuffix{false, false};
  for (const std::string_view u : unsigned_ones) {
    if (suffix == u) return IntegerSuffix{true, false};
    for (const std::string_view l : long_ones) {
      if (suffix == l) return IntegerSuffix{false, true};
      if (suffix.size() != u.size() + l.size()) continue;
      if (suffix.starts_with(u) && suffix.ends_with(l)) return IntegerSuffix{true, true};
      if (suffix.starts_with(l) && suffix.ends_with(u)) return IntegerSuffix{true, true};
    }
  }
  return std::nullopt;
}

Number wrong(const char* problem) noexcept {
  Number number;
  number.problem = problem;
  return number;
}

Number integer_of(std::string_view text) noexcept {
  const std::optional<IntegerSuffix> suffix = cut_suffix(text);
  if (!suffix) return wrong(no_number);
  int base = 10;
  if (text.starts_with("0x") || text.starts_with("0X")) {
    base = 16;
  } else if (text.starts_with("0b") || text.starts_with("0B")) {
    base = 2;
  } else if (text.size() > 1 && text[0] == '0') {
    base = 8;
  }
  text.remove_prefix(base == 16 || base == 2 ? 2 : 0);
  Number number;
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number.integer, base);
  if (error == std::errc::result_out_of_range) return wrong(too_large);
  if (error != std::errc() || stopped != end) return wrong(no_number);

  // The first type that holds the value. Only decimal numbers without `u` are never unsigned.
  constexpr std::uint64_t max_i32 = std::numeric_limits<std::int32_t>::max();
  constexpr std::uint64_t max_u32 = std::numeric_limits<std::uint32_t>::max();
  constexpr std::uint64_t max_i64 = std::numeric_limits<std::int64_t>::max();
  const bool may_be_unsigned = suffix->is_unsigned || base != 10;
  if (!suffix->is_long && !suffix->is_unsigned && number.integer <= max_i32) {
    number.type = Scalar::i32;
  } else if (!suffix->is_long && may_be_unsigned && number.integer <= max_u32) {
    number.type = Scalar::u32;
  } else if (!suffix->is_unsigned && number.integer <= max_i64) {
    number.type = Scalar::i64;
  } else if (may_be_unsigned) {
    number.type = Scalar::u64;
  } else {
    return wrong(too_large);
  }
  return number;
}

template <class Real>
Number real_as(std::string_view text, std::chars_format format, Scalar type) noexcept {
  Real value = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value, format);
  if (error == std::errc::result_out_of_range) {
    return wrong(
        "{where}: the number {value} is too large or too small for its type. Use another one.");
  }
  if (error != std::errc() || stopped != end) return wrong(no_number);
  Number number;
  number.type = type;
  number.real = static_cast<double>(value);
  return number;
}

Number real_of(std::string_view text, bool is_hex) noexcept {
  const bool is_float = text.ends_with('f') || text.ends_with('F');
  if (is_float) text.remove_suffix(1);
  if (is_hex) text.remove_prefix(2);
  const std::chars_format format = is_hex ? std::chars_format::hex : std::chars_format::general;
  return is_float ? real_as<float>(text, format, Scalar::f32)
                  : real_as<double>(text, format, Scalar::f64);
}

}  // namespace

std::vector<Token> tokens_of(std::string_view text) {
  std::vector<Token> tokens;
  Lexer lexer(text);
  do {
    tokens.push_back(lexer.next());
  } while (tokens.back().kind != Token::Kind::end);
  return tokens;
}

Number number_of(std::string_view text) noexcept {
  const bool is_hex = text.starts_with("0x") || text.starts_with("0X");
  // C demands the exponent of a hexadecimal real number.
  if (is_hex && text.find_first_of("pP") != text.npos) return real_of(text, true);
  if (!is_hex && text.find_first_of(".eE") != text.npos) return real_of(text, false);
  return integer_of(text);
}

}  // namespace tern::language
