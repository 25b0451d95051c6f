// How the catalog opens simulated devices: those of one set of options are peers in one world.

#pragma once

#include "backends/opener.hpp"

namespace tern::sim {

[[nodiscard]] Opener opener();

}  // namespace tern::sim
