// Not part of the interface.

#pragma once

#include <cstddef>

namespace tern {

/// Bytes [begin, end) of a storage.
struct ByteRange {
  std::size_t begin = 0, end = 0;

  friend constexpr bool operator==(const ByteRange&, const ByteRange&) noexcept = default;
};

}  // namespace tern
