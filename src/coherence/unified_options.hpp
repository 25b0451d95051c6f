// Decides the options of a unified buffer: the program's options, and the configuration of the
// process for those that the program left unset.

#pragma once

#include "tern/coherence/unified_options.hpp"
#include "tern/core/result.hpp"
#include "tern/detail/core/config.hpp"

namespace tern {

/// Returns the options with every check decided. Requires an open device. Fails with unsupported or
/// invalid_argument if the program asks for something that its device or its other options exclude.
/// A check that only the configuration asks for is left off in that case.
[[nodiscard]] Result<UnifiedOptions> try_decide(const UnifiedOptions& asked, const Config& config);

}  // namespace tern
