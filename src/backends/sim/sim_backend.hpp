// The simulated device as a Backend: every primitive is judged, then queued in the world.

#pragma once

#include <memory>
#include <string>

#include "backends/sim/world.hpp"
#include "tern/core/result.hpp"
#include "tern/core/visibility.hpp"
#include "tern/device/backend.hpp"

namespace tern::sim {

/// One more device of the world.
[[nodiscard]] TERN_EXPORT Result<std::unique_ptr<Backend>> open_backend(
    std::shared_ptr<World> world, std::string spec) noexcept;

/// The world of a simulated backend; null for any other.
[[nodiscard]] World* world_of(Backend& backend) noexcept;

}  // namespace tern::sim
