// The driver's entry points on the installed FakeDriver: a function for every slot of the table.
// The sources beside this file define them, by topic.

#pragma once

#include <string_view>

#include "backends/cuda/driver_table.hpp"

namespace tern::sim {

/// What a fake image begins with; the names of its kernels follow, one a line.
inline constexpr std::string_view fake_image_magic = "TERN-FAKE-IMAGE\n";

namespace entries {
#define TERN_DRIVER_ENTRY(slot, name, version, need, parameters) cuda::slot##_type slot;
TERN_FOR_EACH_DRIVER_ENTRY(TERN_DRIVER_ENTRY)
#undef TERN_DRIVER_ENTRY
}  // namespace entries

/// Every slot filled, whatever the version of the driver.
inline constexpr cuda::DriverTable fake_driver_table = {
#define TERN_DRIVER_ENTRY(slot, name, version, need, parameters) .slot = entries::slot,
    TERN_FOR_EACH_DRIVER_ENTRY(TERN_DRIVER_ENTRY)
#undef TERN_DRIVER_ENTRY
};

}  // namespace tern::sim
