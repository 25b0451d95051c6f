#include "backends/host/machine.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <optional>
#include <string_view>

namespace tern::host {
namespace {

/// Returns the beginning of a small system file without using the heap, because the caller may be
/// out of memory.
class SmallFile {
 public:
  explicit SmallFile(const char* path) noexcept {
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    // Reads of these files may be short, and a signal may interrupt them.
    while (used_ < buffer_.size()) {
      const ssize_t got = read(file, buffer_.data() + used_, buffer_.size() - used_);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      used_ += static_cast<std::size_t>(got);
    }
    close(file);
  }

  [[nodiscard]] std::string_view text() const noexcept { return {buffer_.data(), used_}; }

  /// Returns the rest of the first line that begins with `key`, without leading blanks and colons.
  [[nodiscard]] std::string_view line_after(std::string_view key) const noexcept {
    for (std::string_view rest = text(); !rest.empty();) {
      const std::string_view line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(rest.size(), line.size() + 1));
      if (!line.starts_with(key)) continue;
      const std::size_t value = line.find_first_not_of(" \t:", key.size());
      return value == line.npos ? std::string_view() : line.substr(value);
    }
    return {};
  }

 private:
  std::array<char, 8192> buffer_;
  std::size_t used_ = 0;
};

std::optional<std::size_t> leading_number(std::string_view text) noexcept {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end == text.data()) return std::nullopt;
  return value;
}

/// Returns the limit and the use of the control group, or nothing without a limit. In a container,
/// the root of this file system is the container's own group.
std::optional<std::size_t> group_limit_bytes() noexcept {
  return leading_number(SmallFile("/sys/fs/cgroup/memory.max").text());
}

std::size_t group_used_bytes() noexcept {
  return leading_number(SmallFile("/sys/fs/cgroup/memory.current").text()).value_or(0);
}

std::size_t physical_bytes() noexcept {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * system_page_bytes();
}

}  // namespace

std::string processor_name() {
  const SmallFile cpuinfo("/proc/cpuinfo");
  std::string model(cpuinfo.line_after("model name"));
  // aarch64 kernels provide no model name, only the part number.
  if (model.empty()) {
    const std::string_view part = cpuinfo.line_after("CPU part");
    utsname system = {};
    uname(&system);
    model = part.empty() ? std::string(system.machine)
                         : fmt::format("{} part {}", system.machine, part);
  }
  return model;
}

std::size_t total_bytes() noexcept {
  return std::min(physical_bytes(), group_limit_bytes().value_or(physical_bytes()));
}

std::size_t available_bytes() noexcept {
  const std::optional<std::size_t> kibibytes =
      leading_number(SmallFile("/proc/meminfo").line_after("MemAvailable"));
  const std::size_t machine = kibibytes ? *kibibytes * 1024 : 0;
  const std::optional<std::size_t> limit = group_limit_bytes();
  if (!limit) return machine;
  return std::min(machine, *limit - std::min(*limit, group_used_bytes()));
}

std::size_t system_page_bytes() noexcept {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

bool has_numa_node(std::uint32_t node) noexcept {
  std::array<char, 64> path;
  const auto end =
      fmt::format_to_n(path.data(), path.size() - 1, "/sys/devices/system/node/node{}", node);
  *end.out = '\0';
  return access(path.data(), F_OK) == 0;
}

std::string system_version() {
  utsname system = {};
  uname(&system);
  return fmt::format("{} {}", system.sysname, system.release);
}

}  // namespace tern::host
