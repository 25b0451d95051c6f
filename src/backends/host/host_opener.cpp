#include "backends/host/host_opener.hpp"

#include <charconv>
#include <memory>
#include <string>
#include <string_view>

#include "backends/host/host_backend.hpp"
#include "backends/host/machine.hpp"
#include "core/text.hpp"
#include "core/worker_team.hpp"
#include "tern/detail/core/config.hpp"

namespace tern::host {
namespace {

constexpr std::size_t max_threads = 1024;
constexpr std::uint32_t max_numa_node = 1023;  // the size of the node mask

Failure refuse(const DeviceSpec& spec, std::string_view key, std::string_view value,
               const char* accepts) {
  return Failure(ErrorCode::invalid_device,
                 "'{spec}' cannot be opened: {key}='{value}' is not accepted. Accepted: {accepts}.")
      .with("key", key)
      .with("accepts", accepts)
      .with("value", value)
      .with("spec", spec.text());
}

template <class Number>
bool parse(std::string_view text, Number& number) noexcept {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size();
}

Result<std::unique_ptr<Backend>> open(const DeviceSpec& spec) {
  const Result<const Config*> config = try_config();
  if (!config) return config.failure();

  HostOptions options;
  options.spec = spec.text();
  options.threads = (*config)->host_threads != 0 ? (*config)->host_threads : usable_cores();
  for (const auto& [key, value] : spec.options) {
    if (key == "pages") {
      if (equals_ignoring_case(value, "huge")) {
        options.memory.pages = Pages::huge;
      } else if (equals_ignoring_case(value, "normal")) {
        options.memory.pages = Pages::normal;
      } else {
        return refuse(spec, key, value, "huge or normal");
      }
    } else if (key == "numa") {
      std::uint32_t node = 0;
      if (!parse(value, node) || node > max_numa_node || !has_numa_node(node)) {
        return refuse(spec, key, value, "a NUMA node number of this machine");
      }
      options.memory.numa_node = node;
    } else if (key == "threads") {
      if (!parse(value, options.threads) || options.threads < 1 || options.threads > max_threads) {
        return refuse(spec, key, value, "a whole number from 1 to 1024");
      }
    } else {
      return Failure(ErrorCode::invalid_device,
                     "'{spec}' cannot be opened: the host device has no option '{key}'. Its "
                     "options are pages, numa and threads.")
          .with("key", key)
          .with("spec", spec.text());
    }
  }
  return open_backend(options);
}

}  // namespace

Opener opener() {
  return {"host",
          [](const DeviceSpec&) { return std::string(); },
          [](const DeviceSpec&) { return std::uint32_t{1}; },
          {"pages=huge|normal", "numa=node", "threads=1..1024"},
          open};
}

}  // namespace tern::host
