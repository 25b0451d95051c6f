// Finds and opens CUDA devices for the catalog.

#pragma once

#include "backends/opener.hpp"

namespace tern::cuda {

[[nodiscard]] Opener opener();

}  // namespace tern::cuda
