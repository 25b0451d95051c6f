// A file that is memory: what pages live in when they are mapped in several places.

#pragma once

#include <cstddef>

#include "tern/core/result.hpp"

namespace tern {

/// An empty file without a name, closed on exec.
[[nodiscard]] Result<int> try_make_memory_file(const char* name) noexcept;
/// Sets its length; it stays sparse. Refused with out_of_memory where the process may not have
/// files that long: asking the system would end the process by a signal.
[[nodiscard]] Result<void> try_resize_memory_file(int file, std::size_t bytes) noexcept;

}  // namespace tern
