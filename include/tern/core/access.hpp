// Access says what a use does to the bytes it names: the intent of every lease, copy and launch.
//
// `discard` is a write of the whole range that needs none of the old bytes. It is not called
// `write` because that reads like "I write some of it", which is `read_write`.

#pragma once

#include <cstdint>

namespace tern {

enum class Access : std::uint8_t { read, read_write, discard };

[[nodiscard]] constexpr bool is_write(Access access) noexcept { return access != Access::read; }
[[nodiscard]] constexpr bool needs_old_bytes(Access access) noexcept {
  return access != Access::discard;
}

/// The intent of two uses of the same bytes by one piece of work: read + discard is read_write.
[[nodiscard]] constexpr Access merge(Access a, Access b) noexcept {
  return a == b ? a : Access::read_write;
}

}  // namespace tern
