#include "tern/core/bytes.hpp"

#include <array>

#include "core/text.hpp"

namespace tern {
namespace {

struct ByteUnit {
  std::string_view name;
  std::uint64_t bytes;
};

constexpr std::array<ByteUnit, 14> byte_units = {{
    {"", 1},
    {"b", 1},
    {"kb", 1000},
    {"mb", 1000'000},
    {"gb", 1000'000'000},
    {"tb", 1000'000'000'000},
    {"pb", 1000'000'000'000'000},
    {"eb", 1000'000'000'000'000'000},
    {"kib", std::uint64_t{1} << 10},
    {"mib", std::uint64_t{1} << 20},
    {"gib", std::uint64_t{1} << 30},
    {"tib", std::uint64_t{1} << 40},
    {"pib", std::uint64_t{1} << 50},
    {"eib", std::uint64_t{1} << 60},
}};

constexpr bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }

/// Removes the leading digits from `text` and returns them.
std::string_view take_digits(std::string_view& text) noexcept {
  std::size_t length = 0;
  while (length < text.size() && is_digit(text[length])) ++length;
  const std::string_view digits = text.substr(0, length);
  text.remove_prefix(length);
  return digits;
}

/// The reason is added before the text: the text may be long and then takes all the remaining
/// space.
Failure not_a_size(std::string_view text, const char* why) noexcept {
  return Failure(ErrorCode::invalid_argument,
                 "'{value}' is not a number of bytes: {why}. Write a size such as 4096, 512MiB or "
                 "1.5GB.")
      .with("why", why)
      .with("value", text);
}

Failure too_large(std::string_view text) noexcept {
  return Failure(ErrorCode::size_overflow,
                 "'{what}' exceeds a 64-bit byte count. Use less than 16 EiB.")
      .with("what", text);
}

/// Returns the fraction 0.`digits` of `unit` in bytes, or nullopt if that is not a whole number.
/// This is a long multiplication from the last digit, in which every decimal of the product must be
/// zero. It is exact for any number of digits, and 10 * 2^60 fits in 64 bits.
std::optional<std::uint64_t> fraction_bytes(std::string_view digits, std::uint64_t unit) noexcept {
  std::uint64_t carry = 0;
  for (std::size_t i = digits.size(); i > 0; --i) {
    carry += static_cast<std::uint64_t>(digits[i - 1] - '0') * unit;
    if (carry % 10 != 0) return std::nullopt;
    carry /= 10;
  }
  return carry;
}

}  // namespace

std::string format_bytes(std::uint64_t bytes) {
  char buffer[24];
  return std::string(buffer, format_bytes_to(buffer, sizeof buffer, bytes));
}

Result<std::uint64_t> try_parse_bytes(std::string_view text) noexcept {
  std::string_view rest = text;
  const std::string_view whole = take_digits(rest);
  if (whole.empty()) return not_a_size(text, "it does not begin with a digit");

  std::string_view fraction;
  if (!rest.empty() && rest.front() == '.') {
    rest.remove_prefix(1);
    fraction = take_digits(rest);
    if (fraction.empty()) return not_a_size(text, "no digit follows the decimal point");
  }

  for (const ByteUnit& unit : byte_units) {
    if (!equals_ignoring_case(rest, unit.name)) continue;
    std::uint64_t total = 0;
    for (const char digit : whole) {
      const auto tens = checked_multiply(total, 10);
      const auto sum = tens ? checked_add(*tens, static_cast<std::size_t>(digit - '0')) : tens;
      if (!sum) return too_large(text);
      total = *sum;
    }
    const std::optional<std::uint64_t> part = fraction_bytes(fraction, unit.bytes);
    if (!part) return not_a_size(text, "it is not a whole number of bytes");
    const auto scaled = checked_multiply(total, unit.bytes);
    const auto bytes = scaled ? checked_add(*scaled, *part) : scaled;
    if (!bytes) return too_large(text);
    return *bytes;
  }
  return not_a_size(text, "the text after the number is not a unit");
}

std::uint64_t parse_bytes(std::string_view text) { return try_parse_bytes(text).value(); }

}  // namespace tern
