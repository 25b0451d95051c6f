#pragma once

namespace tern {

/// Returns whether the program was linked dynamically. A statically linked program cannot load
/// shared libraries.
[[nodiscard]] bool has_dynamic_linker() noexcept;

}  // namespace tern
