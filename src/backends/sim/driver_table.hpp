// The driver's entry points on the installed FakeDriver: a function for every slot of the table.

#pragma once

#include <string_view>

#include "backends/cuda/driver_table.hpp"

namespace tern::sim {

/// What a fake image begins with; the names of its kernels follow, one a line.
inline constexpr std::string_view fake_image_magic = "TERN-FAKE-IMAGE\n";

/// Every slot filled, whatever the version of the driver.
[[nodiscard]] const cuda::DriverTable& fake_driver_table() noexcept;

}  // namespace tern::sim
