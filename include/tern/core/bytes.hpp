// Byte counts: arithmetic that cannot wrap, text that people read, and a strict parser for it.
//
// Every size in Tern that is computed from something a caller gave goes through these functions.
// The checked forms return nothing on overflow, so a wrapped size has no way to exist; callers turn
// that into ErrorCode::size_overflow with the words of their own layer. All functions are pure.

#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "tern/core/export.hpp"
#include "tern/core/result.hpp"

namespace tern {

inline constexpr std::size_t kib = std::size_t{1} << 10;
inline constexpr std::size_t mib = std::size_t{1} << 20;
inline constexpr std::size_t gib = std::size_t{1} << 30;

/// The largest request any part of Tern passes on. Above it pointer differences are undefined.
inline constexpr std::size_t max_request_bytes =
    static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());

[[nodiscard]] constexpr std::optional<std::size_t> checked_add(std::size_t a,
                                                               std::size_t b) noexcept {
  if (b > std::numeric_limits<std::size_t>::max() - a) return std::nullopt;
  return a + b;
}

[[nodiscard]] constexpr std::optional<std::size_t> checked_multiply(std::size_t a,
                                                                    std::size_t b) noexcept {
  if (a != 0 && b > std::numeric_limits<std::size_t>::max() / a) return std::nullopt;
  return a * b;
}

[[nodiscard]] constexpr bool is_power_of_two(std::size_t value) noexcept {
  return value != 0 && (value & (value - 1)) == 0;
}

/// The smallest multiple of `step` that is not below `value`; nothing if it does not fit or if
/// `step` is zero. Any step is accepted, powers of two or not.
[[nodiscard]] constexpr std::optional<std::size_t> checked_round_up(std::size_t value,
                                                                    std::size_t step) noexcept {
  if (step == 0) return std::nullopt;
  const std::size_t rest = value % step;
  return rest == 0 ? std::optional<std::size_t>(value) : checked_add(value, step - rest);
}

/// Does [offset, offset + size) lie inside [0, extent)? An empty range at the end does.
[[nodiscard]] constexpr bool is_within(std::size_t offset, std::size_t size,
                                       std::size_t extent) noexcept {
  return offset <= extent && size <= extent - offset;
}

/// A 64-bit count from a file, a foreign structure or a signed API, as a size: nothing if it is
/// negative or does not fit.
[[nodiscard]] constexpr std::optional<std::size_t> checked_size(std::int64_t value) noexcept {
  if (value < 0) return std::nullopt;
  if (static_cast<std::uint64_t>(value) > std::numeric_limits<std::size_t>::max()) {
    return std::nullopt;
  }
  return static_cast<std::size_t>(value);
}

/// "0 B", "512 B", "1.5 KiB", "24.0 GiB": one decimal from 1 KiB up, rounded half up; what rounds
/// to 1024.0 takes the next unit ("1.0 MiB").
[[nodiscard]] TERN_EXPORT std::string format_bytes(std::uint64_t bytes);

/// Reads a size as people write it: a decimal number, an optional fraction, an optional unit (B,
/// KB, MB, GB, TB, PB, EB in powers of 1000; KiB to EiB in powers of 1024; any case), nothing else.
/// The value must be a whole number of bytes: "1.5KiB" is 1536, "0.3B" is refused. Refused with
/// invalid_argument: signs, spaces inside, trailing text, an unknown unit; with size_overflow: more
/// than 64 bits hold.
[[nodiscard]] TERN_EXPORT Result<std::uint64_t> try_parse_bytes(std::string_view text) noexcept;
[[nodiscard]] TERN_EXPORT std::uint64_t parse_bytes(std::string_view text);

}  // namespace tern
