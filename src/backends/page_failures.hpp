// Failures of shareable pages that several backends report.

#pragma once

#include <cstdint>

#include "tern/core/error.hpp"

namespace tern {

/// The failure of exporting pages that were not created as shareable pages.
[[nodiscard]] inline Failure not_shareable(std::uint64_t handle) noexcept {
  return Failure(ErrorCode::invalid_argument,
                 "{name} {value} cannot be exported, because they were not created as shareable "
                 "pages. Create them with try_create_shareable_pages().")
      .with("name", "pages")
      .with("value", handle);
}

}  // namespace tern
