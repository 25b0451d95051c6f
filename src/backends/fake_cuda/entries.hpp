// The entry points of the fake driver: one function for every slot of the driver table. The sources
// in this folder define them, by topic.

#pragma once

#include <string_view>

#include "backends/cuda/driver_table.hpp"

namespace tern::sim {

/// The first bytes of a fake kernel image. The names of its kernels follow, one per line.
inline constexpr std::string_view fake_image_magic = "TERN-FAKE-IMAGE\n";

namespace entries {
#define TERN_DRIVER_ENTRY(slot, name, version, need, parameters) cuda::slot##_type slot;
TERN_FOR_EACH_DRIVER_ENTRY(TERN_DRIVER_ENTRY)
#undef TERN_DRIVER_ENTRY
}  // namespace entries

/// A table with every slot filled, for any driver version.
inline constexpr cuda::DriverTable fake_driver_table = {
#define TERN_DRIVER_ENTRY(slot, name, version, need, parameters) .slot = entries::slot,
    TERN_FOR_EACH_DRIVER_ENTRY(TERN_DRIVER_ENTRY)
#undef TERN_DRIVER_ENTRY
};

}  // namespace tern::sim
