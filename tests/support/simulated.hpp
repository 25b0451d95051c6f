// Is there a simulation behind a device, whose faults and findings the functions of sim.hpp reach?

#pragma once

#include "tern/device/device.hpp"

namespace tern::test {

/// A simulated device, or a CUDA device that has simulated ones for its driver.
inline bool is_simulated(const Device& device) {
  return device.info().backend == "sim" || device.spec().ends_with("driver=sim");
}

}  // namespace tern::test
