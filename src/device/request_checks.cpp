#include "device/request_checks.hpp"

#include <algorithm>

#include "tern/core/bytes.hpp"

namespace tern {
namespace {

Failure null_address(const char* name, std::size_t bytes) noexcept {
  return Failure(ErrorCode::invalid_argument,
                 "the {name} of {bytes} bytes is a null address. Pass allocated memory.")
      .with("name", name)
      .with("value", "null")
      .with("bytes", bytes);
}

}  // namespace

Failure allocation_too_large(std::size_t bytes) noexcept {
  return Failure(ErrorCode::size_overflow,
                 "{requested} bytes exceed the largest possible allocation, {max}. Check for a "
                 "negative size that was converted to unsigned.")
      .with("what", "an allocation")
      .with("requested", bytes)
      .with("max", max_request_bytes);
}

Result<std::size_t> checked_alignment(const DeviceInfo& info, std::size_t alignment) noexcept {
  if (alignment == 0) return info.alignment;
  if (!is_power_of_two(alignment)) {
    return Failure(ErrorCode::invalid_argument,
                   "alignment {value} is not a power of two. Use a power of two, or 0 for the "
                   "default of the device, {own}.")
        .with("name", "alignment")
        .with("value", alignment)
        .with("own", info.alignment);
  }
  if (alignment > info.max_alignment) {
    return Failure(ErrorCode::invalid_argument,
                   "alignment {value} is above {max}, the largest that '{device}' supports.")
        .with("name", "alignment")
        .with_bytes("value", alignment)
        .with_bytes("max", info.max_alignment)
        .with("device", info.spec);
  }
  return std::max(alignment, info.alignment);
}

Result<void> check_range(const char* name, const void* address, std::size_t bytes) noexcept {
  if (address == nullptr) return null_address(name, bytes);
  const auto start = reinterpret_cast<std::uintptr_t>(address);
  if (bytes > max_request_bytes || !checked_add(start, bytes)) {
    return Failure(ErrorCode::size_overflow,
                   "the {what} of {bytes} bytes exceeds the address space. Check for a negative "
                   "size that was converted to unsigned.")
        .with("what", name)
        .with("bytes", bytes);
  }
  return {};
}

Result<void> check_pattern(const Pattern& pattern, std::size_t bytes, CallSite site) noexcept {
  if (pattern.width_bytes == 0 || pattern.width_bytes > Pattern::max_bytes) {
    return Failure(ErrorCode::invalid_argument,
                   "a fill pattern of {value} bytes is not valid. Use 1 to {max} bytes.", site)
        .with("name", "width_bytes")
        .with("value", pattern.width_bytes)
        .with("max", Pattern::max_bytes);
  }
  if (bytes % pattern.width_bytes != 0) {
    return Failure(ErrorCode::size_mismatch,
                   "{actual} bytes are not a whole number of patterns of {expected} bytes. Fill a "
                   "multiple of the pattern size.",
                   site)
        .with("expected", pattern.width_bytes)
        .with("actual", bytes);
  }
  return {};
}

}  // namespace tern
