// Access declares what a use does to a range of bytes. Every lease, copy and launch names one.
//
// - `read`: the use reads the range and does not change it.
// - `read_write`: the use may read and write any part of the range.
// - `discard`: the use overwrites the whole range and needs none of the old bytes, so the library
//   does not have to copy them to the place of the use.
//
// `discard` is not called `write` because `write` suggests that only a part of the range is
// written. A use that writes a part of its range is `read_write`.

#pragma once

#include <cstdint>

namespace tern {

enum class Access : std::uint8_t { read, read_write, discard };

/// Returns true if the access may change bytes (`read_write` and `discard`).
[[nodiscard]] constexpr bool is_write(Access access) noexcept { return access != Access::read; }
/// Returns true if the bytes must be up to date before the use begins (`read` and `read_write`).
[[nodiscard]] constexpr bool needs_old_bytes(Access access) noexcept {
  return access != Access::discard;
}

/// Returns the access of one piece of work that uses the same bytes twice. Two equal accesses stay
/// as they are; any other pair becomes `read_write`.
[[nodiscard]] constexpr Access merge(Access a, Access b) noexcept {
  return a == b ? a : Access::read_write;
}

}  // namespace tern
