// The number of a device within its backend, as other libraries count devices.

#pragma once

#include <charconv>
#include <cstdint>
#include <string_view>

#include "tern/device/device.hpp"

namespace tern {

/// Returns the number in a spec such as "cuda:1" or "sim:0?seed=7", or 0 if it has none.
[[nodiscard]] inline std::int32_t device_ordinal(const Device& device) noexcept {
  const std::string_view spec = device.spec();
  const std::size_t colon = spec.find(':');
  std::int32_t ordinal = 0;
  if (colon != std::string_view::npos) {
    std::from_chars(spec.data() + colon + 1, spec.data() + spec.size(), ordinal);
  }
  return ordinal;
}

}  // namespace tern
