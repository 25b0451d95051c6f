// What a unified buffer is made with: what the program asked for, and where it said nothing what
// the process is configured to.

#pragma once

#include "tern/coherence/raw_unified.hpp"
#include "tern/core/config.hpp"
#include "tern/core/result.hpp"

namespace tern {

/// With every check decided. Refused with unsupported or invalid_argument, where the program asks
/// for what its device or its other options rule out; the configuration's wishes are left off
/// there. The device must be open.
[[nodiscard]] Result<UnifiedOptions> try_decide(const UnifiedOptions& asked, const Config& config);

}  // namespace tern
