// A memory file (memfd), which holds pages that can be mapped at several addresses.

#pragma once

#include <cstddef>

#include "tern/core/result.hpp"

namespace tern {

/// Creates an empty file without a name. It is closed on exec.
[[nodiscard]] Result<int> try_make_memory_file(const char* name) noexcept;
/// Sets the length of the file, which stays sparse. Fails with out_of_memory if the length exceeds
/// the file size limit of the process; the system call would end the process with a signal.
[[nodiscard]] Result<void> try_resize_memory_file(int file, std::size_t bytes) noexcept;

// A shareable file is a memory file that other processes map. Its memory is allocated when it is
// made, and its size is sealed, so that no process loses mapped memory (SIGBUS).

/// Creates a shareable file. Fails with out_of_memory if the memory or the limits of the process do
/// not suffice.
[[nodiscard]] Result<int> try_make_shareable_file(const char* name, std::size_t bytes) noexcept;
/// Returns a second descriptor of the file, which is closed on exec.
[[nodiscard]] Result<int> try_duplicate(int file) noexcept;
/// Fails with bad_format unless the descriptor is a shareable file of this size.
[[nodiscard]] Result<void> check_shareable_file(int file, std::size_t bytes) noexcept;

}  // namespace tern
