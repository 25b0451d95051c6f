// The simulated device as a Backend: every primitive is checked and then queued in the simulation.

#pragma once

#include <memory>
#include <string>

#include "backends/sim/world.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/core/visibility.hpp"
#include "tern/detail/device/backend.hpp"

namespace tern::sim {

/// Adds a device to the simulation.
[[nodiscard]] TERN_EXPORT Result<std::unique_ptr<Backend>> open_backend(
    std::shared_ptr<World> world, std::string spec) noexcept;

/// Returns the simulation of a simulated backend, or null for any other.
[[nodiscard]] World* world_of(Backend& backend) noexcept;

}  // namespace tern::sim
