// Argument checks that Device and StreamRef share.

#pragma once

#include <cstddef>

#include "tern/core/result.hpp"
#include "tern/device/device_info.hpp"
#include "tern/device/operations.hpp"

namespace tern {

/// Returns the alignment to pass to the backend: the device's own for 0, else at least the device's
/// own. Fails with invalid_argument if `alignment` is not a power of two or is above the maximum of
/// the device.
[[nodiscard]] Result<std::size_t> checked_alignment(const DeviceInfo& info,
                                                    std::size_t alignment) noexcept;

/// Returns the failure for a size above max_request_bytes.
[[nodiscard]] Failure allocation_too_large(std::size_t bytes) noexcept;

/// Fails with invalid_argument if the address is null, and with size_overflow if the range exceeds
/// max_request_bytes or the address space. `name` names the range in the message.
[[nodiscard]] Result<void> check_range(const char* name, const void* address,
                                       std::size_t bytes) noexcept;

/// Fails with invalid_argument unless the pattern has 1 to 16 bytes, and with size_mismatch unless
/// `bytes` is a multiple of its width.
[[nodiscard]] Result<void> check_pattern(const Pattern& pattern, std::size_t bytes,
                                         CallSite site) noexcept;

}  // namespace tern
