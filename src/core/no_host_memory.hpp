// The failure of an operation whose own bookkeeping found no host memory.

#pragma once

#include "tern/core/call_site.hpp"
#include "tern/core/error.hpp"

namespace tern {

/// `what` is what it was for: "a list of uses".
[[nodiscard]] inline Failure no_host_memory(const char* what, const CallSite& site = {}) noexcept {
  return Failure(ErrorCode::out_of_memory,
                 "the host could not allocate what {what} needs. Free host memory.", site)
      .with("what", what);
}

}  // namespace tern
