// The checks that hints, plans and managed buffers share.

#pragma once

#include <cstddef>

#include "tern/buffer/buffer.hpp"
#include "tern/coherence/hints.hpp"
#include "tern/core/call_site.hpp"
#include "tern/core/place.hpp"
#include "tern/core/result.hpp"
#include "tern/device/capabilities.hpp"

namespace tern {

/// Is it a buffer of managed memory? Refused with invalid_argument.
[[nodiscard]] Result<void> check_managed(const Buffer& buffer, CallSite site) noexcept;

/// A place where pages of managed memory can be: the host, a NUMA node, a device that is open.
/// Refused with invalid_device.
[[nodiscard]] Result<void> check_page_place(Place place, CallSite site) noexcept;

/// Bytes [offset, offset + bytes) of a buffer that has `extent`. Refused with invalid_view.
[[nodiscard]] Result<void> check_hint_range(HintRange range, std::size_t extent,
                                            CallSite site) noexcept;

/// Would the device do it? If not, why it is skipped, or unsupported where that is wanted.
[[nodiscard]] Result<HintSkip> check_able(const Device& device, Capability capability,
                                          HintOptions options, CallSite site) noexcept;

/// What the system calls a page, and drivers round hints to.
[[nodiscard]] std::size_t hint_page_bytes() noexcept;

}  // namespace tern
