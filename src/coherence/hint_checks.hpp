// Checks that hints, prefetch plans and managed buffers have in common.

#pragma once

#include <cstddef>

#include "tern/buffer/buffer.hpp"
#include "tern/coherence/hints.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/place.hpp"
#include "tern/core/result.hpp"
#include "tern/device/device_info.hpp"

namespace tern {

/// Checks that the buffer is managed memory. Fails with invalid_argument.
[[nodiscard]] Result<void> check_managed(const Buffer& buffer, CallSite site) noexcept;

/// Checks that pages of managed memory can be in the place: the host, a NUMA node, or an open
/// device. Fails with invalid_device.
[[nodiscard]] Result<void> check_page_place(Place place, CallSite site) noexcept;

/// Checks that the range is within `extent` bytes. Fails with invalid_view.
[[nodiscard]] Result<void> check_hint_range(HintRange range, std::size_t extent,
                                            CallSite site) noexcept;

/// Returns why the device would skip the hint, or HintSkip::none. With HintOptions::strict, fails
/// with unsupported instead.
[[nodiscard]] Result<HintSkip> check_able(const Device& device, Capability capability,
                                          HintOptions options, CallSite site) noexcept;

/// Returns the page size of the system, to which drivers round hints.
[[nodiscard]] std::size_t hint_page_bytes() noexcept;

}  // namespace tern
