// The simulated device as a Backend: every primitive is checked and then queued in the simulation.

#pragma once

#include <cstdint>
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

enum class CaptureStatus : std::uint8_t { none, active, invalidated };

/// For the fake driver, on a simulated backend: the state of a stream's capture, and what an
/// illegal call does to it.
[[nodiscard]] TERN_EXPORT CaptureStatus capture_status(Backend& backend,
                                                       NativeStream stream) noexcept;
TERN_EXPORT void invalidate_capture(Backend& backend, NativeStream stream) noexcept;

/// Returns the simulation of a simulated backend, or null for any other.
[[nodiscard]] World* world_of(Backend& backend) noexcept;

}  // namespace tern::sim
