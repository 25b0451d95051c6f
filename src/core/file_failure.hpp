// file_failure() is the failure of a system call on a file.

#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

#include "tern/core/call_site.hpp"
#include "tern/core/error.hpp"

namespace tern {

/// `code` is the errno of the call. The path is added last: it can be long and then takes all
/// remaining space for texts.
[[nodiscard]] inline Failure file_failure(std::string_view path, const char* call, int code,
                                          const CallSite& site = {}) noexcept {
  char buffer[128] = "";
  // The GNU version returns a text that may or may not be in the buffer.
  const char* why = strerror_r(code, buffer, sizeof buffer);
  return Failure(ErrorCode::file, nullptr, site)
      .with("call", call)
      .with("os_code", static_cast<std::uint64_t>(code))
      .with("why", why)
      .with("path", path);
}

}  // namespace tern
