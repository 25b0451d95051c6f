// Shared libraries of the machine: drivers, and tools that listen. Opened by name when somebody
// asks, and never unloaded, because drivers have threads that would go on running in them.

#pragma once

namespace tern {

/// Null if there is none of that name, or none can be opened here.
[[nodiscard]] void* open_shared_library(const char* name) noexcept;
/// Null if the library has no such symbol.
[[nodiscard]] void* find_symbol(void* library, const char* name) noexcept;

/// What keeps this process from opening any library now, as the end of a sentence; null: nothing.
/// A program that is linked without shared libraries never can: the C library would load a second
/// one of itself, and crash in it. One without file descriptors can later, so whoever was told so
/// asks again, and has not begun to load what would remember that it failed.
[[nodiscard]] const char* why_no_libraries() noexcept;

}  // namespace tern
