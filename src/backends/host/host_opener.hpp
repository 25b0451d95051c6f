// How the catalog opens the host device, with the options of its spec.

#pragma once

#include "backends/opener.hpp"

namespace tern::host {

[[nodiscard]] Opener opener();

}  // namespace tern::host
