// The options of a simulated device as text: from a spec, and from the environment.

#pragma once

#include <string_view>

#include "tern/backends/device_spec.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/result.hpp"

namespace tern::sim {

/// Sets one option by its key in a spec. Refused with invalid_argument: an unknown key, a value
/// that it does not take.
[[nodiscard]] Result<void> try_set_option(Options& options, std::string_view key,
                                          std::string_view value);
/// The environment's options, with those of the spec on top.
[[nodiscard]] Result<Options> try_read_options(const DeviceSpec& spec);

}  // namespace tern::sim
