// The failures of system calls on files.

#pragma once

#include <cstddef>
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

/// The failure of a read or a mapping that needs more bytes than the file has. `call` is the call
/// that noticed.
[[nodiscard]] inline Failure file_too_short(std::string_view path, std::size_t offset,
                                            std::size_t wanted, std::size_t there, const char* call,
                                            const CallSite& site) noexcept {
  return Failure(ErrorCode::file,
                 "file '{path}' has {there} bytes, but the read needs {wanted} bytes at offset "
                 "{offset}. Read less, or check whether the file was truncated.",
                 site)
      .with("call", call)
      .with("os_code", std::uint64_t{0})
      .with("why", "the file is too short")
      .with("offset", offset)
      .with("wanted", wanted)
      .with("there", there)
      .with("path", path);
}

}  // namespace tern
