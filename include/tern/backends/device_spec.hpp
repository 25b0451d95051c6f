// A DeviceSpec is the text that names a device, taken apart: "cuda:1", "sim:0?seed=7", "host".
//
//   spec    = backend [":" index] ["?" key "=" value {"&" key "=" value}]
//           | "disk:" path
//
// Backend names and keys are letters, digits and "_", in any case; an index is decimal digits.
// `gpu` is another name for `cuda`, and a missing index is 0. The path of `disk:` is kept as it is,
// "?" included. The canonical text has names and keys in lower case, options sorted by key, and the
// index left out only where the backend has a single device; values stay as they are written, so
// `threads=2` and `threads=02` are two specs. A regular value type.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tern/core/export.hpp"
#include "tern/core/result.hpp"

namespace tern {

struct DeviceSpec {
  std::string backend = {};
  std::uint32_t index = 0;
  std::vector<std::pair<std::string, std::string>> options = {};  // sorted by key, keys distinct
  std::string path = {};                                          // of "disk:" only

  /// The value of an option; empty if it is not there.
  [[nodiscard]] TERN_EXPORT std::string_view option(std::string_view key) const noexcept;
  /// The canonical text.
  [[nodiscard]] TERN_EXPORT std::string text() const;

  friend bool operator==(const DeviceSpec&, const DeviceSpec&) = default;
};

/// Refused with invalid_device, which carries the spec and says what is wrong with it.
[[nodiscard]] TERN_EXPORT Result<DeviceSpec> try_parse_device_spec(std::string_view text);
[[nodiscard]] TERN_EXPORT DeviceSpec parse_device_spec(std::string_view text);

}  // namespace tern
