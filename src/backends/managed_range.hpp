// Checks that a range is inside managed memory, for backends that track managed memory themselves.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "tern/core/bytes.hpp"
#include "tern/core/result.hpp"
#include "tern/device/device_info.hpp"

namespace tern {

/// `block` is the allocation at the address. Fails with invalid_argument.
[[nodiscard]] inline Result<void> check_managed_range(const std::optional<PointerInfo>& block,
                                                      const void* address, std::size_t bytes,
                                                      const DeviceInfo& info) noexcept {
  const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(address);
  if (block && block->kind == MemoryKind::managed &&
      is_within(at - reinterpret_cast<std::uintptr_t>(block->base), bytes, block->bytes)) {
    return {};
  }
  return Failure(ErrorCode::invalid_argument,
                 "the range of {bytes} at {value} is not inside managed memory of '{device}'. "
                 "Prefetch a range that allocate(MemoryKind::managed) returned.")
      .with("name", "address")
      .with("value", at, Unit::hex)
      .with_bytes("bytes", bytes)
      .with("device", info.spec);
}

}  // namespace tern
