// no_host_memory() is the failure of an operation that found no host memory for its own
// bookkeeping.

#pragma once

#include <cstddef>

#include "tern/core/call_site.hpp"
#include "tern/core/error.hpp"

namespace tern {

/// Returns an out_of_memory failure. `what` names what the memory was for, such as "a list of
/// uses".
[[nodiscard]] inline Failure no_host_memory(const char* what, const CallSite& site = {}) noexcept {
  return Failure(ErrorCode::out_of_memory,
                 "the host could not allocate memory for {what}. Free host memory.", site)
      .with("what", what);
}

/// The same, where the number of bytes is known.
[[nodiscard]] inline Failure no_host_memory(std::size_t bytes, const char* what,
                                            const CallSite& site = {}) noexcept {
  return Failure(ErrorCode::out_of_memory,
                 "the host could not allocate {requested} for {what}. Free host memory.", site)
      .with_bytes("requested", bytes)
      .with("what", what);
}

}  // namespace tern
