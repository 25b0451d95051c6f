// How failures of the library become statuses of the C API, with a message for each thread.

#pragma once

#include <cstddef>
#include <cstring>

#include "tern/c/tern.h"
#include "tern/core/error.hpp"
#include "tern/core/result.hpp"
#include "tern/memory/resource.hpp"

namespace tern::c {

[[nodiscard]] tern_status status_of(ErrorCode code) noexcept;
/// Keeps the message for tern_last_error() and returns the status.
tern_status fail(const Failure& failure) noexcept;
/// The same for a request to a resource. If a budget refused it, the message also names the tags
/// that have the most memory of that budget, such as "In use: torch 5.0 MiB, cupy 1.0 MiB.".
tern_status fail_request(const Failure& failure, const Resource& resource) noexcept;
/// For a pointer that must not be null, named as in the header.
tern_status fail_null(const char* name) noexcept;
/// For use in a catch block.
tern_status fail_with_current_exception() noexcept;

/// Calls the body, which returns a tern_status, and turns exceptions into failures.
template <class Body>
tern_status guarded(Body body) noexcept {
  try {
    return body();
  } catch (...) {
    return fail_with_current_exception();
  }
}

/// Returns the status of a Result. Without a failure, nothing else happens.
template <class T>
tern_status finish(const Result<T>& result) noexcept {
  return result ? TERN_OK : fail(result.failure());
}

/// Fails for a structure whose struct_bytes is not set.
tern_status fail_struct(const char* name, std::size_t bytes) noexcept;

/// Writes the fields of a caller's structure that the caller knows, which are the first
/// struct_bytes.
template <class T>
tern_status copy_out(const T& value, T* to, const char* name) noexcept {
  if (to == nullptr) return fail_null(name);
  const std::size_t bytes = to->struct_bytes;
  if (bytes < sizeof(std::size_t)) return fail_struct(name, bytes);
  const std::size_t known = bytes < sizeof(T) ? bytes : sizeof(T);
  std::memcpy(reinterpret_cast<char*>(to) + sizeof(std::size_t),
              reinterpret_cast<const char*>(&value) + sizeof(std::size_t),
              known - sizeof(std::size_t));
  return TERN_OK;
}

}  // namespace tern::c
