// The checks on memory that devices and streams share.

#pragma once

#include <cstddef>

#include "tern/core/result.hpp"
#include "tern/device/backend.hpp"

namespace tern {

/// The alignment to pass to the backend: the device's own for 0, at least that otherwise. Refused
/// with invalid_argument: no power of two, or above what the device gives.
[[nodiscard]] Result<std::size_t> checked_alignment(const DeviceInfo& info,
                                                    std::size_t alignment) noexcept;

/// The refusal of a size above max_request_bytes.
[[nodiscard]] Failure allocation_too_large(std::size_t bytes) noexcept;

/// A range that starts at a real address (invalid_argument) and does not run past the end of all
/// addresses (size_overflow). `name` is what the caller calls it.
[[nodiscard]] Result<void> check_range(const char* name, const void* address,
                                       std::size_t bytes) noexcept;

/// A fill repeats 1 to 16 bytes (invalid_argument), a whole number of times (size_mismatch).
[[nodiscard]] Result<void> check_pattern(const Pattern& pattern, std::size_t bytes,
                                         CallSite site) noexcept;

}  // namespace tern
