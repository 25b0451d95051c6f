// The options of a simulated device as text: from a spec, and from the environment.

#pragma once

#include <string>
#include <string_view>

#include "backends/device_spec.hpp"
#include "tern/backends/sim.hpp"
#include "tern/core/config.hpp"
#include "tern/core/result.hpp"

namespace tern::sim {

/// Sets one option by its key in a spec. Refused with invalid_argument: an unknown key, a value
/// that it does not take.
[[nodiscard]] Result<void> try_set_option(Options& options, std::string_view key,
                                          std::string_view value);
/// Options that were put together in code: invalid_argument for what no spec could say.
[[nodiscard]] Result<void> check_options(const Options& options);
/// The configuration's options, with those of the spec on top. Refused with invalid_argument where
/// the environment is wrong, naming the variable, and with invalid_device where the spec is.
[[nodiscard]] Result<Options> try_read_options(const DeviceSpec& spec, const Config& config);
/// The same with the process's configuration.
[[nodiscard]] Result<Options> try_read_options(const DeviceSpec& spec);
/// All of the options in one way of writing: equal texts are equal options, however they were
/// spelt.
[[nodiscard]] std::string canonical_text(const Options& options);

}  // namespace tern::sim
