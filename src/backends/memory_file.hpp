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

}  // namespace tern
