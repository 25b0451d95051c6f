// A DeviceSpec is the parsed form of a text that names a device: "cuda:1", "sim:0?seed=7", "host".
//
//   spec    = backend [":" index] ["?" key "=" value {"&" key "=" value}]
//           | "disk:" path
//
// Backend names and keys consist of letters, digits and "_", in upper or lower case. An index
// consists of decimal digits; a missing index is 0. `gpu` is another name for `cuda`. The path of
// `disk:` is everything after the colon, including any "?".
//
// The canonical text has names and keys in lower case and options sorted by key. It contains the
// index unless the backend has only one device. Option values are not normalized, so `threads=2`
// and `threads=02` are two different specs. A regular value type.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tern/core/result.hpp"
#include "tern/detail/core/visibility.hpp"

namespace tern {

struct DeviceSpec {
  std::string backend = {};
  std::uint32_t index = 0;
  /// Keys and values, sorted by key. Each key occurs once.
  std::vector<std::pair<std::string, std::string>> options = {};
  /// The path of a "disk:" spec. Empty for other specs.
  std::string path = {};

  /// Returns the value of an option, or an empty text if the option is not set.
  [[nodiscard]] TERN_EXPORT std::string_view option(std::string_view key) const noexcept;
  /// Returns the canonical text. Parsing it yields an equal DeviceSpec.
  [[nodiscard]] TERN_EXPORT std::string text() const;

  friend bool operator==(const DeviceSpec&, const DeviceSpec&) = default;
};

/// Parses a spec. Fails with invalid_device; the failure carries the spec and the reason. Does not
/// check whether the device exists.
[[nodiscard]] TERN_EXPORT Result<DeviceSpec> try_parse_device_spec(std::string_view text);
/// Like try_parse_device_spec(), but throws the failure.
[[nodiscard]] TERN_EXPORT DeviceSpec parse_device_spec(std::string_view text);

}  // namespace tern
