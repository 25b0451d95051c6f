// How the catalog finds and opens CUDA devices.

#pragma once

#include "backends/opener.hpp"

namespace tern::cuda {

[[nodiscard]] Opener opener();

}  // namespace tern::cuda
