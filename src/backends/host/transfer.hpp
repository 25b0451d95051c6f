// Copies and fills of host memory, with as many threads as pay off.

#pragma once

#include <cstddef>

#include "core/worker_team.hpp"
#include "tern/device/operations.hpp"

namespace tern::host {

/// The ranges must not overlap, and bytes must be above 0.
void copy(WorkerTeam& team, void* destination, const void* source, std::size_t bytes) noexcept;
void copy_2d(WorkerTeam& team, const Copy2D& copy) noexcept;
/// `bytes` must be a multiple of the pattern's width.
void fill(WorkerTeam& team, void* destination, std::size_t bytes, const Pattern& pattern) noexcept;
/// Makes the pages of the range present by writing back one byte of each.
void touch(WorkerTeam& team, void* address, std::size_t bytes, std::size_t page_bytes) noexcept;

}  // namespace tern::host
