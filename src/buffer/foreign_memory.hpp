// Many pieces of memory of one owner, adopted one after the other: the buffers of a table.

#pragma once

#include "tern/buffer/foreign.hpp"
#include "tern/device/backend.hpp"

namespace tern {

/// try_adopt(). `known` is what the device said of the piece before, and of this one then: pieces
/// of one allocation make it be asked once.
[[nodiscard]] Result<Buffer> try_adopt(const Device& device, void* address, Shape shape,
                                       DType dtype, Adoption&& adoption,
                                       PointerInfo& known) noexcept;

}  // namespace tern
