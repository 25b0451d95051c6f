// Opens simulated devices for the catalog. Devices with equal options are peers in one simulation.

#pragma once

#include <memory>
#include <string>

#include "backends/opener.hpp"

namespace tern::sim {

[[nodiscard]] Opener opener();
/// Opens a simulated device with the options of the spec. `name` is its spec from then on: it may
/// stand for another device.
[[nodiscard]] Result<std::unique_ptr<Backend>> open_as(const DeviceSpec& spec,
                                                       const std::string& name);

}  // namespace tern::sim
