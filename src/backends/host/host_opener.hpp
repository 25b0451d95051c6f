// Opens the host device for the catalog, with the options of its spec.

#pragma once

#include "backends/opener.hpp"

namespace tern::host {

[[nodiscard]] Opener opener();

}  // namespace tern::host
