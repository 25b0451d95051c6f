// Adopts many pieces of memory of one owner, such as the buffers of a table.

#pragma once

#include "tern/buffer/foreign.hpp"
#include "tern/device/device_info.hpp"

namespace tern {

/// Like the public try_adopt(). `known` caches the device's answer about the previous piece, so
/// pieces of one allocation cost one query.
[[nodiscard]] Result<Buffer> try_adopt(const Device& device, void* address, Shape shape,
                                       DType dtype, Adoption&& adoption,
                                       PointerInfo& known) noexcept;

}  // namespace tern
