// Finds and opens CUDA devices for the catalog.

#pragma once

#include "backends/cuda/driver.hpp"
#include "backends/cuda/fake_cuda.hpp"
#include "backends/opener.hpp"

namespace tern::cuda {

[[nodiscard]] Opener opener();

/// Installs the fake and loads its entries, for `driver=sim`. Without a fake the driver is absent,
/// and its sentence names the target to link.
[[nodiscard]] Driver load_fake_driver(const FakeCuda* fake);

}  // namespace tern::cuda
