// Loads shared libraries: drivers and profiling tools. They are loaded on request and never
// unloaded, because drivers have threads that keep running.

#pragma once

namespace tern {

/// Returns null if there is no library of this name, or if it cannot be loaded.
[[nodiscard]] void* open_shared_library(const char* name) noexcept;
/// Returns null if the library has no such symbol.
[[nodiscard]] void* find_symbol(void* library, const char* name) noexcept;

/// Returns why this process cannot load any library, as the end of a sentence, or null if it can. A
/// statically linked program never can: the C library would load a second copy of itself and crash.
/// A process without free file descriptors can try again later, so check this before loading a
/// driver that would remember its failure.
[[nodiscard]] const char* why_no_libraries() noexcept;

}  // namespace tern
