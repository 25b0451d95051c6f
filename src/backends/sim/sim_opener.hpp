// Opens simulated devices for the catalog. Devices with equal options are peers in one simulation.

#pragma once

#include "backends/opener.hpp"

namespace tern::sim {

[[nodiscard]] Opener opener();

}  // namespace tern::sim
