// A resource and its settings as text, as `tern replay --resource` takes them:
//
//   pool                      the pool with its defaults
//   pool:limit=8GiB:reuse     settings follow, separated by colons
//   async                     the driver's stream-ordered allocator
//   driver                    one driver call per request and per free
//
// A replay is faster than the program that it repeats, so the idle times of the program are gone.
// Pools therefore do not trim themselves here; `trim=SIZE` trims after each pass instead.

#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tern/core/result.hpp"
#include "tern/device/device.hpp"
#include "tern/memory/pool_resource.hpp"

namespace tern::tools {

struct ResourceSetting {
  enum class Kind : std::uint8_t { pool, async, driver };

  Kind kind = Kind::pool;
  PoolOptions pool = {.auto_trim = false};
  /// Trim the pool to this size after each pass.
  std::optional<std::size_t> trim_bytes = {};

  /// Returns the text from which the setting can be parsed again, with settings in a fixed order.
  [[nodiscard]] std::string text() const;
};

/// What a setting accepts, one line per word, for --help.
[[nodiscard]] std::string resource_setting_help();

/// Parses settings that are separated by commas. Fails with invalid_argument.
[[nodiscard]] Result<std::vector<ResourceSetting>> try_parse_resource_settings(
    std::string_view text);

/// Formats a size exactly, in the largest unit that divides it: "3MiB", "1537".
[[nodiscard]] std::string exact_bytes(std::size_t bytes);

/// Makes the resource. Throws what its constructor throws.
[[nodiscard]] ResourceHandle make_resource(const Device& device, const ResourceSetting& setting);

}  // namespace tern::tools
