// The failure of a backend whose records could not be allocated.

#pragma once

#include <cstddef>

#include "tern/core/error.hpp"

namespace tern {

/// `what` says what the memory was for, such as "a stream".
[[nodiscard]] inline Failure no_memory_for(const char* what, std::size_t bytes) noexcept {
  return Failure(ErrorCode::out_of_memory,
                 "the host could not allocate {requested} for {what}. Free host memory.")
      .with_bytes("requested", bytes)
      .with("what", what);
}

}  // namespace tern
