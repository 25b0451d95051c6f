// Byte counts: arithmetic that detects overflow, formatting for people, a strict parser, and sums.
//
//   checked_multiply(count, sizeof(float))  // nullopt if the product does not fit
//   format_bytes(1536)                      // "1.5 KiB"
//   parse_bytes("512MiB")                   // 536870912
//
// Every size that Tern computes from a caller's numbers goes through the checked functions. They
// return nullopt on overflow, so a wrapped size cannot reach an allocation. The caller turns
// nullopt into ErrorCode::size_overflow with a message of its own layer. All functions are pure and
// safe from any thread.

#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "tern/core/result.hpp"
#include "tern/detail/core/visibility.hpp"

namespace tern {

/// One KiB, one MiB and one GiB in bytes.
inline constexpr std::size_t kib = std::size_t{1} << 10;
inline constexpr std::size_t mib = std::size_t{1} << 20;
inline constexpr std::size_t gib = std::size_t{1} << 30;

/// The largest size that Tern passes to a device or to the host allocator. Pointer differences
/// above this size are undefined in C++.
inline constexpr std::size_t max_request_bytes =
    static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());

/// Returns a + b, or nullopt if the sum does not fit.
[[nodiscard]] constexpr std::optional<std::size_t> checked_add(std::size_t a,
                                                               std::size_t b) noexcept {
  if (b > std::numeric_limits<std::size_t>::max() - a) return std::nullopt;
  return a + b;
}

/// Returns a * b, or nullopt if the product does not fit.
[[nodiscard]] constexpr std::optional<std::size_t> checked_multiply(std::size_t a,
                                                                    std::size_t b) noexcept {
  std::size_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

/// Returns whether exactly one bit is set. Returns false for 0.
[[nodiscard]] constexpr bool is_power_of_two(std::size_t value) noexcept {
  return value != 0 && (value & (value - 1)) == 0;
}

/// Returns the smallest multiple of `step` that is at least `value`. Returns nullopt if the result
/// does not fit or if `step` is zero. `step` does not have to be a power of two.
[[nodiscard]] constexpr std::optional<std::size_t> checked_round_up(std::size_t value,
                                                                    std::size_t step) noexcept {
  if (step == 0) return std::nullopt;
  const std::size_t rest = value % step;
  return rest == 0 ? std::optional<std::size_t>(value) : checked_add(value, step - rest);
}

/// Returns true if [offset, offset + size) lies inside [0, extent). An empty range at offset
/// `extent` counts as inside.
[[nodiscard]] constexpr bool is_within(std::size_t offset, std::size_t size,
                                       std::size_t extent) noexcept {
  return offset <= extent && size <= extent - offset;
}

/// Converts a signed 64-bit count, such as one from a file or a foreign structure, to a size.
/// Returns nullopt if the count is negative or does not fit.
[[nodiscard]] constexpr std::optional<std::size_t> checked_size(std::int64_t value) noexcept {
  if (value < 0) return std::nullopt;
  if (static_cast<std::uint64_t>(value) > std::numeric_limits<std::size_t>::max()) {
    return std::nullopt;
  }
  return static_cast<std::size_t>(value);
}

/// Formats a byte count for people: "0 B", "512 B", "1.5 KiB", "24.0 GiB". From 1 KiB up, the
/// result has one decimal, rounded half up. A value that would round to 1024.0 is printed in the
/// next unit, as in "1.0 MiB".
[[nodiscard]] TERN_EXPORT std::string format_bytes(std::uint64_t bytes);

/// Parses a size as people write it: a decimal number, an optional fraction and an optional unit,
/// without spaces. Units are B, KB, MB, GB, TB, PB and EB (powers of 1000) and KiB to EiB (powers
/// of 1024), in upper or lower case.
///
/// The value must be a whole number of bytes: "1.5KiB" is 1536, and "0.3B" fails. Fails with
/// invalid_argument for a sign, a space, trailing text, an unknown unit or a fraction of a byte,
/// and with size_overflow if the value does not fit in 64 bits.
[[nodiscard]] TERN_EXPORT Result<std::uint64_t> try_parse_bytes(std::string_view text) noexcept;
/// Like try_parse_bytes(), but throws the failure.
[[nodiscard]] TERN_EXPORT std::uint64_t parse_bytes(std::string_view text);

/// A number of copies, and their bytes.
struct CopyCount {
  std::uint64_t copies = 0;
  std::uint64_t bytes = 0;

  constexpr CopyCount& operator+=(const CopyCount& other) noexcept {
    copies += other.copies;
    bytes += other.bytes;
    return *this;
  }
  /// Returns the difference between two readings.
  friend constexpr CopyCount operator-(const CopyCount& now, const CopyCount& then) noexcept {
    return {now.copies - then.copies, now.bytes - then.bytes};
  }
  friend constexpr bool operator==(const CopyCount&, const CopyCount&) noexcept = default;
};

/// A number of pieces of memory, and their bytes.
struct MemoryCount {
  std::size_t count = 0;
  std::size_t bytes = 0;
};

}  // namespace tern
