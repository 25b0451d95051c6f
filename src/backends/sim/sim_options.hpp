// The options of a simulated device as text: from a spec and from the environment.

#pragma once

#include <string>
#include <string_view>

#include "backends/device_spec.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/core/config.hpp"
#include "tern/detail/core/visibility.hpp"

namespace tern::sim {

/// Sets one option by its key. Fails with invalid_argument for an unknown key or an invalid value.
[[nodiscard]] Result<void> try_set_option(Options& options, std::string_view key,
                                          std::string_view value);
/// Checks options that were set in code. Fails with invalid_argument for values that no spec could
/// set.
[[nodiscard]] Result<void> check_options(const Options& options);
/// Returns the options of the configuration, overridden by those of the spec. Fails with
/// invalid_argument, which names the variable, if the environment is invalid, and with
/// invalid_device if the spec is.
[[nodiscard]] Result<Options> try_read_options(const DeviceSpec& spec, const Config& config);
/// The same with the configuration of the process.
[[nodiscard]] TERN_EXPORT Result<Options> try_read_options(const DeviceSpec& spec);
/// Returns all options in canonical form: equal options have equal texts.
[[nodiscard]] std::string canonical_text(const Options& options);

}  // namespace tern::sim
