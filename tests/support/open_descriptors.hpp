// Counts the file descriptors that this process has open, to find leaks.

#pragma once

#include <cstddef>
#include <filesystem>
#include <iterator>

namespace tern::test {

/// The descriptor of the folder itself counts too, each time.
[[nodiscard]] inline std::size_t open_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

}  // namespace tern::test
