#include "backends/device_spec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/text.hpp"

namespace tern {
namespace {

constexpr std::size_t max_spec_bytes = 4096;
/// Backends with one device, whose canonical text has no index.
constexpr std::string_view single_device_backends[] = {"host"};

/// The spec is the last field, because a long spec is cut to the space that is left.
Failure refuse(std::string_view spec, const char* why) noexcept {
  return Failure(ErrorCode::invalid_device,
                 "'{spec}' does not name a device: {why}. Write a spec such as host, cuda:0 or "
                 "sim:0?seed=7.")
      .with("why", why)
      .with("spec", spec);
}

bool is_word(std::string_view text) noexcept {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    const char lower = ascii_lower(c);
    return (lower >= 'a' && lower <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), ascii_lower);
  return result;
}

bool has_single_device(std::string_view backend) noexcept {
  return std::ranges::find(single_device_backends, backend) != std::end(single_device_backends);
}

}  // namespace

std::string_view DeviceSpec::option(std::string_view key) const noexcept {
  for (const auto& [name, value] : options) {
    if (name == key) return value;
  }
  return {};
}

std::string DeviceSpec::text() const {
  if (backend == "disk") return fmt::format("disk:{}", path);
  std::string result = backend;
  if (index != 0 || !has_single_device(backend)) result += fmt::format(":{}", index);
  char separator = '?';
  for (const auto& [key, value] : options) {
    result += fmt::format("{}{}={}", separator, key, value);
    separator = '&';
  }
  return result;
}

Result<DeviceSpec> try_parse_device_spec(std::string_view text) {
  if (text.empty()) return refuse(text, "it is empty");
  if (text.size() > max_spec_bytes) return refuse(text, "it is longer than 4096 bytes");
  if (text.find('\0') != text.npos) return refuse(text, "it contains a zero byte");

  DeviceSpec spec;
  const std::size_t name_end = text.find_first_of(":?");
  const std::string_view name = text.substr(0, name_end);
  if (!is_word(name)) return refuse(text, "a backend name consists of letters, digits and '_'");
  spec.backend = lower(name);
  if (spec.backend == "gpu") spec.backend = "cuda";
  std::string_view rest = name_end == text.npos ? std::string_view() : text.substr(name_end);

  if (spec.backend == "disk") {
    if (!rest.starts_with(':') || rest.size() == 1) return refuse(text, "'disk:' needs a path");
    spec.path = rest.substr(1);
    return spec;
  }

  if (rest.starts_with(':')) {
    const std::size_t end = std::min(rest.find('?'), rest.size());
    const std::string_view digits = rest.substr(1, end - 1);
    const auto [stopped, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), spec.index);
    if (error != std::errc{} || stopped != digits.data() + digits.size()) {
      return refuse(text, "the text after ':' is not a device number");
    }
    rest.remove_prefix(end);
  }

  if (!rest.empty()) {
    rest.remove_prefix(1);  // the '?'
    for (bool is_last = false; !is_last;) {
      const std::size_t end = rest.find('&');
      const std::string_view item = rest.substr(0, end);
      const std::size_t equals = item.find('=');
      if (equals == item.npos || equals + 1 == item.size()) {
        return refuse(text, "an option is written key=value");
      }
      const std::string key = lower(item.substr(0, equals));
      if (!is_word(key)) return refuse(text, "an option key consists of letters, digits and '_'");
      spec.options.emplace_back(key, item.substr(equals + 1));
      is_last = end == rest.npos;
      if (!is_last) rest.remove_prefix(end + 1);
    }
    std::ranges::sort(spec.options);
    const auto same_key = [](const auto& a, const auto& b) { return a.first == b.first; };
    if (std::ranges::adjacent_find(spec.options, same_key) != spec.options.end()) {
      return refuse(text, "an option appears twice");
    }
  }
  return spec;
}

DeviceSpec parse_device_spec(std::string_view text) { return try_parse_device_spec(text).value(); }

}  // namespace tern
