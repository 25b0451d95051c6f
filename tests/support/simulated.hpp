// Whether a device is simulated, so that the functions of sim.hpp work on it.

#pragma once

#include "tern/device/device.hpp"

namespace tern::test {

/// Returns true for a simulated device, and for a CUDA device on a simulated driver.
inline bool is_simulated(const Device& device) {
  return device.info().backend == "sim" || device.spec().ends_with("driver=sim");
}

}  // namespace tern::test
